//! The options of `memory`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::attach_args::AttachArgs;
use super::daemon_args::NvmlArgs;
use super::user_args::UserArgs;
use super::value_parsers::{pid, span};

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Only this process and the processes it forks (repeatable); by default every process of the host
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid, conflicts_with = "command")]
    pub(crate) pids: Vec<u32>,
    /// Also show the whole stack of each call site, from the function that allocated to the program's first function
    #[arg(long)]
    pub(crate) sites: bool,
    /// Also account for the tensors of PyTorch: live tensors by call site, and what it has reserved, uses and caches on
    /// each GPU. Costs some microseconds for each tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Show it repeatedly, until Ctrl-C or the end of the command
    #[arg(long)]
    pub(crate) watch: bool,
    /// With --watch: time between two displays
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span, requires = "watch")]
    pub(crate) interval: Duration,
    /// Stop after this long [default: 10s; with --watch or a command, when these end]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// Time in which a call site may grow before it is judged; always at least a quarter of its age
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span)]
    pub(crate) warm_up: Duration,
    /// One line of JSON for each display
    #[arg(long)]
    pub(crate) json: bool,
    /// Write to this file instead of stdout, which the command may use as well
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) nvml: NvmlArgs,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
    #[command(flatten)]
    pub(crate) user: UserArgs,
    /// A command to start and to watch until it exits
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
