//! The options of `doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gpuprobe_capture::Tier;

use super::value_parsers::{pid, span};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Report the libraries of this process instead of those of the host
    #[arg(short = 'd', long = "pid", value_name = "PID", value_parser = pid)]
    pub(crate) pid: Option<u32>,
    /// Predict what it would cost to watch the running processes: calls are counted for a while and multiplied by the
    /// cost of a call on this machine
    #[arg(long)]
    pub(crate) cost: bool,
    /// With --cost: count calls for this long
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span, requires = "cost")]
    pub(crate) duration: Duration,
    /// With --cost: attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports
    #[arg(long, value_name = "TIER", requires = "cost")]
    pub(crate) attach: Option<Tier>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write an archive for a bug report: this report, versions, losses of a running daemon, its settings without
    /// secrets, and messages of the Linux kernel about GPUs and BPF; names of processes and home folders are hashed
    #[arg(long, conflicts_with_all = ["cost", "json"])]
    pub(crate) support: bool,
    /// With --support: write the archive to this file, which must be a new one [default: gpuprobe-support-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE", requires = "support")]
    pub(crate) output: Option<PathBuf>,
    /// With --support: keep the names of processes and home folders
    #[arg(long, requires = "support")]
    pub(crate) full: bool,
    /// With --support: the URL of the daemon, such as https://user@host:9000 [default: the address in its settings]
    #[arg(long, value_name = "URL", requires = "support")]
    pub(crate) connect: Option<String>,
    /// With --connect: a file with the certificates that the daemon's certificate may be signed by
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub(crate) ca_file: Option<PathBuf>,
    /// With --connect: a file with the password of the user in the URL
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub(crate) password_file: Option<PathBuf>,
}
