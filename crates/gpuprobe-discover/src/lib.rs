//! Finds the CUDA libraries of processes and of the host, their functions, and where to probe each of them; unwinds
//! stacks and resolves native and Python frames. It only reads /proc, memory and ELF files: it loads no BPF and assumes
//! no privilege. Everything that a process maps or names is untrusted input, so every read is bounded and every error
//! names the file.
#![forbid(unsafe_code)]

mod access;
mod elf;
mod error;
pub mod fuzz;
mod gpu;
mod library;
mod probe_point;
mod process;
pub mod python;
mod skipped;
mod stack;
#[cfg(test)]
mod testing;

pub use access::{
    FileId, OpenedFile, Owners, Stall, StallKind, canonical, identity, is_shared, memory, read_files_by,
    resolved, serve_files, start_readers, sudo_user, take_stalls, trusted, without_deleted_mark,
};
pub use elf::demangled;
pub use error::{Defect, DiscoverError};
pub use gpu::{
    Device, KernelLog, LoggedMessages, LoggedXid, LoggedXids, NVIDIA_PROC_FOLDER, View, devices,
    gpu_processes, host_gpus, maps_nccl, open_gpus, rank_of,
};
pub use library::{
    HostPaths, Inspector, KernelNameSearch, Library, Scan, Symbol, UserId, Users, copies_stacks, gpu_api_of,
    inspect, loader_cache, of_host, of_pid,
};
pub use probe_point::{
    AttachPlan, FailurePoint, LinuxFunction, NvidiaKmod, PlannedFunction, ProbeCost, ProbePoint, Target,
    linux_functions, nvidia_kmods, plan, traceable_functions, tracefs,
};
pub use process::{
    AgentLibrary, CONTAINER_LOGS, CuptiLibrary, GpuTimeLibraries, Loader, Memory, Origin, ProcessFile,
    ProcessMaps, ProcessMemory, RequestPoint, container_named, container_of, gpu_time_libraries, loader_of,
    mapped_range, offset_in_file, origin_of, pod_of, uses_cuda_malloc_async, variable_at_start,
};
pub use skipped::{SkipCause, Skipped};
pub use stack::{
    FRAME_LIMIT, PRESERVED_REGISTERS, Registers, ReplacedReturn, ResolvedAddress, Stack, StackEnd,
    Symbolizer, ThreadRegisters, Unwinder, return_address_in,
};
