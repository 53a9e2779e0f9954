//! Layers above and below CUDA, and next to it: hooked functions of any library, NVIDIA's own runtime, the NVIDIA kernel
//! module, and HIP.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod exceptions;
mod hip;
mod hip_real;
mod hooks;
mod kmod_ioctls;
mod real_cudart;
