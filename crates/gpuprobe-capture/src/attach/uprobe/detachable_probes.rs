//! Functions whose probes can be taken out alone, and put back.

use std::collections::BTreeSet;
use std::time::Instant;

use gpuprobe_event::{Class, Function, FunctionId, catalogue};

use crate::function_table::function_row::{tells_contexts, tells_gpus, tells_names};
use crate::function_table::op_desc::{tells_captures, tells_graphs};

/// Classes of functions that nothing but their own figures is made of. Of all others live memory, contexts, names or graphs
/// are made, or nobody calls them often.
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

/// Whether a function may go without probes for a while: then its own calls, and what it launched or copied, are lower
/// bounds, and all other figures stay as true as they were.
pub fn may_be_left_out(f: &Function) -> bool {
    let has_state = tells_contexts(f)
        || tells_gpus(f)
        || tells_names(f)
        || tells_captures(f)
        || (tells_graphs(f) && f.class != Class::Sync);
    INDEPENDENT_CLASSES.contains(&f.class) && !has_state
}

/// Which functions have links of their own, and which of these have none now.
#[derive(Debug, Default)]
pub(crate) struct DetachableProbes {
    is_wanted: bool,
    pub(super) detached: BTreeSet<FunctionId>,
    /// Of those that have none, the ones whose probes are still there, and since when they are paused.
    pub(super) leaving: Vec<(FunctionId, Instant)>,
    /// How often functions were left out.
    pub(super) times: u64,
}

impl DetachableProbes {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, ..Self::default() }
    }

    pub(crate) fn includes(&self, id: FunctionId) -> bool {
        self.is_wanted && catalogue().get(id).is_some_and(may_be_left_out)
    }

    pub(crate) fn is_detached(&self, id: FunctionId) -> bool {
        self.detached.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    fn of(api: Api, name: &str) -> bool {
        may_be_left_out(catalogue().lookup(api, Some(12), name).unwrap())
    }

    #[test]
    fn what_memory_contexts_names_and_graphs_are_made_of_always_stays() {
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
        assert!(functions.by_ref().filter(stays).all(|f| !may_be_left_out(f)));
    }

    #[test]
    fn what_tells_of_itself_alone_may_be_left_out() {
        let driver =
            ["cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoD_v2", "cuMemsetD8Async", "cuStreamSynchronize"];
        assert_eq!(driver.iter().find(|name| !of(Api::Driver, name)), None);
        let runtime = ["cudaGetDevice", "cudaGetLastError", "cudaLaunchKernel", "cudaEventQuery"];
        assert_eq!(runtime.iter().find(|name| !of(Api::Runtime, name)), None);
    }
}
