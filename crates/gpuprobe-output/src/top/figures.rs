//! Numbers as `top` shows them: short, and `-` if unknown.

use crate::curve::Strokes;
use crate::units::{bytes, duration};

pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Marks an estimate.
pub(super) fn estimated(number: String, is_estimated: bool) -> String {
    if is_estimated { format!("~{number}") } else { number }
}

/// A rate with at most four digits: `0.3`, `12`, `4,500` as `4.5k`.
pub(super) fn rate(per_second: f64) -> String {
    if !per_second.is_finite() {
        return "-".to_owned();
    }
    match per_second {
        0.0 => "0".to_owned(),
        r if r < 9.95 => format!("{r:.1}"),
        r if r < 9_999.5 => format!("{r:.0}"),
        r if r < 999_500.0 => format!("{:.1}k", r / 1e3),
        r => format!("{:.1}M", r / 1e6),
    }
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    if !share.is_finite() {
        return "-".to_owned();
    }
    if share < 0.0995 { format!("{:.1}", share * 100.0) } else { format!("{:.0}", share * 100.0) }
}

/// Bytes per second with a sign.
pub(super) fn growth(per_second: f64) -> String {
    if !per_second.is_finite() || per_second.abs() < 1.0 {
        return "0".to_owned();
    }
    let sign = if per_second < 0.0 { '-' } else { '+' };
    let text = short_bytes(per_second.abs() as u64);
    // 1018.5KiB and a sign are too wide
    let text = match text.split_once('.') {
        Some((whole, fraction)) if whole.len() > 3 => {
            format!("{whole}{}", fraction.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        _ => text,
    };
    format!("{sign}{text}")
}

/// Bytes without a space: `1.5GiB`.
pub(super) fn short_bytes(n: u64) -> String {
    bytes(n).replace(' ', "")
}

/// A duration without a space: `2.5ms`.
pub(super) fn short_duration(ns: u64) -> String {
    duration(ns).replace(' ', "")
}

/// A bar of this width that shows a percentage.
pub(super) fn bar(percent: u32, width: usize, strokes: Strokes) -> String {
    let filled = (percent.min(100) as usize * width + 50) / 100;
    let (full, empty) = match strokes {
        Strokes::Ascii => ('#', '.'),
        Strokes::Blocks => ('█', '░'),
    };
    let mut text = String::with_capacity(width * 3);
    text.extend(std::iter::repeat_n(full, filled));
    text.extend(std::iter::repeat_n(empty, width - filled));
    text
}

/// The last percentages as a line of this width, the newest at its end.
pub(super) fn history(percents: &[Option<u32>], width: usize, strokes: Strokes) -> String {
    let levels = strokes.levels();
    let last = &percents[percents.len().saturating_sub(width)..];
    let mut text: String = std::iter::repeat_n(' ', width - last.len()).collect();
    text.extend(last.iter().map(|percent| match percent {
        Some(percent) => levels[(percent.min(&100) * 7 / 100) as usize],
        None => ' ',
    }));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let rates = [0.0, 0.25, 9.97, 1234.4, 12_345.0, 1.5e6, f64::NAN].map(rate);
        assert_eq!(rates, ["0", "0.2", "10", "1234", "12.3k", "1.5M", "-"]);
        assert_eq!([0.001, 0.05, 0.5, 2.5].map(percent), ["0.1", "5.0", "50", "250"]);
        assert_eq!([0.2, 2048.0, -1048576.0].map(growth), ["0", "+2.0KiB", "-1.0MiB"]);
        assert_eq!([-1018.5 * 1024.0, 999.5 * 1024.0].map(growth), ["-1018KiB", "+999.5KiB"]);
    }

    #[test]
    fn bars_and_histories_have_their_width() {
        assert_eq!(bar(50, 4, Strokes::Ascii), "##..");
        assert_eq!(bar(700, 3, Strokes::Blocks), "███");
        assert_eq!(history(&[Some(0), None, Some(100), Some(300)], 6, Strokes::Ascii), "  . @@");
        assert_eq!(history(&[Some(10), Some(50), Some(99)], 2, Strokes::Blocks), "▄▇");
    }
}
