//! Links made by hand. libbpf makes them only for programs that it has loaded itself, and these were loaded by another
//! process.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use gpuprobe_discover::OpenedFile;
use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts, perf_event_attr};

use crate::files::raise_limit;
use crate::request::{ProbedFile, Probes, Way};

/// Probes that are in. Closing the descriptors takes them out.
#[derive(Debug)]
pub(crate) struct MadeLink {
    _link: OwnedFd,
    _event: Option<OwnedFd>,
    is_return: bool,
}

impl MadeLink {
    fn of(link: OwnedFd) -> Self {
        Self { _link: link, _event: None, is_return: false }
    }

    /// Whether it holds probes at returns, which those at entries make safe.
    pub(crate) fn is_return(&self) -> bool {
        self.is_return
    }
}

/// Puts probes in.
pub(crate) fn make(program: BorrowedFd<'_>, probes: &Probes) -> io::Result<MadeLink> {
    let file = open(&probes.file)?;
    // by its descriptor, so that it is this file whatever its name leads to by now
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    raise_limit();
    if !probes.way.is_perf() {
        let link = MadeLink::of(multi(program, probes, &path)?);
        return Ok(MadeLink { is_return: probes.way == Way::MultiReturn, ..link });
    }
    let &[(offset, cookie)] = probes.points.as_slice() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let event = event("uprobe", path.as_ptr() as u64, offset, probes.way == Way::PerfReturn)?;
    Ok(MadeLink { is_return: probes.way == Way::PerfReturn, ..on_event(program, event, cookie)? })
}

/// Opens a file, if it is the one that is expected. Otherwise that one is not found.
fn open(file: &ProbedFile) -> io::Result<File> {
    let opened = File::options().read(true).custom_flags(libc::O_PATH).open(&file.path)?;
    let about = opened.metadata()?;
    let found = OpenedFile { dev: about.dev(), inode: about.ino(), size: about.size(), owner: about.uid() };
    match file.expected {
        Some(expected) if expected != found => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        _ => Ok(opened),
    }
}

/// How a function of the kernel is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelWay {
    Session,
    Multi,
    MultiReturn,
    Perf,
    PerfReturn,
    Entry,
    Return,
}

/// Probes functions of the kernel, by their addresses; those that one program is for know theirs. The kernel takes these
/// out with the descriptors, whoever has to end.
pub(crate) fn make_in_kernel(
    program: BorrowedFd<'_>,
    way: KernelWay,
    points: &[(u64, u64)],
) -> io::Result<MadeLink> {
    let &[(address, cookie), ..] = points else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut options = options();
    let kind = match way {
        KernelWay::Perf | KernelWay::PerfReturn => {
            raise_limit();
            // no name: the address tells
            let event = event("kprobe", 0, address, way == KernelWay::PerfReturn)?;
            return on_event(program, event, cookie);
        }
        KernelWay::Entry | KernelWay::Return => {
            options.__bindgen_anon_1.tracing.cookie = cookie;
            let is_entry = way == KernelWay::Entry;
            let kind = if is_entry { libbpf_sys::BPF_TRACE_FENTRY } else { libbpf_sys::BPF_TRACE_FEXIT };
            return create(program, 0, kind, &options).map(MadeLink::of);
        }
        KernelWay::Session => libbpf_sys::BPF_TRACE_KPROBE_SESSION,
        KernelWay::Multi | KernelWay::MultiReturn => libbpf_sys::BPF_TRACE_KPROBE_MULTI,
    };
    let addresses: Vec<libc::c_ulong> = points.iter().map(|(address, _)| *address as libc::c_ulong).collect();
    let cookies: Vec<u64> = points.iter().map(|(_, cookie)| *cookie).collect();
    options.__bindgen_anon_1.kprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 {
        flags: if way == KernelWay::MultiReturn { libbpf_sys::BPF_F_KPROBE_MULTI_RETURN } else { 0 },
        cnt: points.len() as u32,
        addrs: addresses.as_ptr(),
        cookies: cookies.as_ptr(),
        ..Default::default()
    };
    create(program, 0, kind, &options).map(MadeLink::of)
}

/// Has a program run at a tracepoint, as often as it is passed.
pub(crate) fn make_at_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<MadeLink> {
    // SAFETY: the name ends in a zero and is valid for the call.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd()) };
    owned(fd).map(MadeLink::of)
}

/// Has a program run when a perf event happens.
fn on_event(program: BorrowedFd<'_>, event: OwnedFd, cookie: u64) -> io::Result<MadeLink> {
    let mut options = options();
    options.__bindgen_anon_1.perf_event.bpf_cookie = cookie;
    let link = create(program, event.as_raw_fd(), libbpf_sys::BPF_PERF_EVENT, &options)?;
    // SAFETY: the descriptor is a perf event; the call takes no memory of ours.
    let enabled = unsafe { libc::ioctl(event.as_raw_fd(), ENABLE, 0) };
    if enabled != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(MadeLink { _event: Some(event), ..MadeLink::of(link) })
}

/// Where the kernel lists what it has perf events for.
pub(crate) const EVENT_SOURCES: &str = "/sys/bus/event_source/devices";

/// `PERF_EVENT_IOC_ENABLE`.
const ENABLE: libc::Ioctl = 0x2400;

fn options() -> bpf_link_create_opts {
    bpf_link_create_opts { sz: size_of::<bpf_link_create_opts>() as _, ..Default::default() }
}

/// One link for many functions, in every process: processes are filtered by the program, so that forks are followed.
fn multi(program: BorrowedFd<'_>, probes: &Probes, path: &CString) -> io::Result<OwnedFd> {
    let offsets: Vec<libc::c_ulong> =
        probes.points.iter().map(|(offset, _)| *offset as libc::c_ulong).collect();
    let cookies: Vec<u64> = probes.points.iter().map(|(_, cookie)| *cookie).collect();
    let mut options = options();
    options.__bindgen_anon_1.uprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        flags: if probes.way == Way::MultiReturn { libbpf_sys::BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        cnt: probes.points.len() as u32,
        path: path.as_ptr(),
        offsets: offsets.as_ptr(),
        cookies: cookies.as_ptr(),
        ..Default::default()
    };
    let kind = match probes.way {
        Way::Session => libbpf_sys::BPF_TRACE_UPROBE_SESSION,
        _ => libbpf_sys::BPF_TRACE_UPROBE_MULTI,
    };
    create(program, 0, kind, &options)
}

fn create(
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

/// A descriptor that the kernel has just made, or the error in its place.
fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: just made by the kernel, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A perf event that happens at one instruction, in every process: of a file, whose name lies at `of`, or of the kernel.
fn event(source: &str, of: u64, offset: u64, is_return: bool) -> io::Result<OwnedFd> {
    const EVERY_PROCESS: libc::pid_t = -1;
    // such an event is not of a CPU, but the call wants one
    const FIRST_CPU: libc::c_int = 0;
    const NO_GROUP: libc::c_int = -1;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let mut attr = perf_event_attr { type_: described(source, "type", "")?, ..perf_event_attr::default() };
    attr.size = size_of::<perf_event_attr>() as u32;
    if is_return {
        attr.config = 1 << described(source, "format/retprobe", "config:")?;
    }
    attr.__bindgen_anon_3.uprobe_path = of;
    attr.__bindgen_anon_4.probe_offset = offset;
    // SAFETY: the attributes, and the path they point to where there is one, are valid for the call, which makes a new descriptor or fails.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            EVERY_PROCESS,
            FIRST_CPU,
            NO_GROUP,
            CLOSE_ON_EXEC,
        )
    };
    let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: just made by the kernel, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A number by which the kernel describes its events on instructions.
fn described(source: &str, name: &str, prefix: &str) -> io::Result<u32> {
    let path = Path::new(EVENT_SOURCES).join(source).join(name);
    let text = std::fs::read_to_string(path)?;
    let number = text.trim().strip_prefix(prefix).and_then(|n| n.parse().ok());
    number.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTSUP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_put_in_the_place_of_another_is_not_probed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib");
        std::fs::write(&path, "first").unwrap();
        let about = std::fs::metadata(&path).unwrap();
        let expected =
            OpenedFile { dev: about.dev(), inode: about.ino(), size: about.size(), owner: about.uid() };
        let file = ProbedFile { path: path.clone(), expected: Some(expected) };
        open(&file).unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, "again").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(open(&file).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        open(&ProbedFile { expected: None, ..file }).unwrap();
    }
}
