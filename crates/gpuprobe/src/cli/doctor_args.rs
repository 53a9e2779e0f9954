//! The options of `doctor`.

use std::time::Duration;

use clap::Args;
use gpuprobe_capture::Tier;

use super::value_parsers::{pid, span};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Report the libraries of this process instead of those of the host
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid)]
    pub(crate) pid: Option<u32>,
    /// Predict what it would cost to watch the running processes: calls are counted for a while and multiplied by the
    /// cost of a call on this machine
    #[arg(long)]
    pub(crate) cost: bool,
    /// With --cost: count calls for this long
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span, requires = "cost")]
    pub(crate) duration: Duration,
    /// With --cost: attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports
    #[arg(long, value_name = "TIER", requires = "cost")]
    pub(crate) attach: Option<Tier>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
