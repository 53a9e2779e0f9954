//! The functions by which CUDA and NVTX begin to use the library.

use std::ffi::c_int;

use crate::collection::Collector;
use crate::nvtx::{self, ExportTables};
use crate::{at_exit, collection, guard, process};

/// The CUDA driver calls it in `cuInit`, if `CUDA_INJECTION64_PATH` names the library. Anything but 1 is a failure.
#[unsafe(no_mangle)]
extern "C" fn InitializeInjection() -> c_int {
    guard::run((), || {
        if let Some(agent) = process::start() {
            agent.with_collector(Collector::begin_during_cu_init);
            agent.set_cuda_used();
        }
    });
    1
}

/// NVTX calls it at the first use of NVTX in each library that contains it, if `NVTX_INJECTION64_PATH` names the library.
/// Anything but 1 is a failure.
#[unsafe(no_mangle)]
extern "C" fn InitializeInjectionNvtx2(tables: Option<ExportTables>) -> c_int {
    guard::run(0, || {
        let (Some(tables), Some(_)) = (tables, process::start()) else { return 0 };
        if !nvtx::install(tables) {
            return 0;
        }
        at_exit::register(at_exit::When::BeforeCupti);
        // the agent's thread would notice a probe only later
        collection::look();
        1
    })
}
