//! The other half of `reader`: looks at files until its parent ends.

use std::io;

use anyhow::Result;
use gpuprobe_capture::Urgent;
use gpuprobe_discover::serve_files;

use crate::cli::ReaderArgs;

pub(crate) fn run(args: &ReaderArgs) -> Result<u8> {
    let _urgent = args.holds.then(Urgent::begin);
    serve_files(io::stdin().lock(), io::stdout().lock())?;
    Ok(0)
}
