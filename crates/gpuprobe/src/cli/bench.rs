//! The command line of `bench`.

use clap::Args;
use gpuprobe_capture::Tier;

use super::up_to;

const MOST_ROUNDS: i64 = 100_000;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Attach by `session`, `multi` or `perf` only, and not by each that the kernel has
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    /// How often each mode has its turn, a thousand calls at a time
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = up_to(MOST_ROUNDS))]
    pub(crate) rounds: u32,
    /// Fail where a ratio is more than a tenth above what is aimed at
    #[arg(long)]
    pub(crate) check: bool,
    /// A command that puts probes into `cuCtxSynchronize` of the library $GPUPROBE_LIBRARY, to be measured in turn with
    /// ours. It gets a SIGINT at the end
    #[arg(long, value_name = "COMMAND")]
    pub(crate) beside: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
