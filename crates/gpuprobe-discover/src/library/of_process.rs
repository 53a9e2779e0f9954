//! Finds the CUDA libraries that processes have mapped, through whichever path of them can be opened.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gpuprobe_event::Api;

use super::inspect::Inspector;
use super::scan::{Scan, UserId, Users};
use crate::access::{FileId, RegularFile, path_from_proc};
use crate::error::DiscoverError;
use crate::process::{
    MappedFile, Mapping, ProcessMaps, executable_files, lasting_path, open_mapped, read_maps,
};
use crate::skipped::{SkipCause, Skipped, why};

/// The most bytes read for one process: sparse files with huge tables cost nothing to create.
const PROCESS_BYTES: u64 = 1 << 30;
/// The most skipped files that are listed: a process can have 65,000 mappings, each of a fake libcuda.
const SKIPPED_LIMIT: usize = 1000;

/// Processes whose mappings are remembered; beyond this number all are forgotten.
const ASKED_LIMIT: usize = 4096;

/// The CUDA libraries of one process. To scan more than one, keep an [`Inspector`].
pub fn of_pid(proc_root: &Path, pid: u32) -> Result<Scan, DiscoverError> {
    Inspector::new().of_pid(proc_root, pid)
}

impl Inspector {
    /// The executable and the libraries that one process has mapped. A file that cannot be opened is listed as
    /// skipped if it has the name of a CUDA library or is the executable.
    pub fn of_pid(&mut self, proc_root: &Path, pid: u32) -> Result<Scan, DiscoverError> {
        let folder = proc_root.join(pid.to_string());
        let mappings = executable_files(&read_maps(&folder, pid)?);
        self.of_mappings(&folder, pid, &mappings)
    }

    /// As [`Inspector::of_pid`], but only what the process did not have mapped at the last call. A file that stays
    /// mapped stays the same file, so it is not opened again.
    pub fn new_of_pid(&mut self, proc_root: &Path, pid: u32) -> Result<Scan, DiscoverError> {
        self.new_of_maps(&ProcessMaps::read(proc_root, pid)?)
    }

    /// As [`Inspector::new_of_pid`], with mappings that were read already.
    pub fn new_of_maps(&mut self, maps: &ProcessMaps) -> Result<Scan, DiscoverError> {
        let ProcessMaps { pid, folder, text, .. } = maps;
        let pid = *pid;
        let mappings: HashSet<_> = executable_files(text).into_iter().collect();
        if self.asked.len() >= ASKED_LIMIT {
            self.asked.clear();
        }
        let before = self.asked.remove(&pid).unwrap_or_default();
        let new: Vec<_> = mappings.difference(&before).cloned().collect();
        self.asked.insert(pid, mappings);
        let scan = self.of_mappings(folder, pid, &new)?;
        // files that could not be read count as new the next time
        if let Some(asked) = self.asked.get_mut(&pid).filter(|_| !scan.stalled.is_empty()) {
            asked.retain(|mapping| !scan.stalled.contains(&mapping.file.inode));
        }
        Ok(scan)
    }

    /// Forgets the mappings of a process, so that all are new the next time.
    pub fn forget(&mut self, pid: u32) {
        self.asked.remove(&pid);
    }

    /// Whether a process had a file mapped as code at the last call of [`Inspector::new_of_pid`].
    pub fn has_mapped(&self, pid: u32, device: (u32, u32), inode: u64) -> bool {
        let is_it = |m: &Mapping| m.file.inode == inode && m.file.device() == Some(device);
        self.asked.get(&pid).is_some_and(|mappings| mappings.iter().any(is_it))
    }

    fn of_mappings(&mut self, folder: &Path, pid: u32, mappings: &[Mapping]) -> Result<Scan, DiscoverError> {
        let mut collector = Collector::new(self);
        let exe =
            fs::read_link(folder.join("exe")).ok().map(|exe| path_from_proc(exe.as_os_str().as_bytes()));
        collector.mappings(folder, pid, mappings, exe.as_deref());
        let scan = collector.finish();
        // The files of a process that has just exited cannot be opened: report that once, not for each file.
        if !scan.skipped.is_empty() && !folder.exists() {
            return Err(DiscoverError::NoSuchProcess { pid });
        }
        Ok(scan)
    }
}

/// Collects libraries from many sources, each real file and kind once.
pub(crate) struct Collector<'i> {
    inspector: &'i mut Inspector,
    scan: Scan,
    found: HashSet<(FileId, Api)>,
    /// Files that were inspected, with the libraries in each.
    mapped: HashMap<MappedFile, Vec<FileId>>,
}

impl<'i> Collector<'i> {
    pub(crate) fn new(inspector: &'i mut Inspector) -> Self {
        Self { inspector, scan: Scan::default(), found: HashSet::new(), mapped: HashMap::new() }
    }

    /// See [`Inspector::may_have_targets`].
    pub(crate) fn may_have_targets(&self, path: &Path) -> bool {
        self.inspector.may_have_targets(path)
    }

    pub(crate) fn finish(self) -> Scan {
        self.scan
    }

    pub(crate) fn process(&mut self, proc_root: &Path, pid: u32) -> Result<(), DiscoverError> {
        let folder = proc_root.join(pid.to_string());
        let mappings = executable_files(&read_maps(&folder, pid)?);
        self.mappings(&folder, pid, &mappings, None);
        Ok(())
    }

    /// Inspects these mappings of one process. `exe` is listed as skipped even without the name of a CUDA library.
    fn mappings(&mut self, folder: &Path, pid: u32, mappings: &[Mapping], exe: Option<&Path>) {
        let (mut bytes_read, mut user) = (0, None);
        if mappings.iter().any(|mapping| copies_stacks(&mapping.file.path)) {
            self.scan.stack_copiers.push(pid);
        }
        for mapping in mappings {
            if let Some(libraries) = self.mapped.get(&mapping.file) {
                add_user(&mut self.scan.users, libraries, folder, pid, &mut user);
                continue;
            }
            let path = &mapping.file.path;
            let is_listed = self.inspector.may_have_targets(path) || exe == Some(path.as_path());
            match open_mapped(folder, mapping) {
                Ok((file, open_path)) => {
                    let lasting = || lasting_path(mapping, &file, open_path);
                    let libraries = self.file(&file, path, lasting, is_listed);
                    bytes_read += file.bytes_read();
                    add_user(&mut self.scan.users, &libraries, folder, pid, &mut user);
                    self.mapped.insert(mapping.file.clone(), libraries);
                }
                Err(why) => {
                    if why.0 == SkipCause::Stalled {
                        self.scan.stalled.insert(mapping.file.inode);
                    }
                    if is_listed {
                        self.skip(path, mapping.file.id(), why);
                    }
                }
            }
            if bytes_read > PROCESS_BYTES {
                let reason = format!("its files exceed the limit of {PROCESS_BYTES} bytes");
                self.skip(folder, None, (SkipCause::TooLarge, reason));
                break;
            }
        }
    }

    /// Inspects a file, if it exists.
    pub(crate) fn path(&mut self, path: &Path, open_path: &Path) {
        match RegularFile::open(open_path) {
            Ok(file) => drop(self.file(&file, path, || open_path.to_owned(), true)),
            Err(DiscoverError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.skip(path, None, why(&error)),
        }
    }

    /// Inspects an open file and returns the libraries in it. `open_path` is called if there are some.
    fn file(
        &mut self,
        file: &RegularFile,
        path: &Path,
        open_path: impl FnOnce() -> PathBuf,
        is_listed: bool,
    ) -> Vec<FileId> {
        let id = self.inspector.real_id(file);
        let mut libraries = Vec::new();
        match self.inspector.contents_of(file, path) {
            Ok(contents) => {
                if let Some(why) = contents.missing_functions(path) {
                    self.skip(path, Some(id), why);
                }
                if contents.libraries.is_empty() {
                    return libraries;
                }
                let open_path = open_path();
                for library in &contents.libraries {
                    let library = self.inspector.named(library, file, path, &open_path);
                    libraries.push(library.id);
                    if self.found.insert((library.id, library.kind)) {
                        self.scan.libraries.push(library);
                    }
                }
            }
            Err(error) => {
                let why = why(&error);
                if why.0 == SkipCause::Stalled {
                    self.scan.stalled.insert(file.id.inode);
                }
                if is_listed {
                    self.skip(path, Some(id), why);
                }
            }
        }
        libraries
    }

    /// Records why some processes could not be inspected.
    pub(crate) fn skip_processes(&mut self, proc_root: &Path, why: (SkipCause, String)) {
        self.scan.is_incomplete = true;
        self.skip(proc_root, None, why);
    }

    /// Adds a skipped file: each file once, up to a limit.
    pub(crate) fn skip(&mut self, path: &Path, file: Option<FileId>, (cause, reason): (SkipCause, String)) {
        let skipped = Skipped::file(path, file, cause, reason);
        let listed = &mut self.scan.skipped;
        let same = |other: &Skipped| match file {
            Some(_) => other.file == file,
            None => (&other.path, other.cause) == (&skipped.path, skipped.cause),
        };
        if listed.len() > SKIPPED_LIMIT || listed.iter().any(same) {
            return;
        }
        if listed.len() == SKIPPED_LIMIT {
            let reason = format!("only the first {SKIPPED_LIMIT} skipped files are listed");
            listed.push(Skipped::file(Path::new("/"), None, SkipCause::TooMany, reason));
        } else {
            listed.push(skipped);
        }
    }
}

/// Whether a library switches coroutines by copying thread stacks away and back: greenlet, and what is built on it
/// (gevent, eventlet).
pub fn copies_stacks(library: &Path) -> bool {
    library.file_name().is_some_and(|name| name.as_bytes().starts_with(b"_greenlet."))
}

/// Records that a process has these libraries mapped. Its user is determined once.
fn add_user(
    users: &mut HashMap<FileId, Users>,
    libraries: &[FileId],
    folder: &Path,
    pid: u32,
    user: &mut Option<UserId>,
) {
    for library in libraries {
        let user = *user.get_or_insert_with(|| user_of(folder));
        users.entry(*library).or_default().insert(pid, user);
    }
}

/// The real uid of a process, which a set-uid program keeps. The owner of its directory in /proc is not used, because
/// a process can make that root.
fn user_of(folder: &Path) -> UserId {
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    user.map_or(UserId::UNKNOWN, UserId)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::testing::{ElfBuilder, FakeProc};

    fn driver() -> ElfBuilder {
        ElfBuilder::new().soname("libcuda.so.1").export("cuInit", &[0x55, 0xc3])
    }

    #[test]
    fn the_libraries_of_a_process_are_found_through_map_files() {
        let proc = FakeProc::new();
        let real = proc.path().join("elsewhere");
        driver().write(&real);
        let exe = Path::new("/bin/sh");
        let shown = "/in/the/container/libcuda.so.550.1 (deleted)";
        proc.process(7, &[("/bin/sh", exe), (shown, &real)]);
        let scan = of_pid(proc.path(), 7).unwrap();
        assert_eq!(scan.skipped, []);
        assert_eq!(scan.libraries.len(), 1);
        let library = &scan.libraries[0];
        assert_eq!(library.path, Path::new("/in/the/container/libcuda.so.550.1"));
        assert!(library.open_path.starts_with(proc.path().join("7/map_files")));
        assert_eq!(library.kind, Api::Driver);
    }

    #[test]
    fn the_plain_path_is_used_if_it_is_the_same_file() {
        let proc = FakeProc::new();
        let real = proc.path().join("lib cuda/libcuda.so.1");
        driver().write(&real);
        let shown = real.to_str().unwrap().replace(' ', "\\040");
        proc.process(7, &[(&shown, &real)]);
        assert_eq!(of_pid(proc.path(), 7).unwrap().libraries[0].open_path, real);
    }

    #[test]
    fn the_root_of_the_process_is_tried_if_map_files_cannot_be_read() {
        let proc = FakeProc::new();
        let real = proc.path().join("7/root/usr/libcuda.so.1");
        driver().write(&real);
        let folder = proc.process(7, &[("/usr/libcuda.so.1", &real)]);
        fs::remove_dir_all(folder.join("map_files")).unwrap();
        let scan = of_pid(proc.path(), 7).unwrap();
        assert_eq!(scan.libraries[0].open_path, real);

        // The same path, but another file by now. The first must stay, or the new one may get its inode number.
        fs::rename(&real, proc.path().join("old")).unwrap();
        driver().write(&real);
        let scan = of_pid(proc.path(), 7).unwrap();
        assert!(scan.libraries.is_empty());
        assert!(scan.skipped[0].reason.starts_with("replaced by another file"), "{:?}", scan.skipped);
    }

    #[test]
    fn cuda_libraries_that_cannot_be_opened_are_listed() {
        let proc = FakeProc::new();
        let gone = Path::new("/nowhere/gone");
        proc.process(7, &[("/bin/program", gone), ("/x/libother.so", gone), ("/x/libcudart.so.12", gone)]);
        let scan = of_pid(proc.path(), 7).unwrap();
        let paths: Vec<_> = scan.skipped.iter().map(|skipped| skipped.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/x/libcudart.so.12"]);
        assert!(scan.skipped[0].reason.starts_with("cannot be opened: No such file"));
    }

    #[test]
    fn a_pipe_in_place_of_a_library_is_listed() {
        let proc = FakeProc::new();
        let fifo = proc.path().join("pipe");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        proc.process(7, &[("/bin/sh", Path::new("/bin/sh")), ("/x/libcuda.so.1", &fifo)]);
        let scan = of_pid(proc.path(), 7).unwrap();
        assert_eq!(scan.skipped[0].reason, "a pipe, not a regular file");
    }

    #[test]
    fn a_process_that_does_not_exist_is_an_error() {
        let proc = FakeProc::new();
        let error = of_pid(proc.path(), 7).unwrap_err();
        assert_eq!(error.to_string(), "no process 7: it has exited or never existed");
    }

    #[test]
    fn this_process_has_no_cuda() {
        let scan = of_pid(Path::new("/proc"), std::process::id()).unwrap();
        assert!(scan.libraries.is_empty());
        assert_eq!(scan.skipped, []);
    }

    #[test]
    fn the_users_of_a_library_are_all_processes_that_map_it() {
        let proc = FakeProc::new();
        let (real, other) = (proc.path().join("libcuda.so.1"), proc.path().join("libother.so"));
        driver().write(&real);
        ElfBuilder::new().export("other", &[0xc3]).write(&other);
        let name = |path: &Path| path.to_str().unwrap().to_owned();
        for (pid, status) in
            [(7, "Name:\tx\nUid:\t1000\t0\t0\t0\n"), (8, "Uid:\t0\t0\t0\t0\n"), (9, ""), (10, "Uid:\t5\n")]
        {
            let mapped = if pid == 10 { &other } else { &real };
            let folder = proc.process(pid, &[(&name(mapped), mapped)]);
            fs::write(folder.join("status"), status).unwrap();
        }
        let scan = Inspector::new().of_processes(proc.path());
        assert_eq!((scan.libraries.len(), scan.users.len()), (1, 1));
        let expected = Users::from([(7, UserId(1000)), (8, UserId::ROOT), (9, UserId::UNKNOWN)]);
        assert_eq!(scan.users[&scan.libraries[0].id], expected);
    }

    #[test]
    fn only_new_mappings_are_returned_the_second_time() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("libcuda.so.1"), folder.path().join("libcuda.so.2"));
        driver().write(&first);
        driver().write(&second);
        let proc = FakeProc::new();
        let name = |path: &Path| path.to_str().unwrap().to_owned();
        let mut inspector = Inspector::new();
        proc.process(7, &[(&name(&first), &first)]);
        assert_eq!(inspector.new_of_pid(proc.path(), 7).unwrap().libraries.len(), 1);
        assert_eq!(inspector.new_of_pid(proc.path(), 7).unwrap().libraries.len(), 0);
        fs::remove_dir_all(proc.path().join("7")).unwrap();
        proc.process(7, &[(&name(&first), &first), (&name(&second), &second)]);
        let new = inspector.new_of_pid(proc.path(), 7).unwrap().libraries;
        assert_eq!(new.iter().map(|l| &l.path).collect::<Vec<_>>(), [&second]);
        assert_eq!(inspector.of_pid(proc.path(), 7).unwrap().libraries.len(), 2, "of_pid returns all");

        let inode = fs::metadata(&second).unwrap().ino();
        assert!(inspector.has_mapped(7, (0xfe, 0), inode));
        let others = [(8, (0xfe, 0), inode), (7, (0xfe, 1), inode), (7, (0xfe, 0), inode + 1000)];
        assert!(others.iter().all(|(pid, device, inode)| !inspector.has_mapped(*pid, *device, *inode)));
    }
}
