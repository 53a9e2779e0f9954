//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use gpuprobe_capture::Tier;

/// What any process does to the NVIDIA GPUs of this host, live, without changing the process.
#[derive(Debug, Parser)]
#[command(
    name = "gpuprobe",
    version,
    about,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    before_help = "Examples:
  gpuprobe demo                              see it work, without a GPU
  sudo gpuprobe run -- python train.py       record a command's CUDA calls, then sum them up
  sudo gpuprobe --memleak                    who holds GPU memory, every 5 seconds, and metrics on :9000
  sudo gpuprobe doctor                       what this machine can do, and what it lacks"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command, record its CUDA calls and those of its children, and print a summary
    Run(RunArgs),
    /// Watch every CUDA process of the host: counts, live memory, metrics (the same as giving its flags alone)
    Daemon(DaemonArgs),
    /// List the functions that can be traced, with their signatures; those found on this host are marked
    List(ListArgs),
    /// Say what this machine can do: kernel, privileges, libraries
    Doctor(DoctorArgs),
    /// Run a built-in program under the probes; needs no GPU and no CUDA
    Demo(DemoArgs),
    #[command(name = "__exec", hide = true)]
    Exec(ExecArgs),
    #[command(name = "__guard", hide = true)]
    Guard(GuardArgs),
}

/// How probes are attached; the same for every command that attaches some.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct AttachArgs {
    /// Attach by `session`, `multi` or `perf` instead of the best that the kernel has
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    /// Size of the ring buffer between kernel and gpuprobe, in MiB (rounded up to a power of two)
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) buffer: Option<u32>,
    /// Tell what was found, attached and skipped
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Functions to trace (repeatable; `!GLOB` leaves some out; `-e '*'` is all, the hot ones too)
    #[arg(short = 'e', long = "event", value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) events: Vec<String>,
    /// Write the trace here [default: traces/trace_<time>.jsonl, with traces/trace_latest.jsonl pointing at it]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DaemonArgs {
    /// Memory: allocations, frees, what is live, by process
    #[arg(long)]
    pub(crate) memleak: bool,
    /// Kernel launches
    #[arg(long)]
    pub(crate) cudatrace: bool,
    /// Copies and their bandwidth
    #[arg(long)]
    pub(crate) bandwidth_util: bool,
    /// Address for the metrics endpoint
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_METRICS_ADDR)]
    pub(crate) metrics_addr: SocketAddr,
    /// Seconds between displays; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_DISPLAY_INTERVAL)]
    pub(crate) display_interval: u64,
    /// Only this process, and what it forks (repeatable)
    #[arg(short = 'd', long = "pid", value_name = "PID")]
    pub(crate) pids: Vec<u32>,
    /// A library to watch besides those found on the host (repeatable)
    #[arg(short = 'p', long = "path", value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
}

const DEFAULT_METRICS_ADDR: &str = "0.0.0.0:9000";
const DEFAULT_DISPLAY_INTERVAL: u64 = 5;

impl DaemonArgs {
    /// Whether nothing at all was asked for.
    pub(crate) fn is_default(&self) -> bool {
        let named = self.memleak || self.cudatrace || self.bandwidth_util;
        !named
            && self.paths.is_empty()
            && self.pids.is_empty()
            && self.display_interval == DEFAULT_DISPLAY_INTERVAL
            && self.metrics_addr.to_string() == DEFAULT_METRICS_ADDR
            && self.attach.attach.is_none()
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only names that fit, such as 'cudaMalloc*'
    #[arg(value_name = "GLOB")]
    pub(crate) glob: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The libraries of this process instead of those of the host
    #[arg(short = 'd', long = "pid", value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
    /// Keep the trace here
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The process that will say when to go on
    pub(crate) parent: i32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// The ids of the maps of targets and of answers
    pub(crate) targets: u32,
    pub(crate) held: u32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Cli {
        Cli::try_parse_from([&["gpuprobe"], words].concat()).unwrap()
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_command_is_the_commands() {
        let Some(Command::Run(run)) = parse(&["run", "-e", "*", "--", "prog", "-e", "x", "--help"]).command
        else {
            panic!("run")
        };
        assert_eq!(run.events, ["*"]);
        assert_eq!(run.command, ["prog", "-e", "x", "--help"]);
        let Some(Command::Run(run)) = parse(&["run", "prog", "-v"]).command else { panic!("run") };
        assert_eq!(run.command, ["prog", "-v"]);
        assert!(!run.attach.verbose);
    }

    #[test]
    fn the_daemons_flags_stand_alone() {
        let cli = parse(&["--memleak", "--display-interval", "3", "--metrics-addr", "127.0.0.1:0"]);
        assert!(cli.command.is_none() && cli.daemon.memleak && !cli.daemon.is_default());
        assert_eq!(cli.daemon.display_interval, 3);
        assert!(parse(&[]).daemon.is_default());
    }

    #[test]
    fn exclusions_and_wrong_values() {
        let Some(Command::Run(run)) = parse(&["run", "-e", "!cudaFree", "prog"]).command else {
            panic!("run")
        };
        assert_eq!(run.events, ["!cudaFree"]);
        for wrong in [
            &["run"][..],
            &["run", "--nonsense", "x"],
            &["run", "--attach", "magic", "x"],
            &["nonsense"],
            &["--metrics-addr", "x"],
        ] {
            assert!(Cli::try_parse_from([&["gpuprobe"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}
