//! The options that select events of a recorded trace, shared by `report`, `timeline`, `convert` and `diff`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use gpuprobe_analysis::{EventFilter, FunctionPattern, KernelPattern};
use gpuprobe_event::{Tgid, Tid};
use gpuprobe_output::units::duration;

use super::value_parsers::{moment, recorded_pid, recorded_tid, span};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct FilterArgs {
    /// Only this process (repeatable)
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = recorded_pid)]
    pub(crate) pids: Vec<u32>,
    /// Only this thread, by its id (repeatable)
    #[arg(long = "thread", value_name = "TID", value_parser = recorded_tid)]
    pub(crate) threads: Vec<u32>,
    /// Only calls of these functions (repeatable; `!GLOB` excludes some). Bytes are part of the outermost call
    #[arg(short = 'e', long = "event", value_name = "GLOB", allow_hyphen_values = true,
          value_parser = function_pattern)]
    pub(crate) events: Vec<FunctionPattern>,
    /// Only launches of CUDA kernels whose name contains this text or matches it as a glob (repeatable)
    #[arg(long = "kernel-name", value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) kernel_names: Vec<String>,
    /// Only calls that took at least this long, such as 50us or 1ms, and those that did not return
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) min_duration: Option<Duration>,
    /// Only what happened from this time of the recording on, such as 10, 10s or 500ms
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) from: Option<Duration>,
}

impl FilterArgs {
    /// The filter, with this end of the time range.
    pub(crate) fn filter(&self, to: Option<Duration>) -> Result<EventFilter> {
        if to.is_some_and(|to| self.from.unwrap_or_default() >= to) {
            bail!("the end of the time range is not after its start (--from): give a later time");
        }
        Ok(EventFilter {
            pids: self.pids.iter().copied().map(Tgid).collect(),
            tids: self.threads.iter().copied().map(Tid).collect(),
            functions: self.events.clone(),
            kernels: self.kernel_names.iter().map(|name| KernelPattern::new(name)).collect(),
            from_ns: self.from.map(nanoseconds),
            to_ns: to.map(nanoseconds),
            min_ns: self.min_duration.map(nanoseconds),
            text: self.in_words(to),
        })
    }

    /// The given options, as on a command line.
    fn in_words(&self, to: Option<Duration>) -> String {
        let mut words: Vec<String> = self.pids.iter().map(|pid| format!("--pid {pid}")).collect();
        words.extend(self.threads.iter().map(|tid| format!("--thread {tid}")));
        words.extend(self.events.iter().map(|of| {
            let sign = if of.is_excluded { "!" } else { "" };
            format!("-e {sign}{}", of.pattern.as_str())
        }));
        words.extend(self.kernel_names.iter().map(|name| format!("--kernel-name {name:?}")));
        let time = |option: &str, time: Option<Duration>| {
            time.map(|time| format!("{option} {}", duration(nanoseconds(time)).replace(' ', "")))
        };
        words.extend(time("--min-duration", self.min_duration));
        words.extend(time("--from", self.from));
        words.extend(time("--to", to));
        words.join(" ")
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn function_pattern(text: &str) -> Result<FunctionPattern, String> {
    let (glob, is_excluded) = text.strip_prefix('!').map_or((text, false), |glob| (glob, true));
    if glob.is_empty() {
        return Err("give the name of a function or a glob, such as 'cudaMalloc*'".to_owned());
    }
    match glob::Pattern::new(glob) {
        Ok(pattern) => Ok(FunctionPattern { pattern, is_excluded }),
        Err(error) => Err(format!("{error}: give the name of a function or a glob, such as 'cudaMalloc*'")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn report(words: &[&str]) -> Result<EventFilter, String> {
        match Cli::try_parse_from([&["gpuprobe", "report", "t"], words].concat()) {
            Ok(Cli { command: Some(Command::Report(args)), .. }) => {
                args.filter.filter(args.to).map_err(|e| e.to_string())
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_become_a_filter_and_its_words() {
        assert!(report(&[]).unwrap().is_empty());
        let words = "--pid 7 --thread 8 -e cuda* -e !cudaFree --min-duration 1ms --from 10 --to 11.5s";
        let filter = report(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(filter.text, words.replace("10 ", "10.0s ").replace("1ms", "1.0ms"));
        assert_eq!((filter.pids, filter.tids), (vec![Tgid(7)], vec![Tid(8)]));
        assert_eq!((filter.from_ns, filter.to_ns), (Some(10_000_000_000), Some(11_500_000_000)));
        assert_eq!(filter.min_ns, Some(1_000_000));
        assert!(filter.functions[1].is_excluded);
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            ["--pid", "x"],
            ["-e", "["],
            ["-e", "!"],
            ["--kernel-name", ""],
            ["--from", "1x"],
            ["--to", "x"],
            ["--min-duration", "0"],
            ["--to", "0"],
        ] {
            assert!(report(&wrong).is_err(), "{wrong:?}");
        }
        assert!(report(&["--from", "2", "--to", "1500ms"]).unwrap_err().contains("--from"));
    }
}
