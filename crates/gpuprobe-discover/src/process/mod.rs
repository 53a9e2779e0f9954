//! Reads what /proc says about one process: its mapped code, memory, environment, dynamic loader, origin, container and pod.

mod agent_library;
mod container;
mod environ;
mod loader;
mod mapped_file;
mod maps;
mod origin;
mod pods;
mod process_memory;
mod torch_backend;

pub use agent_library::{
    AgentLibrary, CuptiLibrary, GpuTimeLibraries, ProcessFile, RequestPoint, gpu_time_libraries,
};
pub use container::{container_named, container_of};
pub use environ::variable_at_start;
pub(crate) use environ::{at_start as environment_at_start, current as current_environment};
pub use loader::{Loader, loader_of};
pub use mapped_file::{ProcessMaps, mapped_range};
pub(crate) use mapped_file::{lasting_path, load_bias, open_mapped, read_maps};
pub use maps::offset_in_file;
pub(crate) use maps::{CodeRange, MappedFile, Mapping, code_ranges, executable_files, mapping_of};
pub use origin::{Origin, origin_of};
pub use pods::{CONTAINER_LOGS, pod_of};
pub use process_memory::{Memory, ProcessMemory};
pub use torch_backend::uses_cuda_malloc_async;
