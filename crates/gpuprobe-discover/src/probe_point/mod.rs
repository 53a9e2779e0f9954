//! Chooses where to put probes: the cheapest safe instruction of each library function, and functions of the Linux
//! kernel.

mod aarch64;
mod branches;
mod candidate;
mod failure;
mod linux_symbols;
mod plan;
mod point;
mod x86_64;

pub(crate) use branches::branch_targets;
pub use failure::FailurePoint;
pub use linux_symbols::{
    LinuxFunction, NvidiaKmod, linux_functions, nvidia_kmods, traceable_functions, tracefs,
};
pub use plan::{AttachPlan, PlannedFunction, Target, plan};
pub use point::{ProbeCost, ProbePoint};
