//! Functions whose probes can be detached alone, and attached again.

use std::collections::BTreeSet;

use gpuprobe_event::{Class, Function, FunctionId, catalogue};

use crate::function_table::function_row::{changes_contexts, gives_kernel_names, identifies_gpus};
use crate::function_table::op_desc::{changes_captures, changes_graphs};
use crate::wire::number;

/// Classes of functions that affect only their own counts. Live memory, contexts, names and graphs are derived from
/// all other classes, or they are rarely called.
const INDEPENDENT_CLASSES: [Class; 21] = [
    Class::Launch,
    Class::GraphLaunch,
    Class::Memcpy,
    Class::Memset,
    Class::Sync,
    Class::Stream,
    Class::Event,
    Class::Device,
    Class::Function,
    Class::Collective,
    Class::Diagnostics,
    Class::EntryPoint,
    Class::Error,
    Class::Group,
    Class::LaunchConfig,
    Class::ManagedHint,
    Class::MemQuery,
    Class::Nvml,
    Class::Occupancy,
    Class::StreamMemop,
    Class::Other,
];

/// Whether a function may be sampled. Then its calls, and what it launched or copied, are estimates; all other figures
/// stay exact.
pub fn is_detachable(f: &Function) -> bool {
    let has_state = changes_contexts(f)
        || identifies_gpus(f)
        || gives_kernel_names(f)
        || changes_captures(f)
        || (changes_graphs(f) && f.class != Class::Sync);
    INDEPENDENT_CLASSES.contains(&f.class) && !has_state
}

/// Which functions have their own links, and which of these are sampled.
#[derive(Debug, Default)]
pub(crate) struct DetachableProbes {
    is_wanted: bool,
    pub(super) sampled: BTreeSet<FunctionId>,
    /// Those of them that are attached only in turns, because they are called.
    pub(super) in_turns: BTreeSet<FunctionId>,
    /// Functions of which only failures are counted. While others are sampled, so are these failures: one that comes
    /// from a sampled function of the CUDA driver, and is counted there, can be recognised only in a turn.
    pub(super) failures: BTreeSet<FunctionId>,
    /// The number of the last turn.
    pub(super) turn: u16,
    /// How often they could not be attached.
    pub(super) missed_turns: u64,
}

impl DetachableProbes {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, ..Self::default() }
    }

    pub(crate) fn includes(&self, id: FunctionId) -> bool {
        self.is_wanted && catalogue().get(id).is_some_and(is_detachable)
    }

    /// The flags of the row of a function.
    pub(crate) fn flags(&self, id: FunctionId) -> u32 {
        let is_sampled =
            self.sampled.contains(&id) || (!self.sampled.is_empty() && self.failures.contains(&id));
        let sampled = if is_sampled { number::FUNCTION_SAMPLED } else { 0 };
        let in_turns = if self.in_turns.contains(&id) { number::FUNCTION_IN_TURNS } else { 0 };
        sampled | in_turns
    }

    /// Whether a function has no probes between turns. In a turn it gets those of a new library with the next turn.
    pub(crate) fn is_detached(&self, id: FunctionId) -> bool {
        self.in_turns.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    fn of(api: Api, name: &str) -> bool {
        is_detachable(catalogue().lookup(api, Some(12), name).unwrap())
    }

    #[test]
    fn functions_that_change_memory_contexts_names_or_graphs_stay_attached() {
        let driver = [
            "cuMemAlloc_v2",
            "cuMemFree_v2",
            "cuMemAllocAsync",
            "cuMemCreate",
            "cuMemMap",
            "cuMemHostRegister_v2",
            "cuMemPoolCreate",
            "cuIpcOpenMemHandle_v2",
            "cuCtxSetCurrent",
            "cuDevicePrimaryCtxRetain",
            "cuDeviceGetUuid",
            "cuModuleGetFunction",
            "cuStreamBeginCapture_v2",
            "cuEventRecord",
            "cuGraphInstantiateWithFlags",
        ];
        assert_eq!(driver.iter().find(|name| of(Api::Driver, name)), None);
        let memory = [Class::Alloc, Class::Free, Class::Pool, Class::Vmm, Class::Ipc, Class::Context];
        let more =
            [Class::HostRegister, Class::HostUnregister, Class::Module, Class::Graph, Class::GraphCapture];
        let mut functions = catalogue().functions().iter();
        let stays = |f: &&Function| memory.contains(&f.class) || more.contains(&f.class);
        assert!(functions.by_ref().filter(stays).all(|f| !is_detachable(f)));
    }

    #[test]
    fn functions_that_only_count_their_own_calls_can_be_detached() {
        let driver =
            ["cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoD_v2", "cuMemsetD8Async", "cuStreamSynchronize"];
        assert_eq!(driver.iter().find(|name| !of(Api::Driver, name)), None);
        let runtime = ["cudaGetDevice", "cudaGetLastError", "cudaLaunchKernel", "cudaEventQuery"];
        assert_eq!(runtime.iter().find(|name| !of(Api::Runtime, name)), None);
    }
}
