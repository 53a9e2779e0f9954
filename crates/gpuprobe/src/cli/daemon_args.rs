//! The options of the daemon. They are also the keys of its settings file.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gpuprobe_capture::Tier;
use gpuprobe_output::{Aggregate, SeriesSettings};

use super::attach_args::DEVICES_ONLY;
use super::on_demand_args::OnDemandArgs;
use super::otlp_args::OtlpArgs;
use super::value_parsers::{
    aggregate, metrics_addr, moment, one_second_or_more, path_not_pid, pid_not_path, share, span, up_to,
};

/// How often the whole host is scanned again, and libraries that no process uses are detached.
pub(crate) const RESCAN: Duration = Duration::from_secs(10);
const MOST_ROWS: i64 = 1 << 20;
const MOST_ALLOCATIONS: i64 = 1 << 26;

/// Where information about the host's GPUs comes from.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct NvmlArgs {
    /// Folder in which the NVIDIA kernel module lists the host's GPUs; set it if the host's /proc is mounted elsewhere
    #[arg(long, value_name = "DIR", default_value = gpuprobe_discover::NVIDIA_PROC_FOLDER)]
    pub(crate) driver_folder: PathBuf,
    /// NVIDIA's management library (NVML), a name for the loader or a path; with `off` the state of GPUs is not read
    #[arg(long, value_name = "LIBRARY", default_value = gpuprobe_capture::NVML_LIBRARY)]
    pub(crate) nvml: OsString,
}

impl Default for NvmlArgs {
    fn default() -> Self {
        Self {
            driver_folder: gpuprobe_discover::NVIDIA_PROC_FOLDER.into(),
            nvml: gpuprobe_capture::NVML_LIBRARY.into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct DaemonArgs {
    /// Settings file: any of these options by its long name, such as `display_interval = 0`; options on the command
    /// line take precedence. Read again at SIGHUP [default: /etc/gpuprobe/gpuprobe.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Memory: allocations, frees, and live memory by process and call site with its growth
    #[arg(long)]
    pub(crate) memleak: bool,
    /// Display each live address with its size instead of call sites: the classic form
    #[arg(long)]
    pub(crate) addresses: bool,
    /// Also account for the tensors of PyTorch: live tensors by call site, and what it has reserved, uses and caches on
    /// each GPU. Costs some microseconds for each tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Collect GPU times for so many seconds of every minute, from processes that have loaded the agent
    /// (CUDA_INJECTION64_PATH): `gpuprobe_gpu_kernel_seconds_total`. It slows these processes down meanwhile: see
    /// docs/guides/gpu-time.md
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) gpu_time: Option<u64>,
    /// Also show on /api/stacks what the threads of GPU processes wait for, to everyone who may read the metrics
    #[arg(long)]
    pub(crate) stacks: bool,
    /// CUDA kernel launches
    #[arg(long)]
    pub(crate) cudatrace: bool,
    /// Copies and their bandwidth
    #[arg(long)]
    pub(crate) bandwidth_util: bool,
    /// Requests to the NVIDIA kernel module: ioctls on /dev/nvidia* by command, and each function's time in them. Costs
    /// every process of the host some 0.1 us per system call. With a value, also Linux kernel functions of these names,
    /// such as 'uvm_*' (repeatable)
    #[arg(long, alias = "kernel", value_name = "GLOB", num_args = 0..=1, require_equals = true, default_missing_value = DEVICES_ONLY)]
    pub(crate) driver: Vec<String>,
    /// Address for the metrics endpoint, as HOST:PORT; only this host can reach the default, 0.0.0.0:9000 is for all
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000", value_parser = metrics_addr)]
    pub(crate) metrics_addr: SocketAddr,
    /// TLS and passwords for the endpoint: a YAML file in the form that Prometheus exporters use, read again when it
    /// changes
    #[arg(long, value_name = "FILE")]
    pub(crate) web_config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) otlp: OtlpArgs,
    #[command(flatten)]
    pub(crate) on_demand: OnDemandArgs,
    /// Time between displays; 0 for none
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = moment)]
    pub(crate) display_interval: Duration,
    /// Only this process and the processes it forks (repeatable)
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid_not_path)]
    pub(crate) pids: Vec<u32>,
    /// A library to watch in addition to those found on the host (repeatable)
    #[arg(short = 'p', long = "path", value_name = "PATH", value_parser = path_not_pid())]
    pub(crate) paths: Vec<PathBuf>,
    /// Also count the functions that this file names, of any library or of the Linux kernel, and tracepoints
    /// (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) hooks: Vec<PathBuf>,
    /// Also count the calls of functions that match this glob and are not counted otherwise, such as cudaGetDevice:
    /// only their entries, without times and errors, at about half the cost (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) calls_only: Vec<String>,
    /// Count calls of the CUDA runtime that allocate, free, copy or fill and fail before they reach the CUDA driver by
    /// a second pair of probes on each such call. Without it they are counted at instructions that only failing calls
    /// run, at no cost to others, in x86-64 code and if the runtime could be initialized
    #[arg(long)]
    pub(crate) runtime_failures: bool,
    /// Probe the return of every launch. Otherwise, where the Linux kernel has sessions (6.13), one in 16 is probed on
    /// average, and what is new or follows a failure: launches cost less, their times are estimated, and one that
    /// fails like no other before may not be seen to fail
    #[arg(long)]
    pub(crate) all_launch_returns: bool,
    /// Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    /// The most that probes may take of each process's time, such as 2%: functions whose calls cost more are
    /// sampled and their counts estimated, except those that track live memory
    #[arg(long, value_name = "PERCENT", value_parser = share, allow_hyphen_values = true)]
    pub(crate) budget: Option<f64>,
    /// Most processes counted at once; each takes 900 bytes of Linux kernel memory, 7 MB by default
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_processes: u32,
    /// Most live allocations of all processes; each takes 16 bytes of Linux kernel memory and 104 more while it is
    /// live: 17 to 126 MB by default. A process keeps up to a 256th of them for addresses that it has freed
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = up_to(MOST_ALLOCATIONS))]
    pub(crate) max_allocations: u32,
    /// Most pairs of a process and a function counted at once; each takes 100 bytes of Linux kernel memory and 290 per
    /// CPU, 1 MB and 3 MB per CPU by default
    #[arg(long, value_name = "N", default_value_t = 10_240, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_counters: u32,
    /// Most CUDA kernels counted at once, on each stream of each process; each takes 330 bytes of Linux kernel memory
    /// and 60 more while it is counted, 5 MB by default
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_kernels: u32,
    /// Which processes have common metrics: `process` (each its own), all of one `name`, `container` or `pod`
    #[arg(long, value_name = "LABEL", default_value = "process", value_parser = aggregate())]
    pub(crate) aggregate: Aggregate,
    /// Most running processes with their own metrics, those with the most live memory first. All others are added up by
    /// name, so that a scrape stays small. Each takes some 20 kB of a scrape, 1 MB by default
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_series_processes: u32,
    /// Time for which an exited process keeps its own metrics, so that the last scrape sees them; after that its
    /// totals are added to those of its name
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = span)]
    pub(crate) keep_exited: Duration,
    /// Most exited processes with their own metrics, for as long as --keep-exited says; the totals of others are added
    /// up by name. Each takes some 20 kB of a scrape
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_exited: u32,
    /// Time between scans of all processes and folders. New libraries are found at once; these scans detach the
    /// libraries that are no longer used
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = one_second_or_more)]
    pub(crate) rescan: Duration,
    /// Time between two readings of the counters; metrics are at most this old
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    pub(crate) refresh: Duration,
    #[command(flatten)]
    pub(crate) nvml: NvmlArgs,
    /// Folder in which the kubelet keeps links to the logs of containers: pod names are taken from them
    #[arg(long, value_name = "DIR", default_value = gpuprobe_discover::CONTAINER_LOGS)]
    pub(crate) container_logs: PathBuf,
    /// Time in which a call site may grow before it is suspected of a leak; always at least a quarter of its age
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = span)]
    pub(crate) warm_up: Duration,
    /// Report what was found, attached and skipped
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

impl DaemonArgs {
    /// How many series processes have.
    pub(crate) fn series(&self) -> SeriesSettings {
        SeriesSettings {
            aggregate: self.aggregate,
            most: self.max_series_processes as usize,
            most_exited: self.max_exited as usize,
            change_every: self.keep_exited,
        }
    }
}
