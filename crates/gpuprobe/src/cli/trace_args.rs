//! The options of `trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::attach_args::AttachArgs;
use super::layer::Layer;
use super::record_args::GraphTimes;
use super::value_parsers::{path_not_pid, pid_not_path, share, span};

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Only this library, or program with CUDA linked in (repeatable); by default all that processes use
    #[arg(short = 'p', long = "path", value_name = "PATH", value_parser = path_not_pid())]
    pub(crate) paths: Vec<PathBuf>,
    /// Only this process (repeatable); by default every process of the host, including those that start later
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid_not_path)]
    pub(crate) pids: Vec<u32>,
    /// With -d: also the processes that these fork from now on
    #[arg(long, requires = "pids")]
    pub(crate) children: bool,
    /// Functions to trace (repeatable; `!GLOB` excludes some; `-e '*'` is all, including the hot ones)
    #[arg(short = 'e', long = "event", value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) events: Vec<String>,
    /// Of CUDA's two layers, trace the functions of this one only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layer: Layer,
    /// Also what the GPU executed, from processes that have loaded the agent (CUDA_INJECTION64_PATH). With `=nodes`, each
    /// node of a CUDA graph. It slows down these processes: see docs/guides/gpu-time.md
    #[arg(long, value_name = "GRAPHS", num_args = 0..=1, require_equals = true, default_missing_value = "graphs")]
    pub(crate) gpu_time: Option<GraphTimes>,
    /// Print no times in front of lines
    #[arg(short = 't', long = "no-time")]
    pub(crate) no_time: bool,
    /// Only the start of calls: no return probes, so no results and no durations, at about half the cost
    #[arg(short = 'r', long = "entries", conflicts_with_all = ["errors_only", "min_duration"])]
    pub(crate) entries: bool,
    /// The classic form: one line when a call starts and one when it returns
    #[arg(long)]
    pub(crate) phases: bool,
    /// Also calls made inside other calls, such as CUDA driver calls inside runtime calls, indented
    #[arg(long)]
    pub(crate) nested: bool,
    /// JSON lines, as in a trace file
    #[arg(long)]
    pub(crate) json: bool,
    /// Only calls that fail
    #[arg(long, conflicts_with = "phases")]
    pub(crate) errors_only: bool,
    /// Only calls that take at least this long, such as 50us or 1ms
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "phases")]
    pub(crate) min_duration: Option<Duration>,
    /// The most that probes may take of each process's time, such as 2%: functions whose calls cost more are sampled, and
    /// only a part of their calls is printed; `[1 of ~8]` after a call says that it stands for about 8
    #[arg(long, value_name = "PERCENT", value_parser = share, allow_hyphen_values = true, conflicts_with = "entries")]
    pub(crate) budget: Option<f64>,
    /// Stop after this many calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Stop after this long, such as 10s or 2m
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// At this interval, show the calls that have not returned yet, with their age
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "entries")]
    pub(crate) pending: Option<Duration>,
    /// Show the stack of each call, with source lines if there is debug information
    #[arg(long)]
    pub(crate) stack: bool,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
}
