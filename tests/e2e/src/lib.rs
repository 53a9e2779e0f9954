//! Shared parts of the end-to-end tests: the binary under test, stand-ins, running programs with a time limit,
//! reading traces.
//!
//! Everything here panics instead of returning errors, because a test cannot handle them.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod certificates;
pub mod chaos;
pub mod compile;
pub mod cupti_ledger;
pub mod devices;
pub mod fixtures;
pub mod gpu_listing;
pub mod ledger;
pub mod linux;
pub mod memory_ledger;
pub mod metrics;
pub mod needs;
pub mod notes;
pub mod process;
pub mod python;
pub mod real_runtime;
pub mod recording;
pub mod sampled;
pub mod site_ledger;
pub mod stalled_fs;
pub mod terminal;
pub mod tiers;
pub mod tracing;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use gpuprobe_test_macros::bpf_test;
pub use process::{Finished, Outcome, Run, Talk};
pub use recording::Recording;
pub use tracing::Tracing;

static ALONE: RwLock<()> = RwLock::new(());

/// The lock of tests marked `alone`: they keep every core busy, measure time or need the whole host.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    // a test that panicked with this lock has reported its own failure
    ALONE.write().unwrap_or_else(PoisonError::into_inner)
}

/// The lock of tests marked `together`: they may run at the same time as each other, but not as those marked `alone`.
pub fn together() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}
