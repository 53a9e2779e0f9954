//! Dates and times of day. The offset from UTC is a parameter: finding it out takes a file, and this crate opens none.
//!
//! A crate such as jiff is not used: this is one fixed format without a time zone database, and a time of day is
//! appended to a line without an allocation.

use crate::units::push_decimal;

const DAY: i64 = 86_400;
/// The last second of the year 9999, the last year with four digits.
const LAST: i64 = 253_402_300_799;

/// A time in seconds since 1970 as `2024-12-02 12:36:56`, shifted by an offset from UTC.
pub fn timestamp(unix_seconds: f64, utc_offset_seconds: i32) -> String {
    // converting a float to an integer saturates, and NaN becomes 0
    let local = (unix_seconds.floor() as i64).saturating_add(i64::from(utc_offset_seconds)).clamp(0, LAST);
    let (year, month, day) = date(local / DAY);
    let second = local % DAY;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// The precision of a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    Seconds,
    Microseconds,
}

/// Appends a local time in nanoseconds since 1970 as `12:36:56` or `12:36:56.123456`.
pub(crate) fn push_time_of_day(out: &mut String, local_ns: u64, precision: Precision) {
    let second = local_ns / 1_000_000_000 % DAY.unsigned_abs();
    push_padded(out, second / 3600, 10);
    out.push(':');
    push_padded(out, second / 60 % 60, 10);
    out.push(':');
    push_padded(out, second % 60, 10);
    if precision == Precision::Microseconds {
        out.push('.');
        push_padded(out, local_ns / 1000 % 1_000_000, 100_000);
    }
}

/// Appends a number with leading zeros; `first` is the value of its first digit, such as 10 for two digits.
fn push_padded(out: &mut String, n: u64, first: u64) {
    let mut digit = first;
    while digit > 1 && n < digit {
        out.push('0');
        digit /= 10;
    }
    push_decimal(out, n);
}

/// Year, month and day of a number of days since 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days / 366; // at most the right year, and at least a few years before it
    let mut rest = days - days_before(year);
    while rest >= year_length(year) {
        rest -= year_length(year);
        year += 1;
    }
    let february = year_length(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

/// Days from 1970-01-01 to the first day of a year.
fn days_before(year: i64) -> i64 {
    let leap_days = |year: i64| year / 4 - year / 100 + year / 400;
    365 * (year - 1970) + leap_days(year - 1) - leap_days(1969)
}

fn year_length(year: i64) -> i64 {
    days_before(year + 1) - days_before(year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        let cases = [
            (0.0, 0, "1970-01-01 00:00:00"),
            (951_782_400.0, 0, "2000-02-29 00:00:00"),
            (1_733_143_016.9, 0, "2024-12-02 12:36:56"),
            (1_733_143_016.9, -18_000, "2024-12-02 07:36:56"),
            (1_735_689_599.0, 0, "2024-12-31 23:59:59"),
            (1_735_689_599.0, 1, "2025-01-01 00:00:00"),
            (4_107_542_400.0, 0, "2100-03-01 00:00:00"),
        ];
        for (unix, offset, text) in cases {
            assert_eq!(timestamp(unix, offset), text);
        }
    }

    #[test]
    fn times_of_day_keep_their_zeros() {
        let cases = [
            (0, "00:00:00.000000"),
            (1_000_999, "00:00:00.001000"),
            (1_733_143_016_123_456_789, "12:36:56.123456"),
            (86_399_999_999_999, "23:59:59.999999"),
            (86_400_000_010_000, "00:00:00.000010"),
        ];
        for (ns, text) in cases {
            let mut line = String::new();
            push_time_of_day(&mut line, ns, Precision::Microseconds);
            assert_eq!(line, text);
            line.clear();
            push_time_of_day(&mut line, ns, Precision::Seconds);
            assert_eq!(line, text[..8]);
        }
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        for odd in [f64::NAN, -5.0, f64::NEG_INFINITY] {
            assert_eq!(timestamp(odd, 0), "1970-01-01 00:00:00");
        }
        assert_eq!(timestamp(f64::INFINITY, i32::MAX), "9999-12-31 23:59:59");
    }

    #[test]
    fn consecutive_days_have_consecutive_dates() {
        let mut last = date(0);
        for day in 1..200_000 {
            let (next, (year, month, in_month)) = (date(day), last);
            let within = next == (year, month, in_month + 1);
            let new_month = next == (year, month + 1, 1) && in_month >= 28;
            assert!(
                within || new_month || next == (year + 1, 1, 1) && (month, in_month) == (12, 31),
                "{day}"
            );
            last = next;
        }
    }
}
