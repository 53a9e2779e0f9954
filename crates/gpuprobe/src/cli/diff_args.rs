//! The options of `diff`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use super::filter_args::FilterArgs;
use super::value_parsers::{change, moment};

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Two traces, `.jsonl` or `.jsonl.zst`, of which one may be `-` for stdin; or the traces of one job from several
    /// hosts
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// The traces of the job that is compared with it
    #[arg(value_name = "OTHER", last = true)]
    others: Vec<PathBuf>,
    /// Also compare the time in calls by function; without this, counts and bytes only
    #[arg(long)]
    pub(crate) times: bool,
    /// Names of CUDA kernels in full, with namespaces, template arguments and parameters
    #[arg(long)]
    pub(crate) full_names: bool,
    /// End with status 1 if any compared figure changed by more than this, such as 10%; what is new counts as more
    #[arg(long, value_name = "PERCENT", value_parser = change)]
    pub(crate) fail_above: Option<f64>,
    /// Print one JSON object on one line, with complete names and all differences
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only what began before this time of the recordings
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Filters")]
    pub(crate) to: Option<Duration>,
}

impl DiffArgs {
    /// The traces of both sides.
    pub(crate) fn sides(&self) -> Result<[&[PathBuf]; 2]> {
        match (self.traces.as_slice(), self.others.as_slice()) {
            ([before, after], []) => Ok([std::slice::from_ref(before), std::slice::from_ref(after)]),
            (_, []) => {
                bail!("give two traces, or those of two jobs with -- between them: diff A1 A2 -- B1 B2")
            }
            sides => Ok(sides.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};

    fn sides(words: &str) -> Result<[usize; 2], String> {
        let words = format!("gpuprobe diff {words}");
        let Some(Command::Diff(args)) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
            panic!("diff")
        };
        args.sides().map(|sides| sides.map(<[_]>::len)).map_err(|error| error.to_string())
    }

    #[test]
    fn two_traces_or_two_jobs_are_compared() {
        assert_eq!(sides("a b --json"), Ok([1, 1]));
        assert_eq!(sides("--times a b -- c d e"), Ok([2, 3]));
        assert_eq!(sides("a -- b"), Ok([1, 1]));
        for wrong in ["a", "a b c"] {
            assert!(sides(wrong).unwrap_err().contains("diff A1 A2 -- B1 B2"), "{wrong}");
        }
    }
}
