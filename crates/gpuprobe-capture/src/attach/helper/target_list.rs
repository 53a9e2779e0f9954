//! The processes that are watched, for a process that outlives the one that watches them.

use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// The maps of some capture that say who is held: they stay when whoever made them is killed.
#[derive(Debug)]
pub struct TargetList {
    targets: OwnedFd,
    answers: OwnedFd,
}

impl TargetList {
    /// Of the processes that are watched, and of the answers to those that wait.
    pub(crate) fn new(targets: OwnedFd, answers: OwnedFd) -> Self {
        Self { targets, answers }
    }

    /// The processes that are watched.
    pub fn tgids(&self) -> Vec<u32> {
        // a key that goes while it is the last one read makes the kernel begin anew
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

    /// Answers every question of a process, those to come as well.
    pub fn let_go(&self, tgid: u32) {
        let answer = u64::MAX;
        // SAFETY: the key has the map's four bytes and the value its eight. It may end in this moment, and its row with
        // it, which is as good.
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
