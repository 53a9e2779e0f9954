//! The options of `convert`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use gpuprobe_output::{Target, Weight};

use super::filter_args::FilterArgs;
use super::value_parsers::moment;

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin. Several traces of one job, from several hosts, are converted
    /// to one file with a common clock
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// `chrome` is JSON for chrome://tracing, Perfetto and speedscope; `perfetto` is Perfetto's own format, half
    /// the size; both have a track for each stream; `folded` is stacks with microseconds, for flame graphs; `parquet` is
    /// a table with a row for each event, for DuckDB and pandas
    #[arg(long, value_name = "FORMAT", value_parser = target())]
    to: Target,
    /// The numbers in `folded`: `time` is microseconds in a call itself, `waiting` microseconds in calls that wait for
    /// the GPU, `launches` those of CUDA kernels and graphs, `allocated` bytes [default: time]
    #[arg(long, value_name = "WHAT", value_parser = weight())]
    weight: Option<Weight>,
    /// Output file; `-` is stdout [default: stdout if it is not a terminal, otherwise a file next to the trace]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only what began before this time of the recording (`--to` of other commands)
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Filters")]
    pub(crate) until: Option<Duration>,
}

impl ConvertArgs {
    /// The output format.
    pub(crate) fn target(&self) -> Result<Target> {
        match (self.to, self.weight) {
            (target, None) => Ok(target),
            (Target::Folded(_), Some(weight)) => Ok(Target::Folded(weight)),
            (target, Some(_)) => bail!("--weight is for --to folded, not {}", target.as_str()),
        }
    }
}

fn weight() -> impl TypedValueParser<Value = Weight> {
    PossibleValuesParser::new(Weight::ALL.map(Weight::as_str)).try_map(|word| {
        Weight::ALL.into_iter().find(|weight| weight.as_str() == word).ok_or("no such weight")
    })
}

fn target() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(Target::ALL.map(Target::as_str)).try_map(|word| {
        Target::ALL.into_iter().find(|target| target.as_str() == word).ok_or("no such format")
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use clap::Parser;

    #[test]
    fn a_trace_and_a_format_are_required() {
        let parse = |words: &[&str]| Cli::try_parse_from([&["gpuprobe", "convert"], words].concat());
        let Some(Command::Convert(args)) = parse(&["-", "--to", "folded", "-o", "-"]).unwrap().command else {
            panic!("convert")
        };
        assert_eq!(
            (args.traces[0].to_str(), args.target().unwrap()),
            (Some("-"), Target::Folded(Weight::Time))
        );
        assert_eq!(args.output, Some(PathBuf::from("-")));
        for wrong in [&["t"][..], &["--to", "chrome"], &["t", "--to", "svg"], &["t", "--to"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_folded_stacks_have_a_weight() {
        let target = |words: &[&str]| {
            let command = [&["gpuprobe", "convert", "-"], words].concat();
            let Some(Command::Convert(args)) = Cli::try_parse_from(command).unwrap().command else {
                panic!("convert")
            };
            args.target().map_err(|error| error.to_string())
        };
        let launches = target(&["--to", "folded", "--weight", "launches"]);
        assert_eq!(launches, Ok(Target::Folded(Weight::Launches)));
        let chrome = target(&["--to", "chrome", "--weight", "calls"]);
        assert_eq!(chrome, Err("--weight is for --to folded, not chrome".to_owned()));
    }
}
