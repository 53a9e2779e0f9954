//! Parsers for option values: times, sizes, permissions, addresses and limits.
//!
//! Crates such as humantime and bytesize are not used: only a few units are allowed here, `M` is 1024 * 1024, and each
//! error gives an example of a right value.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::builder::RangedI64ValueParser;

/// A duration, greater than 0, in seconds unless it has a unit.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let (number, factor) = with_unit(text)?;
    positive(number, factor)
}

/// A time since the start of a recording, in seconds unless it has a unit; 0 is allowed.
pub(super) fn moment(text: &str) -> Result<Duration, String> {
    let (number, factor) = with_unit(text)?;
    let moment = number.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n * factor).ok());
    moment.ok_or_else(|| "give a number that is not below 0".to_owned())
}

fn with_unit(text: &str) -> Result<(&str, f64), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        _ => return Err("give a number of seconds, or with a unit: 10, 10s, 500ms or 50us".to_owned()),
    };
    Ok((number, factor))
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    positive(text, 1.0)
}

fn positive(number: &str, factor: f64) -> Result<Duration, String> {
    let duration = number.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n * factor).ok());
    duration.filter(|d| !d.is_zero()).ok_or_else(|| "give a number greater than 0".to_owned())
}

/// A number from 1 to this one.
pub(super) fn up_to(most: i64) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most)
}

/// An address, or a host name and a port. If the name has several addresses, the first is used.
pub(super) fn metrics_addr(text: &str) -> Result<SocketAddr, String> {
    let example = "such as 127.0.0.1:9000 or localhost:9000";
    let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        return Err(format!("give a host and a port, {example}"));
    }
    let mut found = text.to_socket_addrs().map_err(|e| format!("{e}: give another, {example}"))?;
    found.next().ok_or_else(|| format!("this name has no address: give another, {example}"))
}

/// A fraction of a process's time, given in percent.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let share = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0).map(|percent| percent / 100.0);
    share.ok_or_else(|| "give a part of a process's time above 0% and up to 100%, such as 2%".to_owned())
}

/// A change that is allowed, given in percent; 0 is allowed.
pub(super) fn change(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let change =
        percent.filter(|percent| percent.is_finite() && *percent >= 0.0).map(|percent| percent / 100.0);
    change.ok_or_else(|| "give a change in percent, such as 10%".to_owned())
}

/// Octal permissions without execute bits. The owner must be able to read and write.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| "give permissions in octal, such as 0600, 0640 or 0644".to_owned())
}

/// A number of bytes, with K, M, G or T for powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 64 << 10;
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("give a number of bytes, such as 500M or 2G".to_owned()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    match bytes {
        Some(bytes) if bytes >= LEAST => Ok(bytes),
        Some(_) => Err("give at least 64K".to_owned()),
        None => Err("give a number of bytes, such as 500M or 2G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn a_budget_is_given_in_percent() {
        assert_eq!(share("2%"), Ok(0.02));
        assert_eq!(share("0.5%"), Ok(0.005));
        assert_eq!(share("100%"), Ok(1.0));
        for wrong in ["0", "0%", "-1%", "200%", "abc", "%", "", "2", "0.02", "nan%", "inf%", "2 %", "2%%"] {
            let error = share(wrong).unwrap_err();
            assert!(error.contains("such as 2%") && error.lines().count() == 1, "{wrong}: {error}");
        }
    }

    #[test]
    fn times_are_seconds_unless_they_have_a_unit() {
        for text in ["10", "10s", "10000ms", "10.0"] {
            assert_eq!((span(text), moment(text)), (Ok(TEN), Ok(TEN)), "{text}");
        }
        assert_eq!((moment("0"), span("0").is_err()), (Ok(Duration::ZERO), true));
        for wrong in ["", "s", "10h", "-1", "1e9", "1.2.3", "10 s"] {
            assert!(span(wrong).is_err() && moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_change_is_given_in_percent() {
        assert_eq!((change("10%"), change("0"), change("250%")), (Ok(0.1), Ok(0.0), Ok(2.5)));
        for wrong in ["", "%", "-1%", "nan%", "inf", "x", "10 %"] {
            assert!(change(wrong).unwrap_err().contains("such as 10%"), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("65536", 65536), ("64K", 65536), ("500M", 500 << 20), ("2GiB", 2 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "M", "10X", "-1", "1", "99999999999999999999", "16777216T", "1.5G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn permissions_are_octal_and_the_owner_can_read_and_write() {
        for (text, bits) in [("600", 0o600), ("0644", 0o644), ("0666", 0o666)] {
            assert_eq!(mode(text), Ok(bits), "{text}");
        }
        for wrong in ["", "0444", "0755", "4600", "-1", "rw", "680"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_metrics_address_may_be_a_name() {
        let of = |text: &str| metrics_addr(text).unwrap();
        assert_eq!(of("[::1]:80"), "[::1]:80".parse().unwrap());
        assert!(of("localhost:9000").ip().is_loopback() && of("localhost:9000").port() == 9000);
        for wrong in ["localhost", ":", "1.2.3.4:65536", "no such host:80", ""] {
            let error = metrics_addr(wrong).unwrap_err();
            assert!(error.contains("127.0.0.1:9000") && error.lines().count() == 1, "{wrong}: {error}");
        }
    }
}
