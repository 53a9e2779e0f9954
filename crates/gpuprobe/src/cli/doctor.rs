//! The command line of `doctor`.

use std::time::Duration;

use clap::Args;
use gpuprobe_capture::Tier;

use super::seconds;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The libraries of this process instead of those of the host
    #[arg(short = 'd', long = "pid", value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// What watching what runs now would cost: calls are counted for a while, and multiplied by what a call costs here
    #[arg(long)]
    pub(crate) cost: bool,
    /// With --cost: count calls for so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, requires = "cost")]
    pub(crate) duration: Duration,
    /// With --cost: attach by `session`, `multi` or `perf` instead of the best that the kernel has
    #[arg(long, value_name = "TIER", requires = "cost")]
    pub(crate) attach: Option<Tier>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
