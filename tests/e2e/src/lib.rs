//! What the end-to-end tests share: the binary under test, stand-ins, running programs with a limit, reading traces.
//!
//! Everything here panics with what it was doing rather than return an error: a test has nothing better to do.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod certificates;
pub mod chaos;
pub mod compile;
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
pub mod recording;
pub mod site_ledger;
pub mod stalled_fs;
pub mod tiers;
pub mod tracing;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use gpuprobe_test_macros::bpf_test;
pub use process::{Finished, Outcome, Run, Talk};
pub use recording::Recording;
pub use tracing::Tracing;

static ALONE: RwLock<()> = RwLock::new(());

/// Held by tests that keep every core busy, measure time or must have the host for themselves, so that they do not disturb each
/// other.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    // a test that failed while it held this has said so itself
    ALONE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by tests of the same file that may run beside each other, and not beside those.
pub fn together() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}
