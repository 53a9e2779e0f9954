//! `gpuprobe demo`.

use anyhow::{Result, bail};

use crate::cli::DemoArgs;

pub(crate) fn run(_args: &DemoArgs) -> Result<u8> {
    bail!("not built in yet")
}
