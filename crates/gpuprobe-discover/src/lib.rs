//! Finds the CUDA libraries of processes and of the host, their functions, and where to probe each.
//! Reads /proc and ELF files only: nothing here loads BPF, and no privilege is assumed. Whatever a process
//! maps or names is taken as hostile input, so every read is bounded and every refusal names the file.
#![forbid(unsafe_code)]

mod aarch64;
mod access;
mod address_space;
mod branches;
mod container;
mod demangle;
mod devices;
mod elf;
mod environ;
mod error;
mod file;
pub mod fuzz;
mod gpus;
mod host;
mod inspect;
mod kernel;
mod ldcache;
mod library;
mod loader;
mod maps;
mod plan;
mod pods;
mod point;
mod process;
mod runtime_version;
mod skipped;
mod symbolize;
#[cfg(test)]
mod testing;
mod trust;
mod unwind;
mod unwind_row;
mod unwind_table;
mod visible;

pub use access::{
    Stall, StallKind, canonical, identity, memory, read_files_by, serve_files, start_readers, take_stalls,
};
pub use container::{container_named, container_of};
pub use demangle::demangled;
pub use devices::{Device, devices};
pub use error::{Defect, DiscoverError};
pub use file::{FileId, OpenedFile};
pub use gpus::{DRIVER_FOLDER, host_gpus};
pub use host::{HostPaths, loader_cache, of_host};
pub use inspect::{Inspector, inspect};
pub use kernel::{
    DriverModule, KernelFunction, driver_modules, kernel_functions, traceable_functions, tracefs,
};
pub use library::{Library, Scan, Symbol, UserId, Users};
pub use loader::{Loader, loader_of};
pub use maps::{offset_in_file, without_deleted_mark};
pub use plan::{AttachPlan, PlannedFunction, Target, plan};
pub use pods::{CONTAINER_LOGS, pod_of};
pub use point::{ProbeCost, ProbePoint};
pub use process::{copies_stacks, of_pid};
pub use skipped::{SkipCause, Skipped};
pub use symbolize::{Place, Symbolizer};
pub use trust::{Owners, is_shared, resolved, sudo_user, trusted};
pub use unwind::{FRAME_LIMIT, Registers, Stack, StackEnd, Unwinder};
pub use visible::View;
