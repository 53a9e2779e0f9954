//! The options of the hidden subcommands that gpuprobe starts itself with.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use gpuprobe_capture::Tier;

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

#[derive(Debug, Args)]
pub(crate) struct RecorderArgs {
    /// The directory of recordings
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// The most that they may take
    #[arg(long)]
    pub(crate) dir_size: u64,
    /// Attach by this tier
    #[arg(long)]
    pub(crate) attach: Tier,
    /// Let recordings report what they found and skipped
    #[arg(long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RecordOneArgs {
    /// The trace gets this name when it is complete
    #[arg(long)]
    pub(crate) rename: PathBuf,
    /// The process that started this one
    #[arg(long)]
    pub(crate) parent: i32,
    /// The options of `record`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) options: Vec<OsString>,
}
