//! The file reader process (`__reader`): reads files for its parent, or starts such processes, until the parent exits.

use std::io;

use anyhow::Result;
use gpuprobe_capture::{
    Urgent, give_up_privileges, give_up_privileges_but_for_children, refuse_system_calls,
};
use gpuprobe_discover::{serve_files, start_readers};

use crate::cli::FileReaderArgs;
use crate::session::probes::helper_commands;

pub(crate) fn run(args: &FileReaderArgs) -> Result<u8> {
    // other users control the files that it reads; an error only means that there are no privileges to give up
    if args.starter {
        give_up_privileges_but_for_children().ok();
        start_readers(|| helper_commands::file_reader(args.pauses))?;
        return Ok(0);
    }
    let _urgent = args.pauses.then(Urgent::begin);
    give_up_privileges(false).ok();
    refuse_system_calls().ok();
    serve_files(io::stdin().lock(), io::stdout().lock())?;
    Ok(0)
}
