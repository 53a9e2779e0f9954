//! Names of system calls that threads wait in.

/// The processor, which decides the numbers of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    /// The one that this program was built for, and so that of the threads it can see.
    pub const OF_HOST: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };
}

/// The name, and the number on each architecture; an architecture without an old system call has a newer one instead.
type Row = (&'static str, Option<u32>, Option<u32>);

/// System calls that can take long, in the order of their names. Others are shown by their numbers.
const SYSTEM_CALLS: &[Row] = &[
    ("accept", Some(43), Some(202)),
    ("accept4", Some(288), Some(242)),
    ("brk", Some(12), Some(214)),
    ("clock_nanosleep", Some(230), Some(115)),
    ("clone", Some(56), Some(220)),
    ("clone3", Some(435), Some(435)),
    ("close", Some(3), Some(57)),
    ("connect", Some(42), Some(203)),
    ("copy_file_range", Some(326), Some(285)),
    ("epoll_pwait", Some(281), Some(22)),
    ("epoll_pwait2", Some(441), Some(441)),
    ("epoll_wait", Some(232), None),
    ("execve", Some(59), Some(221)),
    ("exit", Some(60), Some(93)),
    ("exit_group", Some(231), Some(94)),
    ("fallocate", Some(285), Some(47)),
    ("fcntl", Some(72), Some(25)),
    ("fdatasync", Some(75), Some(83)),
    ("flock", Some(73), Some(32)),
    ("fsync", Some(74), Some(82)),
    ("futex", Some(202), Some(98)),
    ("futex_wait", Some(455), Some(455)),
    ("futex_waitv", Some(449), Some(449)),
    ("getdents64", Some(217), Some(61)),
    ("io_getevents", Some(208), Some(4)),
    ("io_uring_enter", Some(426), Some(426)),
    ("ioctl", Some(16), Some(29)),
    ("madvise", Some(28), Some(233)),
    ("mbind", Some(237), Some(235)),
    ("membarrier", Some(324), Some(283)),
    ("migrate_pages", Some(256), Some(238)),
    ("mlock", Some(149), Some(228)),
    ("mlockall", Some(151), Some(230)),
    ("mmap", Some(9), Some(222)),
    ("move_pages", Some(279), Some(239)),
    ("mprotect", Some(10), Some(226)),
    ("mq_timedreceive", Some(243), Some(183)),
    ("mq_timedsend", Some(242), Some(182)),
    ("mremap", Some(25), Some(216)),
    ("msgrcv", Some(70), Some(188)),
    ("msgsnd", Some(69), Some(189)),
    ("munlock", Some(150), Some(229)),
    ("munmap", Some(11), Some(215)),
    ("nanosleep", Some(35), Some(101)),
    ("newfstatat", Some(262), Some(79)),
    ("open", Some(2), None),
    ("openat", Some(257), Some(56)),
    ("openat2", Some(437), Some(437)),
    ("pause", Some(34), None),
    ("pidfd_getfd", Some(438), Some(438)),
    ("poll", Some(7), None),
    ("ppoll", Some(271), Some(73)),
    ("pread64", Some(17), Some(67)),
    ("preadv", Some(295), Some(69)),
    ("preadv2", Some(327), Some(286)),
    ("process_vm_readv", Some(310), Some(270)),
    ("process_vm_writev", Some(311), Some(271)),
    ("pselect6", Some(270), Some(72)),
    ("pwrite64", Some(18), Some(68)),
    ("pwritev", Some(296), Some(70)),
    ("read", Some(0), Some(63)),
    ("readv", Some(19), Some(65)),
    ("recvfrom", Some(45), Some(207)),
    ("recvmmsg", Some(299), Some(243)),
    ("recvmsg", Some(47), Some(212)),
    ("restart_syscall", Some(219), Some(128)),
    ("rt_sigsuspend", Some(130), Some(133)),
    ("rt_sigtimedwait", Some(128), Some(137)),
    ("sched_yield", Some(24), Some(124)),
    ("select", Some(23), None),
    ("semop", Some(65), Some(193)),
    ("semtimedop", Some(220), Some(192)),
    ("sendfile", Some(40), Some(71)),
    ("sendmmsg", Some(307), Some(269)),
    ("sendmsg", Some(46), Some(211)),
    ("sendto", Some(44), Some(206)),
    ("splice", Some(275), Some(76)),
    ("sync", Some(162), Some(81)),
    ("syncfs", Some(306), Some(267)),
    ("tgkill", Some(234), Some(131)),
    ("vfork", Some(58), None),
    ("wait4", Some(61), Some(260)),
    ("waitid", Some(247), Some(95)),
    ("write", Some(1), Some(64)),
    ("writev", Some(20), Some(66)),
];

/// The name of a system call; `None` if it is not in the table.
pub(super) fn name(number: u32, architecture: Architecture) -> Option<&'static str> {
    let number_of = |(_, x86_64, aarch64): &Row| match architecture {
        Architecture::X86_64 => *x86_64,
        Architecture::Aarch64 => *aarch64,
    };
    SYSTEM_CALLS.iter().find(|row| number_of(row) == Some(number)).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_number_means_another_system_call_on_another_architecture() {
        let names = |number| [Architecture::X86_64, Architecture::Aarch64].map(|a| name(number, a));
        assert_eq!(names(202), [Some("futex"), Some("accept")]);
        assert_eq!(names(98), [None, Some("futex")]);
        assert_eq!(names(7), [Some("poll"), None]);
        assert_eq!(names(29), [None, Some("ioctl")]);
        assert_eq!(names(16), [Some("ioctl"), None]);
        assert_eq!(names(426), [Some("io_uring_enter"); 2]);
        assert_eq!(names(u32::MAX), [None; 2]);
    }

    #[test]
    fn each_name_and_number_is_in_the_table_once() {
        assert!(SYSTEM_CALLS.is_sorted_by(|a, b| a.0 < b.0));
        for numbers in [|row: &Row| row.1, |row: &Row| row.2] {
            let all: Vec<u32> = SYSTEM_CALLS.iter().filter_map(numbers).collect();
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        }
    }
}
