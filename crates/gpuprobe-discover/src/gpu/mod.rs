//! Finds the NVIDIA device files and GPUs of the host and their errors in the kernel log, and maps a process's GPU numbers to the host's.

mod devices;
mod gpu_processes;
mod host_gpus;
mod kernel_log;
mod logged_xid;
mod visible;

pub use devices::{Device, devices};
pub use gpu_processes::{gpu_processes, maps_nccl, open_gpus, rank_of};
pub use host_gpus::{NVIDIA_PROC_FOLDER, host_gpus};
pub use kernel_log::{KernelLog, LoggedMessages, LoggedXids};
pub use logged_xid::LoggedXid;
pub use visible::View;
