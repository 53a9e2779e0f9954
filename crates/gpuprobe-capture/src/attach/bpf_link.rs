//! BPF links made with system calls. libbpf makes links only for programs that it has loaded itself; the attach
//! helper has programs that another process loaded.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use gpuprobe_discover::RequestPoint;
use gpuprobe_event::Tgid;
use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts, perf_event_attr};

use crate::host::linux_support::EVENT_SOURCES;

/// An attached probe or group of probes. Closing the descriptors detaches it.
#[derive(Debug)]
pub(crate) struct BpfLink {
    _link: Option<OwnedFd>,
    _event: Option<OwnedFd>,
    is_return: bool,
}

impl BpfLink {
    pub(crate) fn of(link: OwnedFd) -> Self {
        Self { _link: Some(link), _event: None, is_return: false }
    }

    /// A probe without a program.
    pub(crate) fn of_event(event: OwnedFd) -> Self {
        Self { _link: None, _event: Some(event), is_return: false }
    }

    pub(crate) fn at_return(self, is_return: bool) -> Self {
        Self { is_return, ..self }
    }

    /// Whether its probes are at returns. They are safe only while probes at the entries of the same functions are
    /// attached.
    pub(crate) fn is_return(&self) -> bool {
        self.is_return
    }
}

/// Runs a program whenever a perf event fires.
pub(crate) fn on_event(program: BorrowedFd<'_>, event: OwnedFd, cookie: u64) -> io::Result<BpfLink> {
    let mut options = options();
    options.__bindgen_anon_1.perf_event.bpf_cookie = cookie;
    let link = create(program, event.as_raw_fd(), libbpf_sys::BPF_PERF_EVENT, &options)?;
    // SAFETY: the descriptor is a perf event; the call takes no address.
    let enabled = unsafe { libc::ioctl(event.as_raw_fd(), ENABLE, 0) };
    if enabled != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(BpfLink { _event: Some(event), ..BpfLink::of(link) })
}

/// `PERF_EVENT_IOC_ENABLE`.
const ENABLE: libc::Ioctl = 0x2400;

pub(crate) fn options() -> bpf_link_create_opts {
    bpf_link_create_opts { sz: size_of::<bpf_link_create_opts>() as _, ..Default::default() }
}

pub(crate) fn create(
    program: BorrowedFd<'_>,
    target: libc::c_int,
    kind: libbpf_sys::bpf_attach_type,
    options: &bpf_link_create_opts,
) -> io::Result<OwnedFd> {
    // SAFETY: the options, and the path and arrays they point to, are valid for the call; the arrays have as many
    // entries as they say.
    let fd = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, kind, options) };
    owned(fd)
}

/// Takes ownership of a descriptor that libbpf returned; a negative number is an error.
pub(crate) fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the Linux kernel has just made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A perf event at one instruction in every process: of a file, if `of` is the address of its path, or else of the
/// Linux kernel.
pub(crate) fn event(source: &str, of: u64, offset: u64, is_return: bool) -> io::Result<OwnedFd> {
    const EVERY_PROCESS: libc::pid_t = -1;
    // these events are not bound to a CPU, but the system call requires one
    const FIRST_CPU: libc::c_int = 0;
    let config = if is_return { 1 << described(source, "format/retprobe", "config:")? } else { 0 };
    open_event(source, config, of, offset, (EVERY_PROCESS, FIRST_CPU))
}

/// A perf event at a function of a file in one process, which counts in a semaphore that it is attached.
pub(crate) fn semaphore_event(path: u64, point: RequestPoint, tgid: Tgid) -> io::Result<OwnedFd> {
    const EVERY_CPU: libc::c_int = -1;
    // the bits of `config` from this one on are the file offset of the semaphore
    const FIRST_BIT: u32 = 32;
    let semaphore = u32::try_from(point.semaphore).map_err(io::Error::other)?;
    let config = u64::from(semaphore) << FIRST_BIT;
    open_event("uprobe", config, path, point.function, (tgid.0.cast_signed(), EVERY_CPU))
}

fn open_event(
    source: &str,
    config: u64,
    of: u64,
    offset: u64,
    (pid, cpu): (libc::pid_t, libc::c_int),
) -> io::Result<OwnedFd> {
    const NO_GROUP: libc::c_int = -1;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let mut attr = perf_event_attr { type_: described(source, "type", "")?, ..perf_event_attr::default() };
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.config = config;
    attr.__bindgen_anon_3.uprobe_path = of;
    attr.__bindgen_anon_4.probe_offset = offset;
    // SAFETY: the attributes, and the path that they may point to, are valid for the call, which makes a new
    // descriptor or fails.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, NO_GROUP, CLOSE_ON_EXEC)
    };
    let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the Linux kernel has just made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A number by which the Linux kernel describes its perf events on instructions.
fn described(source: &str, name: &str, prefix: &str) -> io::Result<u32> {
    let path = Path::new(EVENT_SOURCES).join(source).join(name);
    let text = std::fs::read_to_string(path)?;
    let number = text.trim().strip_prefix(prefix).and_then(|n| n.parse().ok());
    number.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTSUP))
}
