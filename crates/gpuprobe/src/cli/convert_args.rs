//! The options of `convert`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use gpuprobe_output::Target;

use super::filter_args::FilterArgs;
use super::value_parsers::moment;

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// `chrome` is JSON for chrome://tracing, Perfetto and speedscope; `perfetto` is Perfetto's own format, half
    /// the size; both have a track for each stream; `folded` is stacks with microseconds, for flame graphs
    #[arg(long, value_name = "FORMAT", value_parser = target())]
    pub(crate) to: Target,
    /// Output file; `-` is stdout [default: stdout if it is not a terminal, otherwise a file next to the trace]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only what began before this time of the recording (`--to` of other commands)
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Filters")]
    pub(crate) until: Option<Duration>,
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
        assert_eq!((args.trace.to_str(), args.to), (Some("-"), Target::Folded));
        assert_eq!(args.output, Some(PathBuf::from("-")));
        for wrong in [&["t"][..], &["--to", "chrome"], &["t", "--to", "svg"], &["t", "--to"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
