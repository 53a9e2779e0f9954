//! Layers above and below CUDA: hooked functions of any library, NVIDIA's own runtime, and the NVIDIA kernel module; and
//! HIP and OpenCL next to it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod exceptions;
mod hip;
mod hip_real;
mod hooks;
mod kmod_ioctls;
mod level_zero;
mod opencl;
mod real_cudart;
mod vendors;
