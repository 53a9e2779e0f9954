//! Finds the CUDA libraries, and the libraries with hooked functions, that processes map or that the host has
//! installed, and the names of CUDA kernels in the files of a process.

mod inspect;
mod kernel_name_search;
mod of_host;
mod of_process;
mod runtime_version;
mod scan;

pub use inspect::{Inspector, inspect};
pub use kernel_name_search::KernelNameSearch;
pub use of_host::{HostPaths, loader_cache, of_host};
pub use of_process::{copies_stacks, of_pid};
pub(crate) use scan::Names;
pub use scan::{Library, Scan, Symbol, UserId, Users, gpu_api_of};
