//! Owns everything that is attached, and detaches it in the right order.

use std::process::Command;
use std::rc::Rc;

use libbpf_rs::Object;

use super::linux::linux_attacher::LinuxAttacher;
use super::uprobe::uprobe_attacher::UprobeAttacher;
use crate::error::CaptureError;
use crate::host::support::Tier;
use crate::load::collect::CountedOps;
use crate::load::config::CaptureConfig;

/// The probes on libraries and on the Linux kernel.
#[derive(Debug)]
pub(crate) struct Attacher {
    pub(crate) uprobes: UprobeAttacher,
    pub(crate) linux: LinuxAttacher,
}

impl Attacher {
    /// Starts the attach helper, and attaches to the events of every capture: those of processes and of GPU errors.
    pub(crate) fn start(
        object: Rc<Object>,
        helper: Command,
        config: &CaptureConfig,
        tier: Tier,
        counted: CountedOps,
    ) -> Result<Self, CaptureError> {
        let uprobes = UprobeAttacher::start(Rc::clone(&object), helper, config, tier, counted)?;
        Ok(Self { uprobes, linux: LinuxAttacher::start(object, config)? })
    }

    /// Detaches everything but the tracepoints of processes and system calls.
    pub(crate) fn detach_probes(&mut self) {
        self.uprobes.detach_all();
        self.linux.detach_probes();
    }

    pub(crate) fn detach_tracepoints(&mut self) {
        self.linux.detach_tracepoints();
    }
}
