//! Functions whose probes can be taken out alone, and put back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpuprobe_discover::{Library, OpenedFile, ProbeCost};
use gpuprobe_event::{Class, Function, FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::attach::ApartFunction;
use crate::error::CaptureError;
use crate::keeper::Patience;
use crate::request::ProbedFile;
use crate::rows::{tells_contexts, tells_gpus, tells_names};
use crate::task::{tells_captures, tells_graphs};
use crate::wire::{MapName, as_bytes, from_bytes, gp_function, number};

/// How long calls that are open when a function is paused have to return before its probes are taken out.
const RETURN_WITHIN: Duration = Duration::from_millis(500);

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
    /// Of those that have none, the ones whose probes are still there, and since when they are paused.
    leaving: Vec<(FunctionId, Instant)>,
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
    /// Takes the probes of a function out of every file, some time later; tells whether it had some. From now on its calls
    /// are ignored as they begin, and those that are open return before the probes go, if they do so soon.
    pub fn leave_out(&mut self, id: FunctionId) -> Result<bool, CaptureError> {
        let mut had_some = false;
        for attached in self.attached.values_mut() {
            let probed = attached.apart.iter().filter(|f| f.planned.function == id && !f.links.is_empty());
            let probed = probed.count();
            attached.functions -= probed;
            had_some |= probed > 0;
        }
        if had_some && self.apart.left_out.insert(id) {
            self.apart.times += 1;
            self.pause(id, true)?;
            self.apart.leaving.push((id, Instant::now()));
        }
        Ok(had_some)
    }

    /// Takes probes out that have been paused for a while.
    pub(super) fn take_out_paused(&mut self) {
        let is_due = |(_, since): &mut (FunctionId, Instant)| since.elapsed() >= RETURN_WITHIN;
        let due: Vec<_> = self.apart.leaving.extract_if(.., is_due).collect();
        for (id, _) in due {
            let functions = self.attached.values_mut().flat_map(|attached| &mut attached.apart);
            let functions = functions.filter(|f| f.planned.function == id);
            let links = functions.flat_map(|f| std::mem::take(&mut f.links)).collect();
            self.keeper.detach_later(links);
        }
    }

    /// Puts the probes of a function back into every file. A file that could not be opened is tried again the next time.
    pub fn put_back(&mut self, id: FunctionId) -> Result<(), CaptureError> {
        self.apart.left_out.remove(&id);
        self.apart.leaving.retain(|(leaving, _)| *leaving != id);
        let done = self.attach_again(id);
        self.pause(id, false)?;
        done
    }

    /// Has calls of a function ignored as they begin, or not any more.
    fn pause(&self, id: FunctionId, paused: bool) -> Result<(), CaptureError> {
        let mut row = self.row(id)?;
        row.flags &= !number::FUNCTION_PAUSED;
        row.flags |= if paused { number::FUNCTION_PAUSED } else { 0 };
        let map = self.map(MapName::Functions)?;
        map.update(&id.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))
    }

    fn row(&self, id: FunctionId) -> Result<gp_function, CaptureError> {
        let row = self.map(MapName::Functions)?.lookup(&id.0.to_ne_bytes(), MapFlags::ANY);
        let row = row.map_err(CaptureError::bpf("read the table of functions"))?;
        row.map(|bytes| from_bytes(&bytes)).ok_or(CaptureError::Missing("row of a function"))
    }

    fn attach_again(&mut self, id: FunctionId) -> Result<(), CaptureError> {
        let mut refused = Ok(());
        for attached in self.attached.values_mut() {
            let (how, file) = (attached.how, &attached.file);
            let mut patience = Patience::new(attached.may_stall, how.tier);
            let is_it = |f: &&mut ApartFunction| f.planned.function == id;
            for function in attached.apart.iter_mut().filter(is_it) {
                if !function.links.is_empty() {
                    attached.functions += 1;
                    continue;
                }
                match function.attach(&mut self.keeper, how, file, &mut patience) {
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

    /// Says by which name a library's file can be opened now: that of a process's mounts ends with the process.
    pub fn can_be_opened(&mut self, library: &Library) {
        let size = |opened: Option<OpenedFile>| opened.map(|opened| (opened.size, opened.owner));
        for (_, attached) in self.attached.iter_mut().filter(|((file, _), _)| *file == library.id) {
            // by another mount the device may have another number
            if size(attached.file.expected) == size(library.opened) {
                attached.file = ProbedFile { path: library.open_path.clone(), expected: library.opened };
            }
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
