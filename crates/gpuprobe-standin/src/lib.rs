//! Stand-in CUDA libraries and the workloads that run on them, so that everything can be tested without a GPU.
//!
//! The libraries have the full export lists of the catalogue, the right SONAMEs and symbol versions, exact and
//! predictable results, and a chosen prologue before every export. They are written from public prototypes only and
//! compiled with the system's compilers when a test or a build script asks for them. Nothing here needs a GPU, root
//! or cargo.
//!
//! Environment variables of the calling program change the behaviour of calls (`c/faults.h`):
//! `STANDIN_FAIL=cudaMalloc:2:10` fails every tenth call with 2, before it reaches the driver or has any effect, and
//! `STANDIN_DELAY=cudaMemcpy:100` makes each call take 100 us longer. Both accept lists, of runtime and driver names.
//! `STANDIN_DELAY_AFTER=cuMemFree_v2:100` delays a free after its effect, when other threads can get the address.
//! `STANDIN_IOCTL=cuMemAlloc_v2` makes each call do ioctls, if there is a `/dev/nvidiactl`.
//!
//! There are four devices. `CUDA_VISIBLE_DEVICES` selects among them, by number or by UUID; `STANDIN_FASTEST=2` makes
//! that device the first one unless `CUDA_DEVICE_ORDER` says otherwise. A thread without a current context uses the
//! primary context of the first device. A forked child starts without contexts and without memory.
//!
//! `cuInit` loads the library that `CUDA_INJECTION64_PATH` names. CUPTI records what is submitted then, and keeps a ledger
//! of it in the file that `STANDIN_CUPTI_LEDGER` names (`c/cupti.h`).
//!
//! NVML has two GPUs, the first two of these; its processes, errors, MIG instances and delays are in a file that `STANDIN_NVML`
//! names (`c/nvml.c`).
//!
//! `libamdhip64` is the same code behind the names of HIP (`c/hip_functions.def`), and in one library. Its workloads are
//! those of CUDA, compiled with other names (`c/workloads/hip_names.h`). The rules above name its functions as CUDA does.
//! With `STANDIN_HIP_ON_CUDA=1` it calls `libcuda`, as HIP does on NVIDIA's GPUs.
//!
//! | workload | arguments | what it does |
//! |---|---|---|
//! | `ledger`, `ledger_static` | `--threads N --calls N --seed N --wait --pauses K --hold S --pause-file PATH` | many threads, exactly N calls, all memory families, a ledger of all calls |
//! | `args`, `args_renamed` | `--no-driver` | about 55 functions with distinctive arguments, one line each; runs on the real runtime too |
//! | `rare_call` | | a driver call inside a runtime call that is seldom used |
//! | `bench` | `ROUNDS CALLS MODE...` | functions that do nothing, in turn, with the time of each; built with the demo |
//! | `brief` | | a few driver calls, with their times |
//! | `capture` | | a graph by stream capture over two streams, launched four times |
//! | `classic` | `reset` | three allocations, two frees and the exit, step by step |
//! | `constructor` | | a call before `main` |
//! | `copies`, `copies_runtime` | `--wait` | every function of the driver, or of the runtime, that copies or sets memory, with a ledger |
//! | `crash` | `--kill` | killed while a thread is inside a call |
//! | `demo` | | a training loop of two to three seconds, with a leak and a failure |
//! | `diary` | `FILE THREADS` | threads that allocate and free until a line arrives, and record when each call began and ended |
//! | `driver_args` | | about 35 functions of the driver with distinctive arguments, one line each |
//! | `driver_only` | | only the driver interface |
//! | `forker` | `CHILDREN PROGRAM` | fork and exec, one line per process |
//! | `gpu_work` | `--threads N --operations N --pause US --wait --fork --hold MS` | kernels, copies, memsets and graphs on many streams, with their counts |
//! | `gpus` | `ASK CHOICE` | memory on every GPU it sees, live until a line arrives |
//! | `hangs` | `THREADS` | threads that wait for the device and for a stream, and a call that is left by longjmp |
//! | `hoarder` | `N` | N allocations, live until a line arrives, never freed |
//! | `late_dlopen` | `MILLISECONDS` | loads a library that uses the runtime, later |
//! | `leaks`, `leaks_driver` | `--rounds N --threads N --pauses N --pace MS --wait` | five call sites that allocate, of which two leak, with a ledger of each |
//! | `leaks_deep` | the same | stacks of a hundred frames, on small stacks |
//! | `leaks_many` | the same | ten thousand different stacks |
//! | `longjmp` | `N` | calls that never return |
//! | `lookups` | | kernels looked up at the driver, before and after a line arrives, and launched |
//! | `names` | `--runtime --wait` | kernels with difficult names, launched, with the counts |
//! | `nvtx_ranges` | `--threads N --rounds N --pause US` | ranges and marks of NVTX around launches, with their counts |
//! | `paced` | `CALLS PER_SECOND THREADS` | one function at a given rate, or at full speed |
//! | `prepared` | `--wait` | looks up kernels and pins memory, then launches and copies after a line, with a ledger |
//! | `recursion` | `DEPTH` | calls inside calls, through host functions |
//! | `rules` | `RULE` | one rule of the memory accounting, with a ledger after each step |
//! | `rates` | `MODE SECONDS` | several functions at rates that change, with a ledger fifty times a second |
//! | `spurt` | | one function at full speed, then slowly, with allocations in between and a ledger |
//! | `static_runtime` | | the runtime inside the executable |
//! | `tensors` | those of `leaks` | tensors of a framework's allocator on two GPUs, allocated and freed in random order by many threads, with a ledger of each call site and GPU |
//! | `torture` | `--threads N --operations N --seed N --devices N --wait --pauses K --pause-file PATH --without PARTS --delay-after LIST` | all families of memory in random order, by many threads, with a ledger |
//! | `unmapped` | | calls with unmapped addresses |
//! | `vmm` | | physical handles, mappings, references |
//! | `waits` | | calls from functions of known lines, and two threads that wait |
//!
//! All except `demo` print JSON objects, one per line; each source begins with a description of the fields.

#![forbid(unsafe_code)]

mod compile;
mod error;
mod exports;
mod generate;
mod inner;
mod lock;
mod options;
mod sources;

pub use compile::{Built, build, build_or_copy};
pub use error::Error;
pub use exports::{ExportList, Library};
pub use inner::{CopyKind, cuda_function, inner_call, inner_copy_call};
pub use options::{BuildOptions, Cuda, Parts, Prologue};

/// Workloads of [`Parts::All`] that succeed without arguments; `crash` waits to be killed.
pub const WORKLOADS: [&str; 41] = [
    "args",
    "args_renamed",
    "rare_call",
    "brief",
    "callers",
    "capture",
    "classic",
    "constructor",
    "crash",
    "demo",
    "diary",
    "driver_args",
    "driver_only",
    "forker",
    "gpu_work",
    "gpus",
    "hangs",
    "hoarder",
    "late_dlopen",
    "ledger",
    "ledger_static",
    "leaks",
    "leaks_deep",
    "leaks_driver",
    "leaks_many",
    "longjmp",
    "lookups",
    "nvtx_ranges",
    "paced",
    "prepared",
    "rates",
    "recursion",
    "rules",
    "spurt",
    "stacks",
    "static_runtime",
    "tensors",
    "torture",
    "unmapped",
    "vmm",
    "waits",
];
