//! A seccomp filter for the daemon: system calls that it gives up after its start.
//!
//! This is a deny-list, not an allow-list. What the daemon calls later depends on libraries that are not ours: the C
//! library, the TLS library, and NVML, which comes with the host's driver. An allow-list would break the daemon on
//! some host with the next release of one of them. What a daemon never needs is known: to execute programs, to change
//! other processes, mounts, modules, clocks or users, to load BPF programs, to make memory executable. A denied call
//! fails with EPERM and does not kill the daemon, because NVML tries to execute a helper if device files are missing,
//! and works without it.

use std::io;
use std::mem::offset_of;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long,
    seccomp_data, sock_filter,
};

/// The system call numbers of this architecture; calls with those of others are refused.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// From here on the numbers are those of the x32 interface, which has other numbers for the same calls.
#[cfg(target_arch = "x86_64")]
const OTHER_NUMBERS: u32 = 0x4000_0000;

/// Denied whatever the arguments are.
const REFUSED: &[(&str, c_long)] = &[
    // programs
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    // other processes
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("process_madvise", libc::SYS_process_madvise),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ("tkill", libc::SYS_tkill),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
    ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    // mounts and namespaces
    ("mount", libc::SYS_mount),
    ("umount2", libc::SYS_umount2),
    ("move_mount", libc::SYS_move_mount),
    ("open_tree", libc::SYS_open_tree),
    ("fsopen", libc::SYS_fsopen),
    ("fsconfig", libc::SYS_fsconfig),
    ("fsmount", libc::SYS_fsmount),
    ("fspick", libc::SYS_fspick),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("pivot_root", libc::SYS_pivot_root),
    ("chroot", libc::SYS_chroot),
    ("setns", libc::SYS_setns),
    ("unshare", libc::SYS_unshare),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    // the machine
    ("init_module", libc::SYS_init_module),
    ("finit_module", libc::SYS_finit_module),
    ("delete_module", libc::SYS_delete_module),
    ("kexec_load", libc::SYS_kexec_load),
    ("kexec_file_load", libc::SYS_kexec_file_load),
    ("reboot", libc::SYS_reboot),
    ("swapon", libc::SYS_swapon),
    ("swapoff", libc::SYS_swapoff),
    ("settimeofday", libc::SYS_settimeofday),
    ("adjtimex", libc::SYS_adjtimex),
    ("clock_settime", libc::SYS_clock_settime),
    ("clock_adjtime", libc::SYS_clock_adjtime),
    ("sethostname", libc::SYS_sethostname),
    ("setdomainname", libc::SYS_setdomainname),
    ("acct", libc::SYS_acct),
    ("quotactl", libc::SYS_quotactl),
    ("syslog", libc::SYS_syslog),
    ("personality", libc::SYS_personality),
    #[cfg(target_arch = "x86_64")]
    ("iopl", libc::SYS_iopl),
    #[cfg(target_arch = "x86_64")]
    ("ioperm", libc::SYS_ioperm),
    #[cfg(target_arch = "x86_64")]
    ("modify_ldt", libc::SYS_modify_ldt),
    // users and keys
    ("setuid", libc::SYS_setuid),
    ("setgid", libc::SYS_setgid),
    ("setreuid", libc::SYS_setreuid),
    ("setregid", libc::SYS_setregid),
    ("setresuid", libc::SYS_setresuid),
    ("setresgid", libc::SYS_setresgid),
    ("setgroups", libc::SYS_setgroups),
    ("add_key", libc::SYS_add_key),
    ("request_key", libc::SYS_request_key),
    ("keyctl", libc::SYS_keyctl),
    // often used to attack the Linux kernel; io_uring also bypasses seccomp filters
    ("userfaultfd", libc::SYS_userfaultfd),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("fanotify_init", libc::SYS_fanotify_init),
    // can make memory executable
    ("shmat", libc::SYS_shmat),
];

/// Socket families that stay allowed: the endpoint's, and those of the C library and NVML.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
/// The command of bpf() that loads a program.
const BPF_PROG_LOAD: u32 = 5;

const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
/// For clone3: the C library falls back to clone(), whose flags a filter can read.
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// Installs the filter for all threads of this process and its future children; it cannot be removed. Returns `false`
/// if the Linux kernel has no seccomp filters.
pub fn install_seccomp_filter() -> io::Result<bool> {
    install(libc::SECCOMP_FILTER_FLAG_TSYNC)
}

fn install(flags: libc::c_ulong) -> io::Result<bool> {
    // without it, or a capability, no filter is taken
    rustix::thread::set_no_new_privs(true)?;
    let mut program = program();
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the program and what it points at are valid for the call, which copies them.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    match done {
        0 => Ok(true),
        1.. => Err(io::Error::other(format!("thread {done} has another filter"))),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => Ok(false),
            error => Err(error),
        },
    }
}

/// The filter, as instructions.
fn program() -> Vec<sock_filter> {
    let number = offset_of!(seccomp_data, nr);
    let mut all = vec![
        load(offset_of!(seccomp_data, arch)),
        jump(BPF_JEQ, ARCHITECTURE, 1, 0),
        give(REFUSE),
        load(number),
    ];
    #[cfg(target_arch = "x86_64")]
    all.extend([jump(libc::BPF_JGE, OTHER_NUMBERS, 0, 1), give(REFUSE)]);
    for (_, call) in REFUSED {
        all.extend([jump(BPF_JEQ, *call as u32, 0, 1), give(REFUSE)]);
    }
    all.extend([jump(BPF_JEQ, libc::SYS_clone3 as u32, 0, 1), give(UNKNOWN)]);
    let is_own = [load(argument(0)), jump(BPF_JEQ, std::process::id(), 1, 0), give(REFUSE)];
    let families = FAMILIES.iter().enumerate().map(|(at, family)| {
        let left = u8::try_from(FAMILIES.len() - at).unwrap_or(0);
        jump(BPF_JEQ, *family as u32, left, 0)
    });
    let families: Vec<_> = [load(argument(0))].into_iter().chain(families).chain([give(REFUSE)]).collect();
    let executable = libc::PROT_EXEC as u32;
    let writable_too = (libc::PROT_EXEC | libc::PROT_WRITE) as u32;
    let mask = sock_filter { code: (BPF_ALU | BPF_AND | BPF_K) as u16, jt: 0, jf: 0, k: writable_too };
    let checks: [(c_long, &[sock_filter]); 9] = [
        (libc::SYS_kill, &is_own),
        (libc::SYS_tgkill, &is_own),
        (libc::SYS_socket, &families),
        (libc::SYS_clone, &[load(argument(0)), jump(BPF_JSET, NEW_NAMESPACES, 0, 1), give(REFUSE)]),
        (libc::SYS_bpf, &[load(argument(0)), jump(BPF_JEQ, BPF_PROG_LOAD, 0, 1), give(REFUSE)]),
        // injects input into the terminal
        (libc::SYS_ioctl, &[load(argument(1)), jump(BPF_JEQ, libc::TIOCSTI as u32, 0, 1), give(REFUSE)]),
        (libc::SYS_mmap, &[load(argument(2)), mask, jump(BPF_JEQ, writable_too, 0, 1), give(REFUSE)]),
        (libc::SYS_mprotect, &[load(argument(2)), jump(BPF_JSET, executable, 0, 1), give(REFUSE)]),
        (libc::SYS_pkey_mprotect, &[load(argument(2)), jump(BPF_JSET, executable, 0, 1), give(REFUSE)]),
    ];
    for (call, check) in checks {
        let length = u8::try_from(check.len() + 1).unwrap_or(0);
        all.push(jump(BPF_JEQ, call as u32, 0, length));
        all.extend_from_slice(check);
        all.push(give(ALLOW));
    }
    all.push(give(ALLOW));
    all
}

/// Loads a word of the seccomp data.
fn load(at: usize) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: at as u32 }
}

/// Skips `fits` instructions if the comparison holds, else `fits_not`.
fn jump(how: u32, value: u32, fits: u8, fits_not: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | how | BPF_K) as u16, jt: fits, jf: fits_not, k: value }
}

fn give(verdict: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: verdict }
}

/// The lower 32 bits of an argument.
fn argument(number: usize) -> usize {
    offset_of!(seccomp_data, args) + 8 * number
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on a thread of its own, because a filter cannot be removed.
    fn filtered(then: impl FnOnce() + Send + 'static) {
        std::thread::spawn(|| {
            assert!(install(0).unwrap(), "this kernel has filters");
            then();
        })
        .join()
        .unwrap();
    }

    /// The errno of a call. With arguments of -1 each of these calls fails without the filter too, but not with
    /// EPERM.
    fn errno(call: c_long, arguments: [i64; 6]) -> Option<i32> {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: no argument is an address of ours, so nothing of ours is written.
        let done = unsafe { libc::syscall(call, a, b, c, d, e, f) };
        (done < 0).then(|| io::Error::last_os_error().raw_os_error()).flatten()
    }

    #[test]
    fn what_a_daemon_never_needs_is_refused() {
        filtered(|| {
            for (name, call) in REFUSED {
                assert_eq!(errno(*call, [-1; 6]), Some(libc::EPERM), "{name}");
            }
            assert_eq!(errno(libc::SYS_clone3, [-1; 6]), Some(libc::ENOSYS));
            let other = i64::from(std::os::unix::process::parent_id());
            assert_eq!(errno(libc::SYS_kill, [other, 0, 0, 0, 0, 0]), Some(libc::EPERM));
            assert_eq!(errno(libc::SYS_tgkill, [other, other, 0, 0, 0, 0]), Some(libc::EPERM));
            for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_KEY] {
                let arguments = [family.into(), libc::SOCK_RAW.into(), 0, 0, 0, 0];
                assert_eq!(errno(libc::SYS_socket, arguments), Some(libc::EPERM), "{family}");
            }
            for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET] {
                assert_eq!(
                    errno(libc::SYS_clone, [flag.into(), 0, 0, 0, 0, 0]),
                    Some(libc::EPERM),
                    "{flag:x}"
                );
            }
            assert_eq!(errno(libc::SYS_bpf, [BPF_PROG_LOAD.into(), 0, 0, 0, 0, 0]), Some(libc::EPERM));
            assert_eq!(errno(libc::SYS_ioctl, [-1, libc::TIOCSTI as i64, 0, 0, 0, 0]), Some(libc::EPERM));
            let (page, anonymous) = (4096, i64::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS));
            let both = i64::from(libc::PROT_WRITE | libc::PROT_EXEC);
            assert_eq!(errno(libc::SYS_mmap, [0, page, both, anonymous, -1, 0]), Some(libc::EPERM));
            for call in [libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
                assert_eq!(errno(call, [0, page, libc::PROT_EXEC.into(), -1, 0, 0]), Some(libc::EPERM));
            }
        });
    }

    #[test]
    fn what_a_daemon_does_is_not() {
        use std::net::{TcpListener, TcpStream, ToSocketAddrs};
        use std::os::unix::net::UnixStream;
        filtered(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            assert!(("localhost", 1).to_socket_addrs().unwrap().count() > 0, "names are resolved");
            drop(UnixStream::pair().unwrap());
            std::thread::spawn(|| std::fs::read("/proc/self/maps").unwrap()).join().unwrap();
            assert_eq!(errno(libc::SYS_kill, [std::process::id().into(), 0, 0, 0, 0, 0]), None);
            // how a shared library is mapped
            let (page, private) = (4096, i64::from(libc::MAP_PRIVATE));
            let exe = std::fs::File::open("/proc/self/exe").unwrap();
            let fd = i64::from(std::os::fd::AsRawFd::as_raw_fd(&exe));
            let code = i64::from(libc::PROT_READ | libc::PROT_EXEC);
            assert_eq!(errno(libc::SYS_mmap, [0, page, code, private, fd, 0]), None);
            // map access and link creation reach the Linux kernel, which rejects the empty arguments
            for command in [1, 2, 24, 28] {
                assert_ne!(errno(libc::SYS_bpf, [command, 0, 0, 0, 0, 0]), Some(libc::ENOSYS));
            }
        });
    }
}
