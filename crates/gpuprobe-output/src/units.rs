//! Numbers and names as text. Functions that begin with `push_` append to a line without an allocation, for callers
//! that write many lines.
//!
//! Crates such as bytesize and humantime are not used: the golden files and the classic display fix one decimal place
//! and half-up rounding, and `trace` needs functions that append.

use std::borrow::Cow;

const BYTES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DURATIONS: [&str; 3] = ["us", "ms", "s"];

/// Bytes in the largest unit of which there is at least 1: `512 B`, `4.0 KiB`, `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let (tenths, unit) = scaled(bytes, 1 << 10, &BYTES);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A duration in the largest unit of which there is at least 1: `999 ns`, `1.2 us`, `3.4 ms`, `5.6 s`.
pub fn duration(ns: u64) -> String {
    if ns < 1000 {
        return format!("{ns} ns");
    }
    let (tenths, unit) = scaled(ns, 1000, &DURATIONS);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A time of a recording: `1.500000 s`.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns % 1_000_000_000 / 1000)
}

/// The same as [`duration`] without a space: `1.2us`.
pub(crate) fn push_duration(out: &mut String, ns: u64) {
    if ns < 1000 {
        push_decimal(out, ns);
        return out.push_str("ns");
    }
    let (tenths, unit) = scaled(ns, 1000, &DURATIONS);
    push_tenths(out, tenths);
    out.push_str(unit);
}

/// Bytes with a unit if that loses no digit, `4.0 MiB`, or else as a plain number, `4000`. The unit is the largest of
/// which the value is a multiple of one half, with fewer than 10,000 of it.
pub(crate) fn push_exact_bytes(out: &mut String, bytes: u64) {
    const MOST: u64 = 10_000;
    if bytes >= 1 << 10 {
        for (i, unit) in BYTES.iter().enumerate().rev() {
            let bits = 10 * (i + 1);
            let whole = bytes >> bits;
            if (1..MOST).contains(&whole) && bytes.trailing_zeros() as usize >= bits - 1 {
                push_tenths(out, 10 * whole + 5 * (bytes >> (bits - 1) & 1));
                out.push(' ');
                return out.push_str(unit);
            }
        }
    }
    push_decimal(out, bytes);
}

/// Tenths of a unit, and the unit. Rounded half up with integers only, so that no value is shown as 1024.0 of the
/// smaller unit.
fn scaled(value: u64, step: u64, units: &[&'static str]) -> (u64, &'static str) {
    let mut one = step;
    for (i, &unit) in units.iter().enumerate() {
        let tenths = match value.checked_mul(20).and_then(|v| v.checked_add(one)) {
            Some(twentieths) => twentieths / (one * 2),
            None => {
                let tenths = (u128::from(value) * 20 + u128::from(one)) / (u128::from(one) * 2);
                u64::try_from(tenths).unwrap_or(u64::MAX)
            }
        };
        if tenths < 10 * step || i + 1 == units.len() {
            return (tenths, unit);
        }
        one *= step;
    }
    (value, "")
}

fn push_tenths(out: &mut String, tenths: u64) {
    push_decimal(out, tenths / 10);
    out.push('.');
    push_decimal(out, tenths % 10);
}

/// A number in decimal. The standard library's formatting takes several times as long, and a line has a dozen numbers.
pub(crate) fn push_decimal(out: &mut String, n: u64) {
    out.push_str(itoa::Buffer::new().format(n));
}

/// A signed number in decimal.
pub(crate) fn push_signed(out: &mut String, n: i64) {
    out.push_str(itoa::Buffer::new().format(n));
}

/// An address, a handle or flags: `0x7f00`.
pub(crate) fn push_hex(out: &mut String, n: u64) {
    out.push_str("0x");
    let mut rest = n;
    let mut digits = [0_u8; 16];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(rest % 16) as usize];
        rest /= 16;
        if rest == 0 {
            break;
        }
    }
    // the digits are always ASCII
    out.push_str(std::str::from_utf8(&digits[at..]).unwrap_or_default());
}

/// An age in a coarse unit: `3.4 s`, `40 s`, `12 min`, `3 h`, `5 d`.
pub fn age(ns: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let seconds = ns / 1_000_000_000;
    if seconds < 10 {
        return format!("{seconds}.{} s", ns / 100_000_000 % 10);
    }
    // a larger unit is used from two of it on, because one of it is too coarse
    let (one, unit) = UNITS.into_iter().find(|(one, _)| seconds >= 2 * one).unwrap_or((1, "s"));
    format!("{} {unit}", seconds / one)
}

/// Shortens a text to a width by removing its middle: the ends of a function name with its line say most.
pub fn fitted(text: &str, width: usize) -> Cow<'_, str> {
    const GAP: &str = "...";
    // there are at least as many bytes as characters, and their number is known
    if text.len() <= width || text.chars().count() <= width {
        return Cow::Borrowed(text);
    }
    let left = width.saturating_sub(GAP.len());
    let (head, tail) = (left / 2, left - left / 2);
    let count = text.chars().count();
    let head: String = text.chars().take(head).collect();
    let tail: String = text.chars().skip(count - tail).collect();
    Cow::Owned(format!("{head}{}{tail}", &GAP[..GAP.len().min(width)]))
}

/// `1 call`, `2 calls`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A number with commas between its thousands: `1,048,576`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A name that is safe to show on a terminal: processes choose their names, which may contain escape sequences.
pub fn printable(name: &str) -> Cow<'_, str> {
    if is_plain(name) || name.chars().all(harmless) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::with_capacity(name.len() + 8);
    push_printable(&mut shown, name);
    Cow::Owned(shown)
}

/// Appends a name as [`printable`] shows it.
pub(crate) fn push_printable(out: &mut String, name: &str) {
    if is_plain(name) {
        return out.push_str(name);
    }
    for c in name.chars() {
        if harmless(c) {
            out.push(c);
        } else {
            out.extend(c.escape_debug());
        }
    }
}

/// Appends text in quotes, with quotes inside it escaped.
pub(crate) fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '\'' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out.push('"');
}

/// Whether a name is printable ASCII, as most are. This check needs no Unicode table.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|b| matches!(b, b' '..=b'~'))
}

fn harmless(c: char) -> bool {
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_048_576, "1,048,576"), (123_456, "123,456")];
        cases.into_iter().for_each(|(n, text)| assert_eq!(grouped(n), text));
    }

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
    fn an_appended_duration_is_the_same_without_a_space() {
        for ns in [0, 850, 999, 1000, 1250, 101_249, 999_950, 1_500_000, 31_200_000_000, u64::MAX] {
            let mut line = String::new();
            push_duration(&mut line, ns);
            assert_eq!(line, duration(ns).replace(' ', ""), "{ns}");
        }
    }

    #[test]
    fn exact_bytes_lose_no_digit() {
        let cases = [
            (0, "0"),
            (1000, "1000"),
            (1023, "1023"),
            (1024, "1.0 KiB"),
            (1025, "1025"),
            (1536, "1.5 KiB"),
            (1280, "1280"),
            (4000, "4000"),
            (4 << 20, "4.0 MiB"),
            ((4 << 20) + 1, "4194305"),
            (5 << 18, "1280.0 KiB"),
            ((1 << 30) + (2 << 20), "1026.0 MiB"),
            ((1 << 30) + (1 << 10), "1073742848"),
            (3 << 29, "1.5 GiB"),
            (1 << 63, "8.0 EiB"),
            (u64::MAX, "18446744073709551615"),
        ];
        for (n, text) in cases {
            let mut line = String::new();
            push_exact_bytes(&mut line, n);
            assert_eq!(line, text, "{n}");
        }
    }

    #[test]
    fn digits_match_the_standard_library() {
        let mut n = 1_u64;
        for i in 0..2000_u64 {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i) >> (i % 60);
            for n in [n, u64::MAX - n, n & 0xff] {
                let mut line = String::new();
                push_decimal(&mut line, n);
                line.push(' ');
                push_hex(&mut line, n);
                line.push(' ');
                push_signed(&mut line, n.cast_signed());
                assert_eq!(line, format!("{n} {n:#x} {}", n.cast_signed()));
            }
        }
    }

    #[test]
    fn quotes_inside_quoted_text_are_escaped() {
        let mut line = String::new();
        push_quoted(&mut line, "it's \"a\\b\"\x1b\n\u{e9}");
        assert_eq!(line, r#""it's \"a\\b\"\u{1b}\né""#);
    }

    #[test]
    fn ages_have_a_coarse_unit() {
        let cases = [
            (0, "0.0 s"),
            (3_450_000_000, "3.4 s"),
            (9_999_999_999, "9.9 s"),
            (10_000_000_000, "10 s"),
            (119_000_000_000, "119 s"),
            (120_000_000_000, "2 min"),
            (7_200_000_000_000, "2 h"),
            (u64::MAX, "213503 d"),
        ];
        for (ns, text) in cases {
            assert_eq!(age(ns), text, "{ns}");
        }
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(fitted("load (app.cc:3)", 15), "load (app.cc:3)");
        assert_eq!(fitted("load (app.cc:3)", 13), "load ...cc:3)");
        assert_eq!(fitted("ääääääää", 7), "ää...ää");
        for width in 0..40 {
            let text = "é".repeat(10_000);
            assert_eq!(fitted(&text, width).chars().count(), width);
        }
    }

    #[test]
    fn counts_agree_with_their_noun() {
        assert_eq!([0, 1, 2].map(|n| count(n, "call", "calls")), ["0 calls", "1 call", "2 calls"]);
    }

    #[test]
    fn names_cannot_control_a_terminal() {
        assert_eq!(printable("py\"thon\\ü"), "py\"thon\\ü");
        assert_eq!(printable("a\x1b[2Jb\nc\0"), "a\\u{1b}[2Jb\\nc\\0");
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y", "text that runs backwards");
    }
}
