//! The options of the commands that record: `run` and `record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};

use super::attach_args::AttachArgs;
use super::daemon_args::NvmlArgs;
use super::layer::Layer;
use super::summary_args::SummaryArgs;
use super::user_args::UserArgs;
use super::value_parsers::{MaxSize, max_size, mode, pid, share, span, trace_size};

/// How the executions of CUDA graphs are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphTimes {
    /// Each launch of a graph is one execution
    Graphs,
    /// Each node of a graph is one
    Nodes,
}

/// What is recorded, and to which file.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct RecordingArgs {
    /// Functions to trace (repeatable; `!GLOB` excludes some; `-e '*'` is all, including the hot ones)
    #[arg(short = 'e', long = "event", value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) events: Vec<String>,
    /// Of CUDA's two layers, record the functions of this one only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layer: Layer,
    /// Also account for the tensors of PyTorch: live tensors by call site, and what it has reserved, uses and caches on
    /// each GPU. Costs some microseconds for each tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Also record when the GPU executed what was submitted, by an agent inside the process that uses CUPTI: `run` loads
    /// it into the command, and other processes need it in CUDA_INJECTION64_PATH when they start. With `=nodes`, each
    /// node of a CUDA graph is recorded, and not the graph as a whole. It slows down the program: see docs/guides/gpu-time.md
    #[arg(long, value_name = "GRAPHS", num_args = 0..=1, require_equals = true, default_missing_value = "graphs")]
    pub(crate) gpu_time: Option<GraphTimes>,
    /// The classic form: one line when a call starts and one when it returns
    #[arg(long)]
    pub(crate) phases: bool,
    /// Also record the stacks of launches, copies, waits and failed calls, for flame graphs (`convert --to folded`) and
    /// the call sites in the summary; allocations always have theirs
    #[arg(long)]
    pub(crate) stack: bool,
    /// Trace file; it is compressed if the name ends in .zst; `-` is stdout, for `record` [default:
    /// traces/trace_<time>.jsonl, with the link traces/trace_latest.jsonl to it]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Permissions of the trace, in octal, such as 0644 [default: 0600 for a new file; an existing file keeps its own]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub(crate) mode: Option<u32>,
    /// Keep at most this much on disk, such as 500M or 2G: the trace is split into segments (t.jsonl, t.2.jsonl, ...),
    /// and the oldest ones are removed; `none` or 0 for no limit. Calls that wait to be decoded may take as much again
    /// for a while. Part of the disk always stays free: 1 GiB, or less on a small disk [default: 4G]
    #[arg(long, value_name = "SIZE", value_parser = max_size)]
    pub(crate) max_size: Option<MaxSize>,
    /// The trace is one file, and the recording ends when that reaches --max-size. For recordings of the daemon.
    #[arg(skip)]
    pub(crate) in_one_file: bool,
    /// Start a new segment when one reaches this size [default: a quarter of --max-size]
    #[arg(long, value_name = "SIZE", value_parser = trace_size)]
    pub(crate) segment_size: Option<u64>,
    /// The most that probes may take of each process's time, such as 2%: functions whose calls cost more are
    /// sampled and their counts estimated, except those that track live memory
    #[arg(long, value_name = "PERCENT", value_parser = share, allow_hyphen_values = true)]
    pub(crate) budget: Option<f64>,
    /// Lose no calls: the program waits while it makes calls faster than gpuprobe can store them, but at most a second if
    /// gpuprobe stores nothing. See docs/results/performance.md for the cost
    #[arg(long, conflicts_with = "budget")]
    pub(crate) lossless: bool,
    /// Also count in the BPF programs, as the daemon does, and compare every figure of the summary with those counts;
    /// fails if one differs. With -e, select frees along with allocations: memory is also counted at functions that
    /// are not selected
    #[arg(long, conflicts_with_all = ["budget", "phases"])]
    pub(crate) verify: bool,
    /// Print no progress line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) summary: SummaryArgs,
    #[command(flatten)]
    pub(crate) nvml: NvmlArgs,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) recording: RecordingArgs,
    #[command(flatten)]
    pub(crate) user: UserArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("who").required(true).args(["pids", "all"])))]
pub(crate) struct RecordArgs {
    /// Record this process (repeatable)
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid)]
    pub(crate) pids: Vec<u32>,
    /// Record every process of the host, including those that start later
    #[arg(long)]
    pub(crate) all: bool,
    /// With -d: also the processes that these fork from now on
    #[arg(long, conflicts_with = "all")]
    pub(crate) children: bool,
    /// Probe the return of every launch. Otherwise, where the Linux kernel has sessions (6.13), one in 16 is probed on
    /// average, and what is new or follows a failure: launches cost half as much, the times of the others are
    /// estimated, and one that fails like no other before may not be seen to fail. With --stack, --phases, --verify,
    /// --gpu-time, --driver and hooks in the Linux kernel, every return is probed
    #[arg(long)]
    pub(crate) all_launch_returns: bool,
    /// Stop after this long, such as 10s or 2m [default: at Ctrl-C, or when the processes have exited]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    #[command(flatten)]
    pub(crate) recording: RecordingArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn record_requires_pids_or_all() {
        let parse = |words: &[&str]| Cli::try_parse_from([&["gpuprobe", "record"], words].concat());
        for wrong in
            [&[][..], &["--duration", "1"], &["-d", "1", "--all"], &["--all", "--children"], &["--all", "x"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let Some(Command::Record(args)) =
            parse(&["-d", "7", "--duration", "0.5", "-o", "t.zst"]).unwrap().command
        else {
            panic!("record")
        };
        assert_eq!((args.pids, args.duration), (vec![7], Some(Duration::from_millis(500))));
    }
}
