//! The options of `diff`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::filter_args::FilterArgs;
use super::value_parsers::{change, moment};

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The first trace, `.jsonl` or `.jsonl.zst`; `-` is stdin
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,
    /// The trace that is compared with it
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,
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
