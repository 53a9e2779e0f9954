//! XID errors of GPUs as text.

use std::fmt::Write;

use gpuprobe_event::{Evidence, XidEvent, driver};

/// One line: the GPU, the error and its meaning, the processes that used the GPU, and the message of the NVIDIA kernel
/// module.
pub fn line(xid: &XidEvent) -> String {
    let mut out = format!("XID {} on GPU {}", xid.number, xid.gpu);
    if let Some(known) = driver::xid(xid.number) {
        write!(out, ": {}", known.meaning).ok();
    }
    for process in &xid.processes {
        let how = match process.evidence {
            Evidence::Named => "named by the driver",
            Evidence::Opened => "had that GPU open",
            Evidence::Watched => "may have used it",
        };
        write!(out, "; {} {} ({how})", process.process, process.tgid).ok();
    }
    write!(out, "; driver: {}", xid.message).ok();
    out
}
