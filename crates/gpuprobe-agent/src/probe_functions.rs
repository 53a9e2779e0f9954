//! The functions that gpuprobe probes, and the semaphores in which the Linux kernel counts the probes.
//!
//! A semaphore is addressed by its offset in the file, so it must be in a section that the file contains and that is
//! mapped writable: `.probes`, as for other libraries with such probes.

use std::hint::black_box;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

#[unsafe(link_section = ".probes")]
#[unsafe(export_name = "gpuprobe_agent_collect_semaphore")]
static COLLECT_SEMAPHORE: AtomicU16 = AtomicU16::new(0);

#[unsafe(link_section = ".probes")]
#[unsafe(export_name = "gpuprobe_agent_nodes_semaphore")]
static NODES_SEMAPHORE: AtomicU16 = AtomicU16::new(0);

#[unsafe(link_section = ".probes")]
#[unsafe(export_name = "gpuprobe_agent_let_go_semaphore")]
static LET_GO_SEMAPHORE: AtomicU16 = AtomicU16::new(0);

/// What is counted here is of no use but to give each function a body of its own, so that none is merged with another.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// A probe here gets the address of a batch and its length.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gpuprobe_agent_emit(batch: *const u8, length: usize) {
    black_box(batch);
    COUNTS[0].fetch_add(black_box(length) as u64, Ordering::Relaxed);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gpuprobe_agent_collect() {
    COUNTS[3].fetch_add(black_box(3), Ordering::Relaxed);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gpuprobe_agent_nodes() {
    COUNTS[1].fetch_add(black_box(1), Ordering::Relaxed);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gpuprobe_agent_let_go() {
    COUNTS[2].fetch_add(black_box(2), Ordering::Relaxed);
}

/// What gpuprobe asks for at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// How many ask for GPU times.
    pub(crate) probes: u16,
    /// Each node of a CUDA graph is to be recorded.
    pub(crate) nodes: bool,
    /// CUPTI is to be left to another user of it.
    pub(crate) let_go: bool,
}

impl Request {
    pub(crate) fn read() -> Self {
        Self {
            probes: count(&COLLECT_SEMAPHORE),
            nodes: count(&NODES_SEMAPHORE) > 0,
            let_go: count(&LET_GO_SEMAPHORE) > 0,
        }
    }
}

fn count(semaphore: &AtomicU16) -> u16 {
    // SAFETY: the pointer is that of a static. Only the Linux kernel writes it, so the read must not be left out.
    unsafe { semaphore.as_ptr().read_volatile() }
}

/// Passes a batch on to the probes.
pub(crate) fn emit(batch: &[u8]) {
    gpuprobe_agent_emit(batch.as_ptr(), batch.len());
}
