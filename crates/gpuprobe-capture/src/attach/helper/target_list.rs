//! The watched processes, for the attach helper, which may outlive the capturing process.

use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// The maps with the watched processes and the answers to paused ones. They exist until the helper exits, also if the
/// process that made them is killed.
#[derive(Debug)]
pub struct TargetList {
    targets: OwnedFd,
    answers: OwnedFd,
}

impl TargetList {
    pub(crate) fn new(targets: OwnedFd, answers: OwnedFd) -> Self {
        Self { targets, answers }
    }

    /// The processes that are watched.
    pub fn tgids(&self) -> Vec<u32> {
        // if the last key read is removed meanwhile, the Linux kernel starts again at the first
        const MAX: usize = 1 << 16;
        let mut all = Vec::new();
        let (mut last, mut next) = (None::<u32>, 0_u32);
        while all.len() < MAX {
            let from = last.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: keys of this map have four bytes, and both pointers are null or valid for as many.
            let failed = unsafe {
                libbpf_sys::bpf_map_get_next_key(
                    self.targets.as_raw_fd(),
                    from.cast(),
                    std::ptr::from_mut(&mut next).cast(),
                )
            };
            if failed != 0 {
                break;
            }
            all.push(next);
            last = Some(next);
        }
        all
    }

    /// Releases a paused process, now and whenever it asks again.
    pub fn release(&self, tgid: u32) {
        let answer = u64::MAX;
        // SAFETY: the key has the map's four bytes and the value its eight. If the process exits at this moment its
        // entry is removed, which has the same result.
        unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.answers.as_raw_fd(),
                std::ptr::from_ref(&tgid).cast(),
                std::ptr::from_ref(&answer).cast(),
                0,
            )
        };
    }
}
