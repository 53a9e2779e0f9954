//! The file reader process (`__reader`): reads files for its parent, or starts such processes, until the parent exits.

use std::io;

use anyhow::Result;
use gpuprobe_capture::{
    Urgent, drop_privileges, drop_privileges_except_for_children, install_seccomp_filter,
};
use gpuprobe_discover::{serve_files, start_readers};

use crate::cli::FileReaderArgs;
use crate::session::probes::helper_commands;

pub(crate) fn run(args: &FileReaderArgs) -> Result<u8> {
    // other users control the files that it reads; an error only means that there are no privileges to give up
    if args.starter {
        drop_privileges_except_for_children(false).ok();
        start_readers(|| helper_commands::file_reader(args.pauses))?;
        return Ok(0);
    }
    let _urgent = args.pauses.then(Urgent::begin);
    drop_privileges(false).ok();
    install_seccomp_filter().ok();
    serve_files(io::stdin().lock(), io::stdout().lock())?;
    Ok(0)
}
