//! The options of the daemon for recordings on demand.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::value_parsers::{directory_size, span};

#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct OnDemandArgs {
    /// Record a process when it is asked for, into this directory: by `POST /api/record`, which needs a password in
    /// --web-config, or by SIGUSR1, which takes the process that calls CUDA most. Costs nothing while nothing is recorded
    #[arg(long = "record-dir", value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The most that recordings take in --record-dir: the oldest are deleted first, and a recording that comes near
    /// this size alone ends
    #[arg(long = "record-dir-size", value_name = "SIZE", default_value = "1GiB", value_parser = directory_size)]
    pub(crate) dir_size: u64,
    /// How long a process is recorded if the request says nothing else
    #[arg(long = "record-time", value_name = "TIME", default_value = "10s", value_parser = span)]
    pub(crate) time: Duration,
    /// The longest time that a request may ask for
    #[arg(long = "record-time-limit", value_name = "TIME", default_value = "5m", value_parser = span)]
    pub(crate) time_limit: Duration,
}
