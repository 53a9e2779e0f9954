//! The options of the hidden subcommands that gpuprobe starts itself with.

use std::ffi::OsString;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The soft and the hard limit of open files that the command gets
    #[arg(long, num_args = 2)]
    pub(crate) files: Vec<u64>,
    /// The user and the group that the command gets
    #[arg(long, num_args = 2, value_names = ["UID", "GID"])]
    pub(crate) ids: Vec<u32>,
    /// With --ids: the supplementary groups
    #[arg(long, value_delimiter = ',')]
    pub(crate) groups: Vec<u32>,
    /// The command ignores SIGQUIT: Ctrl-\ is for gpuprobe
    #[arg(long)]
    pub(crate) ignore_quit: bool,
    /// The process that sends the signal to continue
    pub(crate) parent: i32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct AttachHelperArgs {
    /// The parent pauses processes: they must be resumed if it is killed
    #[arg(long = "holds")]
    pub(crate) pauses: bool,
    /// Probes are attached by perf events
    #[arg(long)]
    pub(crate) perf: bool,
    /// Inherited descriptors: the maps of targets and of answers, and the programs
    pub(crate) files: Vec<i32>,
}

#[derive(Debug, Args)]
pub(crate) struct FileReaderArgs {
    /// Processes are paused while files are read
    #[arg(long = "holds")]
    pub(crate) pauses: bool,
    /// Start processes that read files
    #[arg(long)]
    pub(crate) starter: bool,
}
