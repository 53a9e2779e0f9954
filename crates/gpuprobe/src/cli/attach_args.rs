//! Options that all commands that capture calls share.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use gpuprobe_capture::{LinuxFunctionHook, Tier, TracepointHook};
use gpuprobe_event::Hooks;

use super::value_parsers::buffer_size;

/// The value of `--driver` without a glob: only the device files of the NVIDIA kernel module.
pub(crate) const DEVICES_ONLY: &str = "";

/// How calls are captured.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct AttachArgs {
    /// Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    /// Size of the ring buffer between the Linux kernel and gpuprobe, such as 64MiB (rounded up to a power of two)
    #[arg(long, value_name = "SIZE", value_parser = buffer_size)]
    pub(crate) buffer: Option<u32>,
    /// Also record requests to the NVIDIA kernel module: ioctl, mmap, open and poll on /dev/nvidia*, each inside the
    /// call that makes it; with a value, also Linux kernel functions of these names, such as 'uvm_*' (repeatable)
    #[arg(long, alias = "kernel", value_name = "GLOB", num_args = 0..=1, require_equals = true, default_missing_value = DEVICES_ONLY)]
    pub(crate) driver: Vec<String>,
    /// Also probe the functions that this file names, of any library or of the Linux kernel, and tracepoints
    /// (repeatable); examples/hooks has some
    #[arg(long, value_name = "FILE")]
    pub(crate) hooks: Vec<PathBuf>,
    /// What `--driver` and `--hooks` resolve to on this host. `linux_hooks::resolve` fills it in.
    #[arg(skip)]
    pub(crate) resolved: ResolvedHooks,
    /// Report what was found, attached and skipped
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// The probes of the Linux kernel and of hooked libraries that `--driver` and `--hooks` ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResolvedHooks {
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) functions: Vec<LinuxFunctionHook>,
    pub(crate) tracepoints: Vec<TracepointHook>,
}
