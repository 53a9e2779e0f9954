//! Stand-in CUDA libraries and the workloads that run on them, so that everything can be tested without a GPU.
//!
//! The libraries have the full export lists of the catalogue, the right SONAMEs and symbol versions, exact and
//! predictable results, and a chosen prologue before every export. They are written from public prototypes only and
//! compiled with the system's compilers when a test or a build script asks for them. Nothing here needs a GPU, root
//! or cargo.
//!
//! What a call does can be changed by the environment of the program that makes it (`c/faults.h`):
//! `STANDIN_FAIL=cudaMalloc:2:10` fails every tenth call with 2, before it reaches the driver or has any effect, and
//! `STANDIN_DELAY=cudaMemcpy:100` makes each call take 100 us longer. Both take lists, of runtime and driver names.
//! `STANDIN_DELAY_AFTER=cuMemFree_v2:100` makes a free take longer after it has freed, when others can have the address.
//! `STANDIN_IOCTL=cuMemAlloc_v2` makes each call ask something of the driver beneath, if there is a `/dev/nvidiactl`.
//!
//! There are four devices, of which `CUDA_VISIBLE_DEVICES` chooses, by number or by UUID; `STANDIN_FASTEST=2` is counted
//! first where `CUDA_DEVICE_ORDER` does not say otherwise. A thread that has no context current works in the
//! primary context of the first one. A child begins anew: it has no contexts and no memory.
//!
//! NVML has two GPUs, the first two of these; its processes and errors, and how long it takes, are in a file that
//! `STANDIN_NVML` names (`c/nvml.c`).
//!
//! | workload | arguments | what it does |
//! |---|---|---|
//! | `ledger`, `ledger_static` | `--threads N --calls N --seed N --wait --pauses K --hold S --pause-file PATH` | many threads, exactly N calls, all memory families, a ledger of all of it |
//! | `args`, `args_renamed` | `--no-driver` | some 55 functions with distinctive arguments, one line each; runs on the real runtime too |
//! | `aside` | | a driver's call inside a runtime's that is seldom asked for |
//! | `bench` | `ROUNDS CALLS MODE...` | functions that do nothing, in turn, with the time that each took; of the demo's part |
//! | `brief` | | a few driver calls, with the times at which they were made |
//! | `capture` | | a graph by stream capture over two streams, launched four times |
//! | `classic` | `reset` | three allocations, two frees, the end, step by step |
//! | `constructor` | | a call before `main` |
//! | `copies`, `copies_runtime` | `--wait` | every function of the driver, or of the runtime, that copies or fills, with books |
//! | `crash` | `--kill` | killed while a thread is inside a call |
//! | `demo` | | a training loop of two to three seconds, with a leak and a failure |
//! | `diary` | `FILE THREADS` | threads that allocate and free until they are sent a line, and note when each call began and ended |
//! | `driver_args` | | some 35 functions of the driver with distinctive arguments, one line each |
//! | `driver_only` | | only the driver interface |
//! | `forker` | `CHILDREN PROGRAM` | fork and exec, one line per process |
//! | `gpus` | `ASK CHOICE` | memory on every GPU it sees, held until it is sent a line |
//! | `hoarder` | `N` | N allocations, held until it is sent a line, never freed |
//! | `late_dlopen` | `MILLISECONDS` | loads a library that uses the runtime, later |
//! | `leaks`, `leaks_driver` | `--rounds N --threads N --pauses N --pace MS --wait` | five ways to memory, of which two leak, with the books of each |
//! | `leaks_deep` | the same | ways of a hundred frames, on small stacks |
//! | `leaks_many` | the same | ten thousand ways |
//! | `longjmp` | `N` | calls that never return |
//! | `lookups` | | kernels looked up at the driver, before and after a line is sent, and launched |
//! | `names` | `--runtime --wait` | kernels with names as bad as names can be, launched, with the counts |
//! | `paced` | `CALLS PER_SECOND THREADS` | one function at a given rate, or at full speed |
//! | `recursion` | `DEPTH` | calls inside calls, through host functions |
//! | `rules` | `RULE` | one rule of what memory is held, with books after each step |
//! | `spurt` | | one function at full speed, then slowly, with allocations in between and books |
//! | `static_runtime` | | the runtime inside the executable |
//! | `torture` | `--threads N --operations N --seed N --devices N --wait --pauses K --pause-file PATH --without PARTS --delay-after LIST` | all families of memory in random order, by many threads, with books |
//! | `unmapped` | | calls with addresses where nothing is |
//! | `vmm` | | physical handles, mappings, references |
//! | `waits` | | calls from functions of known lines, and two threads that wait |
//!
//! All but `demo` print JSON objects, one a line; each source begins with the fields.

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
pub use inner::{CopyKind, inner_call, inner_copy_call};
pub use options::{BuildOptions, Cuda, Parts, Prologue};

/// Every workload that [`build`] makes with [`Parts::All`].
pub const WORKLOADS: [&str; 34] = [
    "args",
    "args_renamed",
    "aside",
    "brief",
    "capture",
    "classic",
    "constructor",
    "crash",
    "demo",
    "diary",
    "driver_args",
    "driver_only",
    "forker",
    "gpus",
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
    "paced",
    "recursion",
    "rules",
    "spurt",
    "stacks",
    "static_runtime",
    "torture",
    "unmapped",
    "vmm",
    "waits",
];
