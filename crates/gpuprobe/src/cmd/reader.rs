//! The other half of `reader`: looks at files, or starts processes that do, until its parent ends.

use std::io;

use anyhow::Result;
use gpuprobe_capture::{
    Urgent, give_up_privileges, give_up_privileges_but_for_children, refuse_system_calls,
};
use gpuprobe_discover::{serve_files, start_readers};

use crate::cli::ReaderArgs;
use crate::reader;

pub(crate) fn run(args: &ReaderArgs) -> Result<u8> {
    // what it looks at is in the hands of others; without the privilege to give anything up there is nothing to give up
    if args.starter {
        give_up_privileges_but_for_children().ok();
        start_readers(|| reader::reader(args.holds))?;
        return Ok(0);
    }
    let _urgent = args.holds.then(Urgent::begin);
    give_up_privileges(false).ok();
    refuse_system_calls().ok();
    serve_files(io::stdin().lock(), io::stdout().lock())?;
    Ok(0)
}
