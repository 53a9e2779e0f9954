//! Links on functions and tracepoints of the Linux kernel.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{Object, libbpf_sys};

use crate::attach::bpf_link::{BpfLink, create, event, on_event, options, owned};
use crate::host::open_files::raise_limit;
use crate::wire::ProgramName;
use crate::wire::object_handles::program_of;

/// How a function of the Linux kernel is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinuxProbeKind {
    Session,
    Multi,
    MultiReturn,
    Perf,
    PerfReturn,
    Entry,
    Return,
}

/// Probes functions of the Linux kernel by their addresses; fentry and fexit programs are loaded for one function and
/// ignore the address. Unlike uprobes, these are detached with their descriptors even if the process is killed, so
/// the attach helper is not needed.
pub(crate) fn make_linux_link(
    program: BorrowedFd<'_>,
    kind: LinuxProbeKind,
    points: &[(u64, u64)],
) -> io::Result<BpfLink> {
    let &[(address, cookie), ..] = points else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut options = options();
    let attach_type = match kind {
        LinuxProbeKind::Perf | LinuxProbeKind::PerfReturn => {
            raise_limit();
            // no name: the address identifies the function
            let event = event("kprobe", 0, address, kind == LinuxProbeKind::PerfReturn)?;
            return on_event(program, event, cookie);
        }
        LinuxProbeKind::Entry | LinuxProbeKind::Return => {
            options.__bindgen_anon_1.tracing.cookie = cookie;
            let is_entry = kind == LinuxProbeKind::Entry;
            let attach_type =
                if is_entry { libbpf_sys::BPF_TRACE_FENTRY } else { libbpf_sys::BPF_TRACE_FEXIT };
            return create(program, 0, attach_type, &options).map(BpfLink::of);
        }
        LinuxProbeKind::Session => libbpf_sys::BPF_TRACE_KPROBE_SESSION,
        LinuxProbeKind::Multi | LinuxProbeKind::MultiReturn => libbpf_sys::BPF_TRACE_KPROBE_MULTI,
    };
    let addresses: Vec<libc::c_ulong> = points.iter().map(|(address, _)| *address as libc::c_ulong).collect();
    let cookies: Vec<u64> = points.iter().map(|(_, cookie)| *cookie).collect();
    options.__bindgen_anon_1.kprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 {
        flags: if kind == LinuxProbeKind::MultiReturn { libbpf_sys::BPF_F_KPROBE_MULTI_RETURN } else { 0 },
        cnt: points.len() as u32,
        addrs: addresses.as_ptr(),
        cookies: cookies.as_ptr(),
        ..Default::default()
    };
    create(program, 0, attach_type, &options).map(BpfLink::of)
}

/// Runs a program whenever a tracepoint is hit.
pub(crate) fn make_tracepoint_link(program: BorrowedFd<'_>, name: &CStr) -> io::Result<BpfLink> {
    // SAFETY: the name is NUL-terminated and valid for the call.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd()) };
    owned(fd).map(BpfLink::of)
}

pub(crate) fn with_program(
    object: &Object,
    name: ProgramName,
    link: impl FnOnce(BorrowedFd<'_>) -> io::Result<BpfLink>,
) -> io::Result<BpfLink> {
    let program = program_of(object, name).map_err(io::Error::other)?;
    link(program.as_fd())
}
