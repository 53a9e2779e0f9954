//! What a call did to memory or gave to a GPU.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalogue::Space;
use crate::copy_kind::{CopyDirection, HostMemory};
use crate::ids::SiteId;
use crate::name::Name;

/// What a call did, as far as it is known. What failed, and what an enclosing call of the same kind counts, has neither
/// allocated, freed nor moved anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Effect {
    /// Nothing that is told.
    #[default]
    None,
    /// It allocated memory, or registered memory of the host.
    Alloc(Allocation),
    /// It freed memory, or was to.
    Free(Free),
    /// It ended a context, and with it this memory.
    ContextEnd(Vec<MemoryAmount>),
    /// It copied or set memory.
    Transfer(Transfer),
    /// It launched a kernel.
    Launch(Launch),
    /// It launched a graph.
    GraphLaunch(GraphLaunch),
    /// It asked something of the driver beneath.
    DriverCall(DriverCall),
}

/// One allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Its bytes.
    pub bytes: u64,
    /// Where it is; physical memory without a mapping has a handle here, or nothing.
    pub address: Option<u64>,
    /// The kind of memory.
    pub kind: Space,
    /// The GPU, as the process counts its GPUs.
    pub gpu: Option<u8>,
    /// Where in the program it was made.
    pub site: Option<SiteId>,
    /// What stood at this address.
    pub replaced: Option<Replaced>,
    /// Bytes that the process held with it, at that instant.
    pub live_bytes: Option<u64>,
}

/// An allocation whose free was not observed: its address was allocated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Its bytes.
    pub bytes: u64,
    /// Its kind of memory, which may differ from that of the new allocation.
    pub kind: Space,
}

/// One call that frees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// The address that it was given; 0 frees nothing.
    pub address: Option<u64>,
    /// What it freed; `None` where nothing is known of the address.
    pub freed: Option<MemoryAmount>,
    /// The GPU of the memory, as the process counts its GPUs.
    pub gpu: Option<u8>,
    /// Where in the program the memory was allocated.
    pub site: Option<SiteId>,
}

/// Memory of one kind: what was freed, what ended with its context, or what a process holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAmount {
    /// The kind of memory.
    pub kind: Space,
    /// How many allocations.
    pub allocations: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// A copy, a batch of copies, or a memset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way; not known of a batch that has several.
    pub direction: CopyDirection,
    /// The host memory.
    pub host: HostMemory,
    /// Whether it may go on when its call has returned.
    pub is_async: bool,
    /// Bytes moved. Only on the outermost call, and only where it succeeded and was not captured.
    pub bytes: Option<u64>,
    /// The copies of a batch, by kind and size.
    pub parts: Vec<CopyPart>,
    /// It was given to a stream that is captured: it became part of a graph and was not run.
    pub captured: bool,
    /// The CUDA runtime did it, or failed it, without calling the CUDA driver.
    pub without_driver: bool,
    /// Bytes that a call of the CUDA driver copied inside another copy, which has them as `bytes`.
    pub copied: Option<u64>,
}

/// Copies of one kind in a batch, of sizes within one power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPart {
    /// Which way.
    pub direction: CopyDirection,
    /// The host memory.
    pub host: HostMemory,
    /// How many.
    pub copies: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// A launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's name, demangled, where it is known.
    pub kernel: Option<Arc<str>>,
    /// How many kernels it runs: one on each GPU that it names. Of a call inside another launch it is 1.
    pub kernels: u64,
    /// The grid.
    pub grid: Option<[u32; 3]>,
    /// The block.
    pub block: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory that it asks for.
    pub shared: u64,
    /// See [`Transfer::captured`].
    pub captured: bool,
}

/// A launch of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphLaunch {
    /// How many kernels the graph has, derived from how it was made; `None` where that was not seen, and of a call inside
    /// another launch.
    pub kernels: Option<u64>,
    /// See [`Transfer::captured`].
    pub captured: bool,
}

/// A call of the kernel on a device of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverCall {
    /// The device: `nvidiactl`, `nvidia0`...
    pub device: Option<Name>,
    /// What an ioctl asks for.
    pub command: Option<Name>,
}

/// Calls of the kernel on the driver's devices that were made in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverTime {
    /// How many.
    pub calls: u64,
    /// Their time together.
    pub ns: u64,
}

impl Launch {
    /// GPUs that one call launches a kernel on; further ones are not counted.
    pub const MOST_KERNELS: u64 = 64;
}

impl Default for Launch {
    fn default() -> Self {
        Self { kernel: None, kernels: 1, grid: None, block: None, shared: 0, captured: false }
    }
}

impl Transfer {
    /// One of which nothing else is known.
    pub fn new(direction: CopyDirection, is_async: bool) -> Self {
        let host = HostMemory::not_told(direction);
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

    /// Bytes that it moved, those of a batch together. Sizes are what a process says, so their sum may be anything.
    pub fn moved(&self) -> u64 {
        let in_parts = || self.parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        self.bytes.unwrap_or_else(in_parts)
    }

    /// Which way it copies, where that is known; a memset copies nothing.
    pub fn told_direction(&self) -> Option<CopyDirection> {
        Some(self.direction).filter(|direction| direction.is_told())
    }
}

impl Effect {
    /// Bytes newly held or moved.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Alloc(allocation) => Some(allocation.bytes),
            Self::Transfer(transfer) => transfer.bytes,
            _ => None,
        }
    }

    /// The allocation.
    pub fn allocation(&self) -> Option<&Allocation> {
        match self {
            Self::Alloc(allocation) => Some(allocation),
            _ => None,
        }
    }

    /// What a call freed that frees.
    pub fn freed(&self) -> Option<&MemoryAmount> {
        match self {
            Self::Free(free) => free.freed.as_ref(),
            _ => None,
        }
    }

    /// The copy or memset.
    pub fn transfer(&self) -> Option<&Transfer> {
        match self {
            Self::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// The launch of a kernel.
    pub fn launch(&self) -> Option<&Launch> {
        match self {
            Self::Launch(launch) => Some(launch),
            _ => None,
        }
    }

    /// The name of the kernel that was launched.
    pub fn kernel(&self) -> Option<&Arc<str>> {
        self.launch()?.kernel.as_ref()
    }

    /// What was asked of the driver.
    pub fn driver_call(&self) -> Option<&DriverCall> {
        match self {
            Self::DriverCall(call) => Some(call),
            _ => None,
        }
    }

    /// Where in the program the memory was allocated, also of a free.
    pub fn site(&self) -> Option<SiteId> {
        match self {
            Self::Alloc(allocation) => allocation.site,
            Self::Free(free) => free.site,
            _ => None,
        }
    }

    /// Whether it was work that became part of a graph and was not run.
    pub fn captured(&self) -> bool {
        match self {
            Self::Transfer(transfer) => transfer.captured,
            Self::Launch(launch) => launch.captured,
            Self::GraphLaunch(launch) => launch.captured,
            _ => false,
        }
    }
}
