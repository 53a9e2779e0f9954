//! Linux kernel functions and tracepoints that are to be probed.

use gpuprobe_discover::{KernelFunction, SkipCause};
use gpuprobe_event::{Api, Function, catalogue};

use crate::host::linux_types::Returned;
use crate::wire::ProgramName;

/// A function to probe.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelHook {
    /// Which.
    pub function: KernelFunction,
    /// Whether the kernel has its type, so that a program can be loaded for it.
    pub is_typed: bool,
    /// What it returns.
    pub returned: Returned,
    /// Where a file of hooks asks for it.
    pub place: Option<String>,
    /// Why it is not to be probed.
    pub refused: Option<Refusal>,
}

/// Why something is not probed: to count, and in words.
pub type Refusal = (SkipCause, String);

/// Something that was asked for in the kernel and is not probed.
#[derive(Debug)]
pub struct Unprobed {
    /// What it is called.
    pub name: String,
    /// Where a file of hooks asks for it.
    pub place: Option<String>,
    /// Why.
    pub refusal: Refusal,
}

impl KernelHook {
    pub(crate) fn unprobed(&self, refusal: Refusal) -> Unprobed {
        Unprobed { name: self.function.name.clone(), place: self.place.clone(), refusal }
    }
}

/// How many there can be at once; as many programs as `tracepoint.bpf.h` has.
pub const MOST_TRACEPOINTS: usize = ProgramName::TRACEPOINT.len();

/// A tracepoint to be told of. The rows of those that are not refused follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct TracepointHook {
    /// Whose it is and what it is called there, `group:name`.
    pub name: String,
    /// Where a file of hooks asks for it.
    pub place: String,
    /// Why it is not to be.
    pub refused: Option<Refusal>,
}

impl TracepointHook {
    pub(crate) fn row(&self) -> Option<&'static Function> {
        catalogue().lookup(Api::Kernel, None, &self.name)
    }

    pub(crate) fn unprobed(&self, refusal: Refusal) -> Unprobed {
        Unprobed { name: self.name.clone(), place: Some(self.place.clone()), refusal }
    }
}

/// Those that have rows, in their order.
pub(crate) fn accepted(hooks: &[TracepointHook]) -> impl Iterator<Item = &TracepointHook> {
    hooks.iter().filter(|hook| hook.refused.is_none()).take(MOST_TRACEPOINTS)
}

/// Where their rows begin in the catalogue.
pub(crate) fn first_row(hooks: &[TracepointHook]) -> u32 {
    accepted(hooks).next().and_then(TracepointHook::row).map_or(u32::MAX, |row| row.id.0)
}
