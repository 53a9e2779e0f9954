//! The options of `stacks`.

use clap::Args;

use super::daemon_args::NvmlArgs;
use super::value_parsers::pid;

/// How often to look: enough to tell whether a thread moves.
pub(crate) const DEFAULT_SAMPLES: u32 = 5;

#[derive(Debug, Args)]
pub(crate) struct StacksArgs {
    /// Only this process (repeatable); by default every process that has a GPU open or a CUDA library mapped
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid)]
    pub(crate) pids: Vec<u32>,
    /// Also threads that are in no CUDA, NCCL or NVML call
    #[arg(long)]
    pub(crate) all_threads: bool,
    /// How often to look, a quarter of a second apart; three or more show whether a thread moves
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SAMPLES, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) samples: u32,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) nvml: NvmlArgs,
}
