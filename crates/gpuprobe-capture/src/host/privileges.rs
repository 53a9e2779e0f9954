//! Drops the privileges that are not needed any more. Loaded programs stay loaded; the remaining privileges are for
//! libraries and processes that come later.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::{open_files, urgency};

/// Capabilities for reading other processes and probing their libraries.
const KEPT: CapabilitySet = CapabilitySet::DAC_READ_SEARCH
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::BPF)
    // to open the files that processes have mapped
    .union(CapabilitySet::CHECKPOINT_RESTORE);
/// For a perf event on a function: Linux kernels of 2025 and later require it again instead of `CAP_PERFMON`.
const ADMIN: CapabilitySet = CapabilitySet::SYS_ADMIN;
/// For real-time priority, if the limit does not allow it.
const NICE: CapabilitySet = CapabilitySet::SYS_NICE;

/// Drops every capability that is not needed later, for this thread and the threads and processes that it starts from
/// now on. They cannot be regained, not even by executing a program. With `perf`, keeps those that perf events on
/// functions need.
pub fn drop_privileges(perf: bool) -> io::Result<()> {
    give_up(perf, false)
}

/// The same for a process that executes programs which need the remaining capabilities, also if it does not run as
/// root.
pub fn drop_privileges_except_for_children(perf: bool) -> io::Result<()> {
    give_up(perf, true)
}

fn give_up(perf: bool, for_children: bool) -> io::Result<()> {
    // raising limits needs CAP_SYS_RESOURCE, which is dropped below
    let nice = !urgency::raise_limit();
    if perf {
        open_files::raise_limit();
    }
    let kept = kept(perf, nice);
    // also those that are newer than this program
    let numbers = 0..u64::BITS;
    for capability in numbers.map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if !kept.contains(capability) {
            // without the privilege, or if the Linux kernel has no such capability, this fails and changes nothing
            remove_capability_from_bounding_set(capability).ok();
        }
    }
    set_no_new_privs(true)?;
    if !for_children {
        // older kernels have no ambient capabilities
        clear_ambient_capability_set().ok();
    }
    let had = capabilities(None)?;
    let left = CapabilitySets {
        effective: had.effective & kept,
        permitted: had.permitted & kept,
        // an ambient capability is dropped with the inheritable one of its number
        inheritable: if for_children { had.inheritable & kept } else { CapabilitySet::empty() },
    };
    Ok(set_capabilities(None, left)?)
}

/// Whether this process has any capability. Then it must not trust files that unprivileged users can write.
pub fn is_privileged() -> bool {
    capabilities(None).is_ok_and(|sets| !sets.permitted.is_empty())
}

/// Whether this process has the capability that permits reading the memory of other users' processes.
pub fn may_read_others() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

fn kept(perf: bool, nice: bool) -> CapabilitySet {
    let also = |needed: bool, set| if needed { set } else { CapabilitySet::empty() };
    KEPT | also(perf, ADMIN) | also(nice, NICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this thread can get real-time priority. It must be an ordinary thread again after that.
    fn can_be_urgent() -> bool {
        // SAFETY: this asks about the calling thread and takes no address.
        let policy = || unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
        let urgent = urgency::Urgent::begin();
        let can = policy() == libc::SCHED_RR;
        drop(urgent);
        assert_eq!(policy(), libc::SCHED_OTHER);
        can
    }

    #[test]
    fn a_thread_can_still_get_real_time_priority_without_the_privilege() {
        let (before, after) = std::thread::spawn(|| {
            let before = can_be_urgent();
            drop_privileges(false).unwrap();
            (before, can_be_urgent())
        })
        .join()
        .unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn only_the_needed_capabilities_are_kept() {
        for perf in [false, true] {
            // on its own thread, because it cannot be undone
            let left = std::thread::spawn(move || {
                let before = capabilities(None).unwrap();
                drop_privileges(perf).unwrap();
                (before, capabilities(None).unwrap())
            });
            let (before, after) = left.join().unwrap();
            let kept = kept(perf, !urgency::raise_limit());
            assert_eq!(after.permitted, before.permitted & kept);
            assert_eq!(after.effective, before.effective & kept);
            assert!(after.inheritable.is_empty());
        }
    }
}
