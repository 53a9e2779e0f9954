//! The command lines of what records: `run` and `record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::budget::share;
use super::{AttachArgs, seconds};

/// What is recorded, and where it goes.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct RecordingArgs {
    /// Functions to trace (repeatable; `!GLOB` leaves some out; `-e '*'` is all, the hot ones too)
    #[arg(short = 'e', long = "event", value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) events: Vec<String>,
    /// The classic form: a line when a call begins and one when it has returned
    #[arg(long)]
    pub(crate) phases: bool,
    /// Write the trace here; a name that ends in .zst is compressed; `-` is stdout, for `record` [default: traces/trace_<time>.jsonl, with
    /// traces/trace_latest.jsonl pointing at it]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Permissions of the trace, in octal, such as 0644 [default: 0600 for a new file; one that is there keeps its own]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub(crate) mode: Option<u32>,
    /// Keep no more than this on disk, such as 500M or 2G: the trace is cut into segments (t.jsonl, t.2.jsonl, ...), and the
    /// oldest ones go
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_size: Option<u64>,
    /// Begin another segment whenever one has this size [default: with --max-size a quarter of it]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) segment_size: Option<u64>,
    /// What probes may take of each process's time, such as 2%: functions whose calls cost more are left out for a while, but
    /// for those that live memory is made of
    #[arg(long, value_name = "PERCENT", value_parser = share, allow_hyphen_values = true)]
    pub(crate) budget: Option<f64>,
    /// Also count in the kernel, as the daemon does, and compare every figure of the summary with those counts; fails if one
    /// differs. With -e, select frees along with allocations: memory is counted at functions that are not selected, too
    #[arg(long, conflicts_with_all = ["budget", "phases"])]
    pub(crate) verify: bool,
    /// No progress line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) recording: RecordingArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("who").required(true).args(["pids", "all"])))]
pub(crate) struct RecordArgs {
    /// This process (repeatable)
    #[arg(short = 'd', long = "pid", value_name = "PID")]
    pub(crate) pids: Vec<u32>,
    /// Every process of the host, also those that begin later
    #[arg(long)]
    pub(crate) all: bool,
    /// With -d: also what these processes fork from now on
    #[arg(long, conflicts_with = "all")]
    pub(crate) children: bool,
    /// End after so many seconds [default: at Ctrl-C, or when the processes have ended]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    #[command(flatten)]
    pub(crate) recording: RecordingArgs,
}

/// Permissions as `chmod` takes them: for reading and writing, and its owner may do both.
fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| "give permissions in octal, such as 0600, 0640 or 0644".to_owned())
}

/// A number of bytes, with K, M, G or T for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
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
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

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
    fn a_recording_of_what_runs_names_who_is_recorded() {
        let parse = |words: &[&str]| Cli::try_parse_from([&["gpuprobe", "record"], words].concat());
        for wrong in
            [&[][..], &["--duration", "1"], &["-d", "1", "--all"], &["--all", "--children"], &["--all", "x"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let Some(Command::Record(args)) =
            parse(&["-d", "7", "--duration", "0.5", "-o", "t.zst"]).unwrap().command
        else {
            panic!("record")
        };
        assert_eq!((args.pids, args.duration), (vec![7], Some(Duration::from_millis(500))));
    }
}
