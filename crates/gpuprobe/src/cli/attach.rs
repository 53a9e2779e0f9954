//! What every command that records calls has in common.

use std::path::PathBuf;

use clap::Args;
use gpuprobe_capture::Tier;

use crate::kernel::{Chosen, DEVICES_ALONE};

/// How calls are recorded; the same for every command that records some.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct AttachArgs {
    /// Attach by `session`, `multi` or `perf` instead of the best that the kernel has
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    /// Size of the ring buffer between kernel and gpuprobe, in MiB (rounded up to a power of two)
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) buffer: Option<u32>,
    /// Also what is asked of the driver beneath: ioctl, mmap, open and poll on /dev/nvidia*, each in the call that makes it;
    /// with a value, also functions of the kernel of these names, such as 'uvm_*' (repeatable)
    #[arg(long, value_name = "GLOB", num_args = 0..=1, require_equals = true, default_missing_value = DEVICES_ALONE)]
    pub(crate) kernel: Vec<String>,
    /// Also the functions that this file names, of any library or of the kernel, and tracepoints (repeatable);
    /// examples/hooks has some
    #[arg(long, value_name = "FILE")]
    pub(crate) hooks: Vec<PathBuf>,
    /// What these two stand for on this kernel
    #[arg(skip)]
    pub(crate) chosen: Chosen,
    /// Tell what was found, attached and skipped
    #[arg(short, long)]
    pub(crate) verbose: bool,
}
