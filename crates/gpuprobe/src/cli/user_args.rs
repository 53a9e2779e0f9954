//! The options that choose the user of a started command.

use clap::Args;

#[derive(Debug, Default, Clone, PartialEq, Args)]
pub(crate) struct UserArgs {
    /// Run the command as this user, a name or a number [default: with sudo the user who ran it, otherwise unchanged]
    #[arg(long, value_name = "NAME", conflicts_with = "as_root")]
    pub(crate) user: Option<String>,
    /// Run the command as root even if gpuprobe was started with sudo
    #[arg(long)]
    pub(crate) as_root: bool,
}
