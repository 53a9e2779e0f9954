//! `libgpuprobe_agent.so`: a library inside CUDA programs that reports what GPUs executed.
//!
//! The CUDA driver loads it if `CUDA_INJECTION64_PATH` names it, and NVTX if `NVTX_INJECTION64_PATH` does. Until gpuprobe
//! attaches a probe to it, it is one sleeping thread. The Linux kernel counts attached probes in the semaphores of
//! `probe_functions`; while `gpuprobe_agent_collect` is probed, the thread has CUPTI collect, turns its records into
//! batches (`gpuprobe_event::agent`) and passes each to `gpuprobe_agent_emit`, where another probe reads it.
//!
//! The library is a guest: the program's threads neither allocate nor wait in it, no panic leaves it, memory is bounded,
//! a forked child has nothing of it, and CUPTI is left alone where something else uses it.

mod agent_thread;
mod at_exit;
mod buffers;
mod collection;
mod cupti;
mod guard;
mod injection;
mod monotonic;
mod name_hash;
mod nvtx;
mod probe_functions;
mod process;
mod wakeup;
