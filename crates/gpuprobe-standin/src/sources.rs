//! The C and C++ sources, embedded so that they can be built from any folder.

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        /// Relative path and text of every source file.
        pub(crate) const SOURCES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../c/", $name)))),*];
    };
}

sources! {
    "bench_driver.S", "bench_driver.c", "c10.c", "c10_cuda.cpp", "c10_cuda.h", "cuda_types.h", "cupti.c", "cupti.h", "cupti_records.c", "driver.h", "driver_context.c", "driver_copies.c", "driver_device.c", "driver_graphs.c",
    "driver_heap.c", "driver_memory.c", "driver_vmm.c", "driver_gpu_ops.c", "driver_trace.c", "faults.c", "faults.h",
    "gpu_code.c", "gpu_op.h", "hip_functions.def", "inner_calls.def", "nccl.c", "nvml.c", "nvml.h", "nvml_health.c", "nvml_mig.c", "nvml_types.h", "runtime.h", "runtime_copy.c", "runtime_copy.h",
    "runtime_copy_named.c", "runtime_core.c",
    "runtime_memory.c", "runtime_gpu_ops.c", "stubs.h", "workloads/args.c", "workloads/args_print.h",
    "workloads/rare_call.c", "workloads/bench.c", "workloads/brief.c", "workloads/callers.c",
    "workloads/capture.c",
    "workloads/classic.c", "workloads/collectives.c", "workloads/constructor.c", "workloads/copies.c", "workloads/copies.h",
    "workloads/copies_runtime.c", "workloads/copies_table.c", "workloads/crash.c", "workloads/cuda_api.h",
    "workloads/demo.c", "workloads/diary.c", "workloads/driver_args.c", "workloads/driver_only.c", "workloads/forker.c",
    "workloads/gaps.c", "workloads/gpu_work.c", "workloads/gpus.c", "workloads/hangs.c", "workloads/hip_calls.c", "workloads/hip_names.h", "workloads/hoarder.c", "workloads/late_dlopen.c",
    "workloads/launches.c", "workloads/launches.h", "workloads/launches_counted.c",
    "workloads/launches_doors.c", "workloads/launches_hip.c",
    "workloads/launches_graphs.c", "workloads/leaks.cpp",
    "workloads/leaks.h", "workloads/leaks_deep.cpp", "workloads/leaks_many.cpp", "workloads/ledger.c",
    "workloads/ledger.h", "workloads/ledger_print.c", "workloads/ledger_calls.c", "workloads/longjmp.c",
    "workloads/lookups.c", "workloads/names.c", "workloads/nvtx_ranges.c", "workloads/paced.c", "workloads/plugin.c", "workloads/prepared.c", "workloads/rates.c", "workloads/recursion.c",
    "workloads/rules.c", "workloads/rules.h", "workloads/rules_context.c", "workloads/rules_vmm.c",
    "workloads/spurt.c", "workloads/stacks.c", "workloads/static_runtime.c", "workloads/tensors.cpp", "workloads/torture.c", "workloads/torture.h",
    "workloads/torture_context.c", "workloads/torture_memory.c", "workloads/torture_print.c",
    "workloads/torture_vmm.c", "workloads/unmapped.c", "workloads/vmm.c", "workloads/waits.c",
}

/// The table of inner calls.
pub(crate) const INNER_CALLS: &str = include_str!("../c/inner_calls.def");

/// The table of the functions of HIP.
pub(crate) const HIP_FUNCTIONS: &str = include_str!("../c/hip_functions.def");

/// C files of the CUDA runtime, shared and static.
pub(crate) const RUNTIME: &[&str] = &[
    "faults.c",
    "runtime_core.c",
    "runtime_copy.c",
    "runtime_copy_named.c",
    "runtime_memory.c",
    "runtime_gpu_ops.c",
];

/// C files of the CUDA driver.
pub(crate) const DRIVER: &[&str] = &[
    "driver_context.c",
    "driver_copies.c",
    "driver_device.c",
    "driver_graphs.c",
    "driver_heap.c",
    "driver_memory.c",
    "driver_vmm.c",
    "driver_gpu_ops.c",
    "driver_trace.c",
    "faults.c",
];
