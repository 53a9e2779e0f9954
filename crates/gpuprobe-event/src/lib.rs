//! The vocabulary of gpuprobe: what can happen, and what the functions of CUDA are called.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod ids;

pub use catalogue::{Api, Catalogue, Class, Function, catalogue};
pub use ids::{FunctionId, Tgid, Tid};
