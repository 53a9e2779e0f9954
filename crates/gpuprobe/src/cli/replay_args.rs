//! The options of the commands that show a recorded trace: `report` and `timeline`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::summary_args::SummaryArgs;
use super::value_parsers::moment;

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Write an HTML page with the whole recording to this file; it loads nothing else; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) summary: SummaryArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Start of the shown range, such as 1.5s or 200ms after the recording began [default: the first event]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) from: Option<Duration>,
    /// End of the shown range [default: the last event]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) to: Option<Duration>,
    /// Width in columns [default: that of the terminal, or 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=10_000))]
    pub(crate) width: Option<u16>,
}
