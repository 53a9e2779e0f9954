//! Links on functions of files (uprobes).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use gpuprobe_discover::OpenedFile;
use libbpf_rs::libbpf_sys;

use super::request::{ProbedFile, Probes, Semaphore};
use crate::attach::bpf_link::{BpfLink, create, event, on_event, options, semaphore_event};
use crate::host::open_files::raise_limit;
use crate::load::probe_programs::UprobeKind;

/// Attaches probes by one link.
pub(crate) fn make(program: BorrowedFd<'_>, probes: &Probes) -> io::Result<BpfLink> {
    let file = open(&probes.file)?;
    // by descriptor, so that it is this file even if the path leads to another one by now
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    raise_limit();
    if !probes.kind.is_perf() {
        let link = BpfLink::of(multi(program, probes, &path)?);
        return Ok(link.at_return(probes.kind == UprobeKind::MultiReturn));
    }
    let &[(offset, cookie)] = probes.points.as_slice() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let is_return = probes.kind == UprobeKind::PerfReturn;
    let event = event("uprobe", path.as_ptr() as u64, offset, is_return)?;
    Ok(on_event(program, event, cookie)?.at_return(is_return))
}

/// Raises a semaphore until the link is closed.
pub(crate) fn raise(semaphore: &Semaphore) -> io::Result<BpfLink> {
    let file = open(&semaphore.file)?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    raise_limit();
    semaphore_event(path.as_ptr() as u64, semaphore.point, semaphore.tgid).map(BpfLink::of_event)
}

/// Opens a file if it is the expected one, and else fails with ENOENT.
fn open(file: &ProbedFile) -> io::Result<File> {
    let opened = File::options().read(true).custom_flags(libc::O_PATH).open(&file.path)?;
    let about = opened.metadata()?;
    let found = OpenedFile { dev: about.dev(), inode: about.ino(), size: about.size(), owner: about.uid() };
    match file.expected {
        Some(expected) if expected != found => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        _ => Ok(opened),
    }
}

/// One link for many functions, in every process. The program filters processes, so that forks are followed.
fn multi(program: BorrowedFd<'_>, probes: &Probes, path: &CString) -> io::Result<OwnedFd> {
    let offsets: Vec<libc::c_ulong> =
        probes.points.iter().map(|(offset, _)| *offset as libc::c_ulong).collect();
    let cookies: Vec<u64> = probes.points.iter().map(|(_, cookie)| *cookie).collect();
    let mut options = options();
    options.__bindgen_anon_1.uprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        flags: if probes.kind == UprobeKind::MultiReturn { libbpf_sys::BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        cnt: probes.points.len() as u32,
        path: path.as_ptr(),
        offsets: offsets.as_ptr(),
        cookies: cookies.as_ptr(),
        ..Default::default()
    };
    let attach_type = match probes.kind {
        UprobeKind::Session => libbpf_sys::BPF_TRACE_UPROBE_SESSION,
        _ => libbpf_sys::BPF_TRACE_UPROBE_MULTI,
    };
    create(program, 0, attach_type, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_replaced_another_is_not_probed() {
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
