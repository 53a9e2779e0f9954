//! The directory of recordings: its size limit, and recordings that were not completed.
//!
//! Only files with the name of a recording that belong to gpuprobe's user are ever renamed or deleted.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::recording_name::RecordingName;
use crate::cli::daemon_settings::require_trusted;

/// A complete recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRecording {
    pub(super) name: RecordingName,
    pub(super) bytes: u64,
}

/// The directory, locked for one daemon.
#[derive(Debug)]
pub(super) struct RecordDirectory {
    path: PathBuf,
    limit: u64,
    _lock: Flock<File>,
}

impl RecordDirectory {
    /// Opens the directory; creates it if only its last part is missing.
    pub(super) fn open(path: &Path, limit: u64) -> Result<Self> {
        let shown = path.display();
        if let Some(parent) = path.parent().filter(|_| !path.exists()) {
            require_trusted(parent)?;
            DirBuilder::new().mode(0o700).create(path).with_context(|| format!("cannot create {shown}"))?;
        }
        require_trusted(path)?;
        let path = path.canonicalize().with_context(|| format!("cannot open {shown}"))?;
        if !path.is_dir() {
            bail!("{shown} is not a directory");
        }
        let file = File::open(&path).with_context(|| format!("cannot open {shown}"))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((_, Errno::EWOULDBLOCK)) => bail!("another gpuprobe daemon records into {shown}"),
            locked => locked.map_err(|(_, error)| error).with_context(|| format!("cannot lock {shown}"))?,
        };
        tempfile::tempfile_in(&path).with_context(|| format!("cannot write to {shown}"))?;
        Ok(Self { path, limit, _lock: lock })
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Renames the recordings that a killed daemon has left, so that their names say that they are incomplete. Returns
    /// the new names.
    pub(super) fn name_incomplete(&self) -> io::Result<Vec<String>> {
        let mut renamed = Vec::new();
        for (file, bytes) in own_files(&self.path)? {
            let Some(name) = RecordingName::of_partial(&file) else { continue };
            let path = self.path_of(&file);
            if is_being_written(&path) {
                continue;
            }
            if bytes == 0 {
                fs::remove_file(path)?;
                continue;
            }
            fs::rename(path, self.path_of(&name.incomplete()))?;
            renamed.push(name.incomplete());
        }
        Ok(renamed)
    }

    /// Deletes the oldest recordings until all take no more than the limit, with those that are being written. The one
    /// named `kept` stays. Returns the bytes that are left, and how many were deleted.
    pub(super) fn keep_to_size(&self, kept: Option<&str>) -> io::Result<(u64, u64)> {
        let (mut bytes, mut deleted) = (partial_bytes(&self.path)?, 0);
        let all = recordings(&self.path)?;
        bytes += all.iter().map(|recording| recording.bytes).sum::<u64>();
        for oldest in all {
            if bytes <= self.limit {
                break;
            }
            if kept == Some(oldest.name.as_str()) {
                continue;
            }
            match fs::remove_file(self.path_of(oldest.name.as_str())) {
                // another process has removed it
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => {
                    removed?;
                    deleted += 1;
                }
            }
            bytes -= oldest.bytes;
        }
        Ok((bytes, deleted))
    }
}

/// The recordings in a directory, the oldest first.
pub(super) fn recordings(directory: &Path) -> io::Result<Vec<StoredRecording>> {
    let named = |(file, bytes): (String, u64)| {
        RecordingName::parse(&file).map(|name| StoredRecording { name, bytes })
    };
    let mut all: Vec<_> = own_files(directory)?.into_iter().filter_map(named).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn partial_bytes(directory: &Path) -> io::Result<u64> {
    let all = own_files(directory)?;
    Ok(all.iter().filter(|(file, _)| RecordingName::of_partial(file).is_some()).map(|(_, bytes)| bytes).sum())
}

/// The names and sizes of the regular files that belong to our user.
fn own_files(directory: &Path) -> io::Result<Vec<(String, u64)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // a file may be removed meanwhile, and the names of recordings are ASCII
        let (Ok(about), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else { continue };
        if about.is_file() && about.uid() == geteuid().as_raw() {
            all.push((name, about.len()));
        }
    }
    Ok(all)
}

/// Marks an open recording as being written, until the returned lock is dropped.
pub(crate) fn mark_as_being_written(path: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(path).ok()?, FlockArg::LockSharedNonblock).ok()
}

/// Whether another process, of a daemon before this one, still writes this recording.
fn is_being_written(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(Flock::lock(file, FlockArg::LockExclusiveNonblock), Err((_, Errno::EWOULDBLOCK)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn name(second: u64) -> RecordingName {
        RecordingName::new(UNIX_EPOCH + Duration::from_secs(second), "h", "p", 1)
    }

    fn write(folder: &Path, name: &str, bytes: usize) {
        fs::write(folder.join(name), vec![b'x'; bytes]).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut all: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn the_oldest_recordings_are_deleted_and_no_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        for second in 1..=4 {
            write(at, name(second).as_str(), 30_000);
        }
        write(at, &name(5).partial(), 10_000);
        write(at, "notes.txt", 500_000);
        write(at, "trace_20241202123656.jsonl.zst", 500_000);
        symlink("/etc/passwd", at.join(name(0).as_str())).unwrap();
        let directory = RecordDirectory::open(at, 75_000).unwrap();
        assert_eq!(directory.keep_to_size(Some(name(1).as_str())).unwrap(), (70_000, 2));
        let mut left = [name(1), name(4)].map(|name| name.as_str().to_owned()).to_vec();
        left.extend([name(5).partial(), name(0).as_str().to_owned()]);
        left.extend(["notes.txt".to_owned(), "trace_20241202123656.jsonl.zst".to_owned()]);
        left.sort();
        assert_eq!(names(at), left);
        assert_eq!(directory.keep_to_size(None).unwrap(), (70_000, 0), "nothing more is to be deleted");
        assert!(at.join(name(0).as_str()).is_symlink());
    }

    #[test]
    fn what_a_killed_daemon_left_is_named_incomplete_and_what_is_being_written_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        for second in 1..=3 {
            write(at, &name(second).partial(), if second == 3 { 0 } else { 10 });
        }
        let lock = mark_as_being_written(&at.join(name(1).partial())).unwrap();
        let directory = RecordDirectory::open(at, 75_000).unwrap();
        assert_eq!(directory.name_incomplete().unwrap(), [name(2).incomplete()]);
        assert_eq!(names(at), [name(1).partial(), name(2).incomplete()]);
        drop(lock);
        assert_eq!(directory.name_incomplete().unwrap(), [name(1).incomplete()]);
        assert_eq!(recordings(at).unwrap().len(), 2);
    }

    #[test]
    fn a_directory_is_created_for_one_daemon_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recordings");
        let directory = RecordDirectory::open(&path, 1 << 20).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let second = RecordDirectory::open(&path, 1 << 20).unwrap_err().to_string();
        assert!(second.starts_with("another gpuprobe daemon records into "), "{second}");
        drop(directory);
        RecordDirectory::open(&path, 1 << 20).unwrap();
        let missing = folder.path().join("a/b");
        assert!(RecordDirectory::open(&missing, 1).unwrap_err().to_string().contains("cannot create"));
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(RecordDirectory::open(&file, 1).unwrap_err().to_string().ends_with("is not a directory"));
        if geteuid().is_root() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
            let open = RecordDirectory::open(&path, 1).unwrap_err().to_string();
            assert!(open.contains("is refused: other users can write"), "{open}");
        }
    }
}
