//! The workloads of measurements.

use gpuprobe_event::{FunctionId, catalogue};

/// Which functions are called, by the names in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A function without GPU operations and memory.
    Count,
    /// A function whose calls are streamed while those of the other workloads are counted.
    Stream,
    /// A function with only an entry count.
    EntryCount,
    /// Allocations and frees in turn.
    Memory,
    Launches,
    /// Launches that are streamed, not counted.
    StreamedLaunches,
    Copies,
    /// As `Count`, on a library that another program probes.
    Other,
}

impl Workload {
    /// The functions that are called in turn.
    pub fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Count => &["cuCtxSynchronize"],
            // not the function of `Count`: one capture can have both, and a function is collected in one way
            Self::Stream | Self::EntryCount => &["cuStreamSynchronize"],
            Self::Memory => &["cuMemAlloc_v2", "cuMemFree_v2"],
            Self::Launches | Self::StreamedLaunches => &["cuLaunchKernel"],
            Self::Copies => &["cuMemcpyHtoD_v2"],
            Self::Other => &[],
        }
    }

    /// The functions that the program of `bench` calls before the first of these, and that must have probes too.
    pub fn preparation(self) -> &'static [&'static str] {
        match self {
            // from their calls the kinds of memory are known
            Self::Copies => &["cuMemAlloc_v2", "cuMemAllocHost_v2"],
            _ => &[],
        }
    }

    /// Whether this is one of its functions.
    pub fn has(self, function: FunctionId) -> bool {
        catalogue().get(function).is_some_and(|f| self.functions().contains(&f.name))
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    #[test]
    fn every_function_of_a_workload_is_in_the_catalogue() {
        use Workload::{Copies, Count, EntryCount, Launches, Memory, Other, Stream, StreamedLaunches};
        for workload in [Count, Stream, EntryCount, Memory, Launches, StreamedLaunches, Copies, Other] {
            let id = |name: &&str| catalogue().lookup(Api::Driver, None, name).map(|f| f.id);
            assert!(workload.functions().iter().all(|name| workload.has(id(name).unwrap())));
            assert!(workload.preparation().iter().all(|name| !workload.has(id(name).unwrap())));
        }
    }
}
