//! Layers above and below CUDA: hooked functions of any library, NVIDIA's own runtime, and the NVIDIA kernel module.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod exceptions;
mod hooks;
mod kmod_ioctls;
mod real_cudart;
