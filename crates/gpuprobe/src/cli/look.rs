//! The command lines of what looks at a trace: `report` and `timeline`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::moment;

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Write a page here that shows the whole recording and needs nothing else; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    /// The trace, `.jsonl` or `.jsonl.zst`; `-` is stdin
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// From this moment on, such as 1.5s or 200ms after the recording began [default: the first event]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) from: Option<Duration>,
    /// Up to this moment [default: the last event]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) to: Option<Duration>,
    /// Columns [default: those of the terminal, or 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=10_000))]
    pub(crate) width: Option<u16>,
}
