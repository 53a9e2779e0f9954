//! The options of `bench`.

use clap::Args;
use gpuprobe_capture::Tier;

use super::value_parsers::up_to;

const MOST_ROUNDS: i64 = 100_000;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Attach only by `session`, `multi` or `perf` instead of by each that the Linux kernel supports
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    /// Number of rounds; each mode makes a thousand calls per round
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = up_to(MOST_ROUNDS))]
    pub(crate) rounds: u32,
    /// Fail if a ratio is more than a tenth above its target
    #[arg(long)]
    pub(crate) check: bool,
    /// A command that probes `cuCtxSynchronize` of the library $GPUPROBE_LIBRARY, to be compared with gpuprobe. It
    /// gets a SIGINT at the end
    #[arg(long, value_name = "COMMAND")]
    pub(crate) beside: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
