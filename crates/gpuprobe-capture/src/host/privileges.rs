//! Drops the privileges that are not needed any more. Loaded programs stay loaded; the remaining privileges are for
//! libraries and processes that come later.

use std::io;

use super::{open_files, urgency};

/// Capabilities for reading other processes and probing their libraries.
const KEPT: [(u32, &str); 5] = [
    (2, "CAP_DAC_READ_SEARCH"),
    (19, "CAP_SYS_PTRACE"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
    // to open the files that processes have mapped
    (40, "CAP_CHECKPOINT_RESTORE"),
];
/// For a perf event on a function: Linux kernels of 2025 and later require it again instead of `CAP_PERFMON`.
const ADMIN: u32 = 21;
/// For real-time priority, if the limit does not allow it.
const NICE: u32 = 23;
/// The highest possible number of a capability.
const LAST: u32 = 63;

/// Drops every capability that is not needed later, for this thread and the threads and processes that it starts from
/// now on. They cannot be regained, not even by executing a program. With `perf`, keeps those that perf events on
/// functions need.
pub fn drop_privileges(perf: bool) -> io::Result<()> {
    give_up(perf, false)
}

/// The same for a process that executes programs which need the remaining capabilities, also if it does not run as
/// root.
pub fn drop_privileges_except_for_children() -> io::Result<()> {
    give_up(false, true)
}

fn give_up(perf: bool, for_children: bool) -> io::Result<()> {
    // raising limits needs CAP_SYS_RESOURCE, which is dropped below
    let nice = !urgency::raise_limit();
    if perf {
        open_files::raise_limit();
    }
    let is_kept = |capability: u32| {
        is_kept(capability) || (perf && capability == ADMIN) || (nice && capability == NICE)
    };
    for capability in (0..=LAST).filter(|c| !is_kept(*c)) {
        // without the privilege, or if the Linux kernel has no such capability, this fails and changes nothing
        prctl(libc::PR_CAPBSET_DROP, u64::from(capability)).ok();
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    if !for_children {
        // older kernels have no ambient capabilities
        prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64).ok();
    }
    let mut sets = capabilities()?;
    for (half, set) in sets.iter_mut().enumerate() {
        let of_half = (0..32).filter(|bit| is_kept(32 * half as u32 + bit));
        let kept = of_half.fold(0, |all, bit| all | 1 << bit);
        // an ambient capability is dropped with the inheritable one of its number
        let inheritable = if for_children { set.inheritable & kept } else { 0 };
        *set = Sets { effective: set.effective & kept, permitted: set.permitted & kept, inheritable };
    }
    set_capabilities(&sets)
}

/// Whether this process has any capability. Then it must not trust files that unprivileged users can write.
pub fn is_privileged() -> bool {
    capabilities().is_ok_and(|sets| sets.iter().any(|half| half.permitted != 0))
}

fn is_kept(capability: u32) -> bool {
    KEPT.iter().any(|(kept, _)| *kept == capability)
}

fn prctl(option: libc::c_int, value: u64) -> io::Result<()> {
    // SAFETY: these options take numbers and no addresses.
    let done = unsafe { libc::prctl(option, value, 0_u64, 0_u64, 0_u64) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One half of each capability set, as the Linux kernel expects them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The version of the layout, and the thread: 0 is the calling thread.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// The layout of two halves of 32 bits.
const VERSION: u32 = 0x2008_0522;

fn capabilities() -> io::Result<[Sets; 2]> {
    let (mut header, mut sets) = (Header { version: VERSION, pid: 0 }, [Sets::default(); 2]);
    // SAFETY: this version reads the header and fills in two halves; both are valid for the call.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(sets) }
}

fn set_capabilities(sets: &[Sets; 2]) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: this version reads the header and two halves; both are valid for the call.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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
                let before = capabilities().unwrap();
                drop_privileges(perf).unwrap();
                (before, capabilities().unwrap())
            });
            let (before, after) = left.join().unwrap();
            for capability in 0..=LAST {
                let (half, bit) = (capability as usize / 32, 1 << (capability % 32));
                let had = before[half].permitted & bit != 0;
                let has = after[half].permitted & bit != 0;
                let kept = is_kept(capability)
                    || (perf && capability == ADMIN)
                    || (!urgency::raise_limit() && capability == NICE);
                assert_eq!(has, had && kept, "capability {capability}");
            }
            assert_eq!(after.map(|half| half.inheritable), [0, 0]);
        }
    }
}
