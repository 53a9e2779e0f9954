//! The options of the commands that show a recorded trace: `report` and `timeline`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::filter_args::FilterArgs;
use super::summary_args::SummaryArgs;
use super::value_parsers::moment;

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin. Several traces of one job, from several hosts, are shown as
    /// one, with the ranks that others wait for
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Write an HTML page with the whole recording to this file; it loads nothing else; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print the summary as one JSON object on one line, with times in nanoseconds and complete names
    #[arg(long, conflicts_with = "html")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) summary: SummaryArgs,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only what began before this time of the recording
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Filters")]
    pub(crate) to: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin. Several traces of one job, from several hosts, are shown on a
    /// common clock
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Width in columns [default: that of the terminal, or 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=10_000))]
    pub(crate) width: Option<u16>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only what began before this time of the recording
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Filters")]
    pub(crate) to: Option<Duration>,
}
