//! A file that appears under its name only when it is complete.
//!
//! It is written under another name in the same directory and renamed at the end. If that fails, for example because
//! the disk is full, or if a signal ends gpuprobe, nothing is left, and a file that was there before is unchanged.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod};
use nix::unistd::{Gid, Uid, fchown};

use super::signal_cleanup::DroppedOnSignal;
use super::{Access, Created, FileId, Folder, MOST_LINKS, is_a, is_own, unpredictable};

#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) file: File,
    /// `None` if it is written in place, such as a FIFO or a device.
    temporary: Option<DroppedOnSignal<Temporary>>,
}

#[derive(Debug)]
struct Temporary {
    folder: Folder,
    name: OsString,
    id: FileId,
    /// The name that it gets when it is complete.
    wanted: OsString,
    is_complete: bool,
}

impl Replacement {
    /// Starts a file that the user named. The rules of [`super::create`] apply.
    pub(crate) fn begin(path: &Path, access: Access) -> io::Result<Self> {
        let mut real = path.to_owned();
        for _ in 0..MOST_LINKS {
            let Some(name) =
                real.file_name().filter(|_| !real.as_os_str().as_encoded_bytes().ends_with(b"/"))
            else {
                return Err(io::ErrorKind::IsADirectory.into());
            };
            let folder = Folder::open(real.parent().unwrap_or(Path::new("")))?;
            let there = match folder.stat(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                there => Some(there?),
            };
            match there {
                Some(there) if is_a(&there, SFlag::S_IFLNK) && !folder.is_of_descriptors() => {
                    let target = folder.link_target(name, &there)?;
                    real = folder.path.join(target);
                }
                Some(there) if !is_replaceable(&folder, &there) => break,
                there => {
                    let name = name.to_owned();
                    match Temporary::create(folder, &name, there.as_ref(), access) {
                        // the directory is read-only, but perhaps not the file
                        Err(error) if there.is_some() && is_refused(&error) => break,
                        begun => return begun,
                    }
                }
            }
        }
        let Created { file, .. } = super::create(path, access)?;
        Ok(Self { file, temporary: None })
    }

    /// The file is complete: gives it its name.
    pub(crate) fn complete(self) -> io::Result<()> {
        match self.temporary {
            None => Ok(()),
            // the signal is about to end the process
            Some(temporary) => temporary.take_with(Temporary::complete).unwrap_or(Err(Errno::EINTR.into())),
        }
    }
}

impl Temporary {
    /// Starts a file that is to replace `there`, with its owner and permissions.
    fn create(
        folder: Folder,
        wanted: &OsStr,
        there: Option<&FileStat>,
        access: Access,
    ) -> io::Result<Replacement> {
        if there.is_some() {
            // refuses what must not be written, such as a file without write permission
            folder.open_existing(wanted, OFlag::O_WRONLY | OFlag::O_NOFOLLOW)?;
        }
        let name = unpredictable(wanted);
        let (temporary, file) = DroppedOnSignal::make(|| {
            let file = folder.new_file(&name, access)?;
            let id = FileId::of(&file)?;
            Ok((Self { folder, name, id, wanted: wanted.to_owned(), is_complete: false }, file))
        })?;
        if let Some(there) = there {
            // if the file system refuses, the file keeps its new owner
            fchown(&file, Some(Uid::from_raw(there.st_uid)), Some(Gid::from_raw(there.st_gid))).ok();
            if !matches!(access, Access::Exactly(_)) {
                fchmod(&file, Mode::from_bits_truncate(there.st_mode & 0o777))?;
            }
        }
        Ok(Replacement { file, temporary: Some(temporary) })
    }

    fn complete(mut self) -> io::Result<()> {
        let folder = &self.folder.fd;
        renameat(folder, self.name.as_os_str(), folder, self.wanted.as_os_str())?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_complete {
            self.folder.remove(&self.name, self.id).ok();
        }
    }
}

/// A FIFO, a device, a descriptor, a hard link or a file of another user is written in place, or refused.
fn is_replaceable(folder: &Folder, there: &FileStat) -> bool {
    is_a(there, SFlag::S_IFREG) && is_own(there) && !folder.is_of_descriptors()
}

fn is_refused(error: &io::Error) -> bool {
    let refused = [Errno::EACCES, Errno::EPERM, Errno::EROFS].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|number| refused.contains(&number))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        let mut begun = Replacement::begin(&path, Access::Private).unwrap();
        begun.file.write_all(b"new").unwrap();
        assert!(!path.exists());
        begun.complete().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(entries(folder.path()), 1);
    }

    #[test]
    fn an_abandoned_file_leaves_nothing_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        drop(Replacement::begin(&path, Access::Private).unwrap());
        assert_eq!(entries(folder.path()), 0);
        fs::write(&path, "before").unwrap();
        drop(Replacement::begin(&path, Access::Private).unwrap());
        assert_eq!((fs::read_to_string(&path).unwrap(), entries(folder.path())), ("before".into(), 1));
    }

    #[test]
    fn a_link_is_followed_and_permissions_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("t.json"), folder.path().join("link"));
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("t.json", &link).unwrap();
        let mut begun = Replacement::begin(&link, Access::Private).unwrap();
        begun.file.write_all(b"new").unwrap();
        begun.complete().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn devices_and_hard_links_are_written_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("t.json"), folder.path().join("other"));
        fs::write(&path, "before").unwrap();
        fs::hard_link(&path, &other).unwrap();
        let mut begun = Replacement::begin(&path, Access::Private).unwrap();
        begun.file.write_all(b"new").unwrap();
        begun.complete().unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "new");
        let mut null = Replacement::begin(Path::new("/dev/null"), Access::Private).unwrap();
        null.file.write_all(b"new").unwrap();
        null.complete().unwrap();
        assert!(Replacement::begin(folder.path(), Access::Private).is_err());
    }
}
