//! The functions by which CUDA and NVTX begin to use the library.

use std::ffi::c_int;

use crate::collection::Collector;
use crate::{guard, process};

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
