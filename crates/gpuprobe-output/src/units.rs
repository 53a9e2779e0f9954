//! Numbers and names for people.

use std::borrow::Cow;

/// Bytes in the largest unit that leaves at least 1 of it: `512 B`, `4.0 KiB`, `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    scaled(bytes, 1 << 10, &UNITS)
}

/// A duration in the largest unit that leaves at least 1 of it: `999 ns`, `1.2 us`, `3.4 ms`, `5.6 s`.
pub fn duration(ns: u64) -> String {
    const UNITS: [&str; 3] = ["us", "ms", "s"];
    if ns < 1000 {
        return format!("{ns} ns");
    }
    scaled(ns, 1000, &UNITS)
}

/// One decimal, rounded half up. Whole numbers all the way, so that no value shows as 1024.0 of the smaller unit.
fn scaled(value: u64, step: u128, units: &[&str]) -> String {
    let mut one = step;
    for (i, unit) in units.iter().enumerate() {
        let tenths = (u128::from(value) * 20 + one) / (one * 2);
        if tenths < 10 * step || i + 1 == units.len() {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        one *= step;
    }
    value.to_string()
}

/// `1 call`, `2 calls`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A name as it can be shown on a terminal: processes choose their own names, and escape sequences are among them.
pub fn printable(name: &str) -> Cow<'_, str> {
    let harmless = |c: char| matches!(c, '\'' | '"' | '\\') || c.escape_debug().count() == 1;
    if name.chars().all(harmless) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        if harmless(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_debug());
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_decimal_from_a_kibibyte_on() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (4 << 20, "4.0 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1_047_000, "1022.5 KiB"),
            (141 << 30, "141.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text, "{n}");
        }
    }

    #[test]
    fn durations_have_one_decimal_from_a_microsecond_on() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.0 us"),
            (1249, "1.2 us"),
            (1250, "1.3 us"),
            (999_949, "999.9 us"),
            (999_950, "1.0 ms"),
            (90_000_000_000, "90.0 s"),
            (10_000_000_000_000, "10000.0 s"),
        ];
        for (n, text) in cases {
            assert_eq!(duration(n), text, "{n}");
        }
    }

    #[test]
    fn counts_agree_with_their_noun() {
        assert_eq!([0, 1, 2].map(|n| count(n, "call", "calls")), ["0 calls", "1 call", "2 calls"]);
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(printable("py\"thon\\ü"), "py\"thon\\ü");
        assert_eq!(printable("a\x1b[2Jb\nc\0"), "a\\u{1b}[2Jb\\nc\\0");
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y", "text that runs backwards");
    }
}
