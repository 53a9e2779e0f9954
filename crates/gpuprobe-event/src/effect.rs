//! The effect of a call on memory or on a GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalogue::Space;
use crate::copy_kind::{CopyDirection, HostMemory};
use crate::ids::SiteId;
use crate::name::Name;

/// The effect of a call, as far as it is known. A failed call, and a call whose effect an enclosing call of the same
/// kind counts, has neither allocated, freed nor copied anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Effect {
    /// No recorded effect.
    #[default]
    None,
    /// It allocated memory, or registered host memory.
    Alloc(Allocation),
    /// It freed memory, or tried to.
    Free(Free),
    /// It destroyed a context, and with it this memory.
    ContextEnd(Vec<MemoryAmount>),
    /// It copied or set memory.
    Transfer(Transfer),
    /// It launched a CUDA kernel.
    Launch(Launch),
    /// It launched a graph.
    GraphLaunch(GraphLaunch),
    /// It was a system call on an NVIDIA device.
    DeviceSyscall(DeviceSyscall),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    pub bytes: u64,
    /// Its address; physical memory without a mapping has a handle here, or nothing.
    pub address: Option<u64>,
    pub kind: Space,
    /// The GPU by the process's number.
    pub gpu: Option<u8>,
    /// The call site.
    pub site: Option<SiteId>,
    /// The allocation that was at this address.
    pub replaced: Option<Replaced>,
    /// Live bytes of the process including this allocation.
    pub live_bytes: Option<u64>,
}

/// An allocation whose free was not observed: its address was allocated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub bytes: u64,
    /// May differ from the kind of the new allocation.
    pub kind: Space,
}

/// One call that frees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// The address argument; 0 frees nothing.
    pub address: Option<u64>,
    /// What it freed; `None` if the address is unknown.
    pub freed: Option<MemoryAmount>,
    /// The GPU of the memory by the process's number.
    pub gpu: Option<u8>,
    /// The call site of the allocation.
    pub site: Option<SiteId>,
}

/// An amount of memory of one kind: freed by a call, freed with its context, or live at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAmount {
    pub kind: Space,
    /// The number of allocations.
    pub allocations: u64,
    pub bytes: u64,
}

/// A copy, a batch of copies, or a memset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The direction; unknown for a batch with several.
    pub direction: CopyDirection,
    /// The host memory involved.
    pub host: HostMemory,
    /// Whether it may still be running when its call has returned.
    pub is_async: bool,
    /// Bytes copied. Only on the outermost call, and only if it succeeded and was not captured.
    pub bytes: Option<u64>,
    /// The copies of a batch, by kind and size.
    pub parts: Vec<CopyPart>,
    /// It was submitted to a stream in capture mode: it became part of a graph and was not run.
    pub captured: bool,
    /// The CUDA runtime did it, or failed it, without calling the CUDA driver.
    pub without_driver: bool,
    /// Bytes copied by a call of the CUDA driver inside another copy, which has them as `bytes`.
    pub copied: Option<u64>,
}

/// Copies of one kind in a batch, with sizes within one power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPart {
    pub direction: CopyDirection,
    /// The host memory involved.
    pub host: HostMemory,
    pub copies: u64,
    pub bytes: u64,
}

/// A launch of a CUDA kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The demangled name of the CUDA kernel, if known.
    pub kernel: Option<Arc<str>>,
    /// The number of CUDA kernels: one on each GPU that it names. 1 for a call inside another launch.
    pub kernels: u64,
    pub grid: Option<[u32; 3]>,
    pub block: Option<[u32; 3]>,
    /// Requested bytes of dynamic shared memory.
    pub shared: u64,
    /// See [`Transfer::captured`].
    pub captured: bool,
}

/// A launch of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphLaunch {
    /// The number of CUDA kernels of the graph, derived from its creation; `None` if that was not seen, and for a
    /// call inside another launch.
    pub kernels: Option<u64>,
    /// A number for what the graph consists of. It changes when the graph is changed.
    pub graph: Option<u64>,
    /// The CUDA kernels of the graph by name, if known.
    pub contents: Option<Arc<GraphContents>>,
    /// CUDA kernels of disabled nodes, which do not run and are not in `kernels`.
    pub disabled: u64,
    /// Conditional nodes. The GPU decides whether their CUDA kernels run, so these are not in `kernels`.
    pub conditional: u64,
    /// Some nodes of the graph were not observed.
    pub incomplete: bool,
    /// See [`Transfer::captured`].
    pub captured: bool,
}

/// The CUDA kernels that one launch of a graph runs, derived from its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphContents {
    /// How often it runs each kernel, most often first; `None` stands for kernels without a known name.
    pub kernels: Vec<(Option<Arc<str>>, u64)>,
}

impl GraphContents {
    /// The most kernels that are distinguished, and the most bytes of their names, so that a line of a trace is
    /// bounded. Real graphs have some hundred different kernels.
    pub const MOST_KERNELS: usize = 1024;
    const MOST_NAME_BYTES: usize = 512 << 10;

    /// Sums by name. What exceeds the bounds is counted as having no name.
    pub fn of(kernels: impl IntoIterator<Item = (Option<Arc<str>>, u64)>) -> Self {
        let (mut named, mut unnamed) = (BTreeMap::<Arc<str>, u64>::new(), 0_u64);
        for (name, count) in kernels {
            let sum = name.map_or(&mut unnamed, |name| named.entry(name).or_default());
            *sum = sum.saturating_add(count);
        }
        let mut named: Vec<_> = named.into_iter().filter(|(_, count)| *count > 0).collect();
        named.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut room = Self::MOST_NAME_BYTES;
        let mut kernels = Vec::new();
        for (name, count) in named {
            match room.checked_sub(name.len()).filter(|_| kernels.len() < Self::MOST_KERNELS) {
                Some(left) => {
                    room = left;
                    kernels.push((Some(name), count));
                }
                None => unnamed = unnamed.saturating_add(count),
            }
        }
        if unnamed > 0 {
            kernels.push((None, unnamed));
        }
        Self { kernels }
    }

    /// Whether all names are known.
    pub fn is_named(&self) -> bool {
        self.kernels.iter().all(|(name, _)| name.is_some())
    }
}

/// A system call on an NVIDIA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSyscall {
    /// The device: `nvidiactl`, `nvidia0`...
    pub device: Option<Name>,
    /// The command of an ioctl.
    pub command: Option<Name>,
}

/// System calls on the NVIDIA devices that were made inside a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTime {
    pub calls: u64,
    /// Their total time.
    pub ns: u64,
}

impl Launch {
    /// The most GPUs of one launch call that are counted.
    pub const MOST_KERNELS: u64 = 64;
}

impl Default for Launch {
    fn default() -> Self {
        Self { kernel: None, kernels: 1, grid: None, block: None, shared: 0, captured: false }
    }
}

impl Transfer {
    /// A transfer about which nothing else is known.
    pub fn new(direction: CopyDirection, is_async: bool) -> Self {
        let host = HostMemory::unknown_for(direction);
        Self {
            direction,
            host,
            is_async,
            bytes: None,
            parts: Vec::new(),
            captured: false,
            without_driver: false,
            copied: None,
        }
    }

    /// Bytes that it copied, summed over a batch. Sizes come from the process, so the sum saturates.
    pub fn moved(&self) -> u64 {
        let in_parts = || self.parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        self.bytes.unwrap_or_else(in_parts)
    }

    /// The direction of a copy, if known; `None` for a memset.
    pub fn known_direction(&self) -> Option<CopyDirection> {
        Some(self.direction).filter(|direction| direction.is_known())
    }
}

impl Effect {
    /// Bytes allocated or copied.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Alloc(allocation) => Some(allocation.bytes),
            Self::Transfer(transfer) => transfer.bytes,
            _ => None,
        }
    }

    pub fn allocation(&self) -> Option<&Allocation> {
        match self {
            Self::Alloc(allocation) => Some(allocation),
            _ => None,
        }
    }

    /// The memory that a free call freed.
    pub fn freed(&self) -> Option<&MemoryAmount> {
        match self {
            Self::Free(free) => free.freed.as_ref(),
            _ => None,
        }
    }

    pub fn transfer(&self) -> Option<&Transfer> {
        match self {
            Self::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// The launch of a CUDA kernel.
    pub fn launch(&self) -> Option<&Launch> {
        match self {
            Self::Launch(launch) => Some(launch),
            _ => None,
        }
    }

    /// The name of the launched CUDA kernel.
    pub fn kernel(&self) -> Option<&Arc<str>> {
        self.launch()?.kernel.as_ref()
    }

    /// The system call on an NVIDIA device.
    pub fn device_syscall(&self) -> Option<&DeviceSyscall> {
        match self {
            Self::DeviceSyscall(call) => Some(call),
            _ => None,
        }
    }

    /// The call site of the allocation, also for a free.
    pub fn site(&self) -> Option<SiteId> {
        match self {
            Self::Alloc(allocation) => allocation.site,
            Self::Free(free) => free.site,
            _ => None,
        }
    }

    /// Whether it was a GPU operation that became part of a graph and was not run.
    pub fn captured(&self) -> bool {
        match self {
            Self::Transfer(transfer) => transfer.captured,
            Self::Launch(launch) => launch.captured,
            Self::GraphLaunch(launch) => launch.captured,
            _ => false,
        }
    }
}
