//! Functions whose probes can be taken out alone, and put back.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gpuprobe_discover::{FileId, ProbeCost};
use gpuprobe_event::{Class, Function, FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::attach::ApartFunction;
use crate::error::CaptureError;
use crate::rows::{tells_contexts, tells_gpus, tells_names};
use crate::task::{tells_captures, tells_graphs};
use crate::wire::{as_bytes, from_bytes, gp_function, number};

/// Classes of functions that nothing but their own figures is made of. Of all others live memory, contexts, names or graphs
/// are made, or nobody calls them often.
const TELL_OF_THEMSELVES: [Class; 21] = [
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
    let tells_of_others = tells_contexts(f)
        || tells_gpus(f)
        || tells_names(f)
        || tells_captures(f)
        || (tells_graphs(f) && f.class != Class::Sync);
    TELL_OF_THEMSELVES.contains(&f.class) && !tells_of_others
}

/// Which functions have links of their own, and which of these have none now.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    is_wanted: bool,
    left_out: BTreeSet<FunctionId>,
    /// How often functions were left out.
    times: u64,
}

impl Apart {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, ..Self::default() }
    }

    pub(crate) fn takes(&self, id: FunctionId) -> bool {
        self.is_wanted && catalogue().get(id).is_some_and(may_be_left_out)
    }

    pub(super) fn times(&self) -> u64 {
        self.times
    }

    pub(crate) fn is_left_out(&self, id: FunctionId) -> bool {
        self.left_out.contains(&id)
    }
}

impl Capture {
    /// Takes the probes of a function out of every file, some time later; tells whether it had some. Calls that are open
    /// return first, if they do so soon.
    pub fn leave_out(&mut self, id: FunctionId) -> Result<bool, CaptureError> {
        let mut links = Vec::new();
        for attached in self.attached.values_mut() {
            for function in attached.apart.iter_mut().filter(|f| f.planned.function == id) {
                attached.functions -= usize::from(!function.links.is_empty());
                // entries last, so they go first
                links.extend(std::mem::take(&mut function.links).into_iter().rev());
            }
        }
        let had_some = !links.is_empty();
        if had_some {
            self.apart.left_out.insert(id);
            self.apart.times += 1;
            self.expect_returns_alone(id, true)?;
            self.keeper.detach_in_order(links);
        }
        Ok(had_some)
    }

    /// Puts the probes of a function back into every file. A file that could not be opened is tried again the next time.
    pub fn put_back(&mut self, id: FunctionId) -> Result<(), CaptureError> {
        self.apart.left_out.remove(&id);
        let done = self.attach_again(id);
        self.expect_returns_alone(id, false)?;
        done
    }

    /// Says that returns without their calls are to be expected: entries go first and come last, and of a function that is
    /// called all the time there are many meanwhile.
    fn expect_returns_alone(&self, id: FunctionId, expected: bool) -> Result<(), CaptureError> {
        let mut row = self.row(id)?;
        // a function that can be left out is never there for its failures alone
        row.flags &= !number::FUNCTION_FAILURES;
        row.flags |= if expected { number::FUNCTION_FAILURES } else { 0 };
        let map = self.map("functions")?;
        map.update(&id.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))
    }

    fn row(&self, id: FunctionId) -> Result<gp_function, CaptureError> {
        let row = self.map("functions")?.lookup(&id.0.to_ne_bytes(), MapFlags::ANY);
        let row = row.map_err(CaptureError::bpf("read the table of functions"))?;
        row.map(|bytes| from_bytes(&bytes)).ok_or(CaptureError::Missing("row of a function"))
    }

    fn attach_again(&mut self, id: FunctionId) -> Result<(), CaptureError> {
        let mut refused = Ok(());
        for attached in self.attached.values_mut() {
            let (how, path) = (attached.how, &attached.open_path);
            let is_it = |f: &&mut ApartFunction| f.planned.function == id && f.links.is_empty();
            for function in attached.apart.iter_mut().filter(is_it) {
                match function.attach(&mut self.keeper, how, path) {
                    Ok(links) => {
                        attached.functions += 1;
                        function.links = links;
                    }
                    Err(error) => refused = Err(error),
                }
            }
        }
        refused
    }

    /// Says by which name a file can be opened now: that of a process's mounts ends with the process.
    pub fn can_be_opened(&mut self, id: FileId, open_path: PathBuf) {
        for (_, attached) in self.attached.iter_mut().filter(|((file, _), _)| *file == id) {
            attached.open_path.clone_from(&open_path);
        }
    }

    /// The dearest probe point that a function has in any file; nothing where it is not probed.
    pub fn point_of(&self, id: FunctionId) -> Option<ProbeCost> {
        self.attached.values().filter_map(|attached| attached.points.get(&id)).max().copied()
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
