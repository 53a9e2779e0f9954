//! Functions and tracepoints of the Linux kernel that are to be probed.

use gpuprobe_discover::{LinuxFunction, SkipCause};
use gpuprobe_event::{Api, Function, catalogue};

use crate::host::linux_types::Returned;
use crate::wire::ProgramName;

/// A function of the Linux kernel to probe.
#[derive(Clone, Debug, PartialEq)]
pub struct LinuxFunctionHook {
    pub function: LinuxFunction,
    /// Whether the Linux kernel has its type, so that an fentry program can be loaded for it.
    pub is_typed: bool,
    /// What it returns.
    pub returned: Returned,
    /// File and line of the hook.
    pub origin: Option<String>,
    /// Why it must not be probed.
    pub refused: Option<Refusal>,
}

/// Why something is not probed: the cause that is counted, and a text.
pub type Refusal = (SkipCause, String);

/// A function or tracepoint that is not probed.
#[derive(Debug)]
pub struct Unprobed {
    pub name: String,
    /// File and line of the hook.
    pub origin: Option<String>,
    pub refusal: Refusal,
}

impl LinuxFunctionHook {
    pub(crate) fn unprobed(&self, refusal: Refusal) -> Unprobed {
        Unprobed { name: self.function.name.clone(), origin: self.origin.clone(), refusal }
    }
}

/// The most tracepoints at once: as many programs as `bpf/linux/linux_tracepoints.bpf.h` has.
pub const MAX_TRACEPOINTS: usize = ProgramName::TRACEPOINT.len();

/// A tracepoint to attach to. The rows of those that are not refused are contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct TracepointHook {
    /// `group:name`.
    pub name: String,
    /// File and line of the hook.
    pub origin: String,
    /// Why it must not be attached.
    pub refused: Option<Refusal>,
}

impl TracepointHook {
    pub(crate) fn row(&self) -> Option<&'static Function> {
        catalogue().lookup(Api::Kernel, None, &self.name)
    }

    pub(crate) fn unprobed(&self, refusal: Refusal) -> Unprobed {
        Unprobed { name: self.name.clone(), origin: Some(self.origin.clone()), refusal }
    }
}

/// The tracepoints that have rows, in their order.
pub(crate) fn accepted(hooks: &[TracepointHook]) -> impl Iterator<Item = &TracepointHook> {
    hooks.iter().filter(|hook| hook.refused.is_none()).take(MAX_TRACEPOINTS)
}

/// The first row of tracepoints in the catalogue.
pub(crate) fn first_row(hooks: &[TracepointHook]) -> u32 {
    accepted(hooks).next().and_then(TracepointHook::row).map_or(u32::MAX, |row| row.id.0)
}
