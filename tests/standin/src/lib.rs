//! Stand-in CUDA libraries and the workloads that run on them, so that everything can be tested without a GPU.
//!
//! The libraries have the full export lists of the catalogue, the right SONAMEs and symbol versions, exact and
//! predictable results, and a chosen prologue before every export. They are written from public prototypes only and
//! compiled with the system's C compiler when a test or a build script asks for them. Nothing here needs a GPU, root
//! or cargo.

#![forbid(unsafe_code)]

mod compile;
mod error;
mod exports;
mod generate;
mod inner;
mod lock;
mod options;
mod sources;

pub use compile::{Built, build};
pub use error::Error;
pub use exports::{ExportList, Library};
pub use inner::{CopyKind, inner_call, inner_copy_call};
pub use options::{BuildOptions, Cuda, Parts, Prologue};

/// Every workload that [`build`] makes with [`Parts::All`].
pub const WORKLOADS: [&str; 13] = [
    "args",
    "constructor",
    "crash",
    "demo",
    "driver_only",
    "forker",
    "late_dlopen",
    "ledger",
    "ledger_static",
    "longjmp",
    "recursion",
    "static_runtime",
    "vmm",
];
