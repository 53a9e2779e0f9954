//! The options of `top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gpuprobe_analysis::view::{Column, Order};
use gpuprobe_capture::Tier;

use super::daemon_args::NvmlArgs;
use super::value_parsers::{pid, share, span};

#[derive(Debug, Clone, Args)]
pub(crate) struct TopArgs {
    /// Only this process and the processes it forks (repeatable); by default every process of the host
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid)]
    pub(crate) pids: Vec<u32>,
    /// Show the figures of a gpuprobe daemon instead, such as http://host:9000; needs no root (repeatable)
    #[arg(long, value_name = "URL", conflicts_with_all = ["pids", "budget", "attach"])]
    pub(crate) connect: Vec<String>,
    /// With --connect: a file with the certificates that a daemon's certificate may be signed by
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub(crate) ca_file: Option<PathBuf>,
    /// With --connect: a file with the password of the user in the URL (http://user@host:9000)
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub(crate) password_file: Option<PathBuf>,
    /// Time between two updates
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span)]
    pub(crate) interval: Duration,
    /// Print frames to stdout instead of covering the terminal
    #[arg(short, long)]
    pub(crate) batch: bool,
    /// End after this many updates
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) updates: Option<u64>,
    /// Print one line of JSON for each update
    #[arg(long)]
    pub(crate) json: bool,
    /// Sort by this column, such as live, launch or errors
    #[arg(long, value_name = "COLUMN", value_parser = order)]
    pub(crate) sort: Option<Order>,
    /// Show only processes whose name, pid, container, pending function or host contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// Group processes by container
    #[arg(long)]
    pub(crate) tree: bool,
    /// The most that probes may take of each process's time, such as 2%; see `gpuprobe daemon --help`
    #[arg(long, value_name = "PERCENT", value_parser = share, allow_hyphen_values = true)]
    pub(crate) budget: Option<f64>,
    /// Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    #[command(flatten)]
    pub(crate) nvml: NvmlArgs,
}

fn order(name: &str) -> Result<Order, String> {
    let known = || {
        let names = Column::ALL.map(|column| column.as_str().to_ascii_lowercase());
        format!("no such column: one of {}", names.join(", "))
    };
    Column::from_name(name).map(Order::by).ok_or_else(known)
}
