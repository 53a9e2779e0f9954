//! Parsers for option values: times, sizes, processes, files, permissions, addresses and limits.
//!
//! Crates such as humantime and bytesize are not used: only a few units are allowed here, `M` is 1024 * 1024, and each
//! error gives an example of a right value.

use std::ffi::OsStr;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValuesParser, RangedI64ValueParser, TypedValueParser};
use gpuprobe_output::Aggregate;

/// A duration greater than 0.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let span = moment(text)?;
    if span.is_zero() { Err(format!("give a time greater than 0, {TIMES}")) } else { Ok(span) }
}

/// A duration of at least a second.
pub(super) fn one_second_or_more(text: &str) -> Result<Duration, String> {
    let span = moment(text)?;
    if span < Duration::from_secs(1) { Err("give at least 1s".to_owned()) } else { Ok(span) }
}

const TIMES: &str = "such as 10, 10s, 500ms or 2m";

/// A duration that may be 0, such as a time since the start of a recording. A number alone is seconds.
pub(super) fn moment(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ns" => Some(1e-9),
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let number = number.parse::<f64>().ok();
    let time =
        number.zip(factor).and_then(|(number, factor)| Duration::try_from_secs_f64(number * factor).ok());
    time.ok_or_else(|| format!("give a time, {TIMES}"))
}

/// A number of bytes, with K, M, G or T for powers of 1024. A number alone is MiB; it must be small, because a large one
/// is more likely meant as bytes.
fn size(text: &str) -> Result<u64, String> {
    const MOST_ALONE: u64 = (64 << 10) - 1;
    let wrong = || "give a size, such as 64, 64MiB or 1G; a number alone is MiB".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u64>().map_err(|_not_a_number| wrong())?;
    let shift = match unit {
        "" if number > MOST_ALONE => return Err(format!("give a unit, such as {text}B or {text}K")),
        "B" => 0,
        "K" | "k" | "KB" | "kB" | "KiB" => 10,
        "" | "M" | "MB" | "MiB" => 20,
        "G" | "GB" | "GiB" => 30,
        "T" | "TB" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// The size of a trace or a segment of one.
pub(super) fn trace_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < 64 << 10 { Err("give at least 64K".to_owned()) } else { Ok(bytes) }
}

/// The size of a directory of recordings. What is being compressed when a recording ends must fit, too.
pub(super) fn directory_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < 1 << 20 { Err("give at least 1M".to_owned()) } else { Ok(bytes) }
}

/// The size of a ring buffer.
pub(super) fn buffer_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let allowed = u32::try_from(bytes).ok().filter(|bytes| (1 << 20..=1 << 30).contains(bytes));
    allowed.ok_or_else(|| "give 1M to 1G".to_owned())
}

/// The number of a process. A name gets a hint at how to find it.
pub(super) fn pid(text: &str) -> Result<u32, String> {
    text.parse::<u32>().map_err(|_not_a_number| {
        let name = Path::new(text).file_name().and_then(OsStr::to_str).filter(|name| is_plain(name));
        format!("give the number of a process; `pgrep -f {}` prints it", name.unwrap_or("NAME"))
    })
}

/// The number of a process of a recording.
pub(super) fn recorded_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_not_a_number| "give the number of a process, as the summary shows it".to_owned())
}

/// The number of a thread of a recording.
pub(super) fn recorded_tid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_not_a_number| "give the number of a thread, as `tid` in the trace".to_owned())
}

/// How many rows a table may have.
pub(super) fn rows(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_not_a_number| "give a number of rows, or 0 for all".to_owned())
}

/// The number of a process, for a command whose `-p` takes a file.
pub(super) fn pid_not_path(text: &str) -> Result<u32, String> {
    pid(text).map_err(|hint| {
        if text.contains('/') || text.contains(".so") {
            format!("{hint}; a library goes with -p")
        } else {
            hint
        }
    })
}

/// A library or a program, for a command whose `-d` takes a process. A number that is not a file gets a hint.
pub(super) fn path_not_pid() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|word| {
        let path = PathBuf::from(word);
        match path.to_str().and_then(|text| text.parse::<u32>().ok()) {
            Some(number) if !path.exists() => {
                Err(format!("give a library or a program; a process goes with -d: -d {number}"))
            }
            _ => Ok(path),
        }
    })
}

/// Whether a shell takes this word as it is.
fn is_plain(word: &str) -> bool {
    !word.starts_with('-') && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
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

/// Which processes have common metrics.
pub(super) fn aggregate() -> impl TypedValueParser<Value = Aggregate> {
    PossibleValuesParser::new(Aggregate::ALL.map(Aggregate::as_str)).try_map(|word| {
        Aggregate::ALL.into_iter().find(|aggregate| aggregate.as_str() == word).ok_or("no such label")
    })
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

/// A name and its value, as in KEY=VALUE.
pub(super) fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("give a name and a value, such as deployment.environment.name=test".to_owned()),
    }
}

/// Octal permissions without execute bits. The owner must be able to read and write.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| "give permissions in octal, such as 0600, 0640 or 0644".to_owned())
}

/// A size limit; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxSize(pub(crate) Option<u64>);

/// A size, or `none` or 0 for no limit.
pub(super) fn max_size(text: &str) -> Result<MaxSize, String> {
    match text {
        "none" | "0" => Ok(MaxSize(None)),
        text => trace_size(text).map(|size| MaxSize(Some(size))).map_err(|error| format!("{error}, or none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_gets_a_hint() {
        assert_eq!((recorded_pid("7"), recorded_tid("8"), rows("0")), (Ok(7), Ok(8), Ok(0)));
        for wrong in ["abc", "", "-1", "4294967296000000000000"] {
            assert!(recorded_pid(wrong).unwrap_err().contains("number of a process"));
            assert!(recorded_tid(wrong).unwrap_err().contains("number of a thread"));
            assert!(rows(wrong).unwrap_err().contains("number of rows"));
        }
    }

    #[test]
    fn a_size_limit_can_be_lifted() {
        assert_eq!(max_size("none"), Ok(MaxSize(None)));
        assert_eq!(max_size("0"), Ok(MaxSize(None)));
        assert_eq!(max_size("2G"), Ok(MaxSize(Some(2 << 30))));
        for wrong in ["", "None", "0G", "1K", "-1"] {
            assert!(max_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_attribute_has_a_name_and_a_value() {
        let pair = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(attribute("a.b=c=d"), pair("a.b", "c=d"));
        assert_eq!(attribute("a="), pair("a", ""));
        for wrong in ["", "a", "=b", " =b"] {
            assert!(attribute(wrong).unwrap_err().contains("a name and a value"), "{wrong}");
        }
    }

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
    fn a_time_is_a_number_of_seconds_or_has_a_unit() {
        for (text, ns) in [
            ("10", 10_000_000_000),
            ("10s", 10_000_000_000),
            ("0.5", 500_000_000),
            ("500ms", 500_000_000),
            ("2m", 120_000_000_000),
            ("2min", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("50us", 50_000),
            ("7ns", 7),
        ] {
            assert_eq!(span(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        assert_eq!(moment("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "-1", "1 s", "1.2.3", "1e3", "10sec", "nan", "inf", "0x10", &"9".repeat(99)] {
            let error = moment(wrong).unwrap_err();
            assert!(error.contains("10s, 500ms or 2m") && error.lines().count() == 1, "{wrong}: {error}");
        }
        assert!(span("0").is_err() && span("0ms").is_err());
        assert!(one_second_or_more("999ms").is_err() && one_second_or_more("1").is_ok());
    }

    #[test]
    fn a_size_is_a_number_of_mebibytes_or_has_a_unit() {
        for (text, bytes) in
            [("64", 64 << 20), ("64MiB", 64 << 20), ("1G", 1 << 30), ("64K", 65536), ("65536B", 65536)]
        {
            assert_eq!(trace_size(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "M",
            "10X",
            "-1",
            "1B",
            "0",
            "99999999999999999999",
            "16777216T",
            "1.5G",
            "1iB",
            "1MBB",
            "1K",
        ] {
            assert!(trace_size(wrong).is_err(), "{wrong}");
        }
        // were bytes once
        assert_eq!(size("65536"), Err("give a unit, such as 65536B or 65536K".to_owned()));
        assert_eq!(buffer_size("8"), Ok(8 << 20));
        for wrong in ["0", "1023K", "2G", "8388608"] {
            assert!(buffer_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_for_a_process_and_a_number_for_a_file_get_a_hint() {
        assert_eq!(pid("1234"), Ok(1234));
        assert_eq!(
            pid("train.py"),
            Err("give the number of a process; `pgrep -f train.py` prints it".to_owned())
        );
        for odd in ["a b", "$(reboot)", "-9", "", "\u{1b}[2J", "99999999999"] {
            let error = pid(odd).err().unwrap_or_default();
            assert!(odd == "99999999999" || error.contains("pgrep -f NAME"), "{odd:?}: {error}");
        }
        let hint = pid_not_path("/usr/lib/libcuda.so.1").unwrap_err();
        assert!(hint.contains("pgrep -f libcuda.so.1") && hint.ends_with("a library goes with -p"), "{hint}");
        assert!(!pid_not_path("abc").unwrap_err().contains("-p"));

        let parse = |word: &str| {
            let command =
                clap::Command::new("t").arg(clap::Arg::new("p").short('p').value_parser(path_not_pid()));
            command.try_get_matches_from(["t", "-p", word])
        };
        assert!(parse("libcuda.so").is_ok() && parse("./1234").is_ok());
        assert!(parse("1234").unwrap_err().to_string().contains("a process goes with -d: -d 1234"));
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
