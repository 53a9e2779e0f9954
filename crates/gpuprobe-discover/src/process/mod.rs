//! Reads what /proc says about one process: its mapped code, environment, dynamic loader, container and pod.

mod container;
mod environ;
mod loader;
mod mapped_file;
mod maps;
mod pods;

pub use container::{container_named, container_of};
pub(crate) use environ::current as current_environment;
pub use loader::{Loader, loader_of};
pub(crate) use mapped_file::{open_mapped, read_maps};
pub use maps::offset_in_file;
pub(crate) use maps::{CodeRange, MappedFile, Mapping, code_ranges, executable_files, mapping_of};
pub use pods::{CONTAINER_LOGS, pod_of};
