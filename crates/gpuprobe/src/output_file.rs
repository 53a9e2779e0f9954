//! Files that gpuprobe writes, mostly as root, sometimes where other users can put files too.
//!
//! A name that is new is made with `O_EXCL`, so nothing that somebody puts there in between is opened. A name that is there
//! is opened if it is the user's own file. In a directory that others can write, their files and links are refused. Nothing
//! is done by path later: whoever renames the directory meanwhile leads us nowhere else.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpuprobe_discover::{Owners, is_shared, resolved, sudo_user};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, symlinkat, unlinkat};

/// Links from one name to the next, which a user may have made.
const MOST_LINKS: usize = 16;
/// Names that are tried where somebody has taken each.
const MOST_NAMES: usize = 32;

/// Permissions of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A new file is for its owner alone; one that is there stays as it is. Traces have arguments, names of processes and
    /// command lines in them.
    Private,
    /// These, whatever the umask says; also of a file that is there.
    Exactly(u32),
    /// A new file has these, or fewer where the umask says so.
    Like(u32),
}

impl Access {
    /// As of the file that this one is made of.
    pub(crate) fn like(file: &Path) -> Self {
        match fs::metadata(file) {
            Ok(about) if about.is_file() => Self::Like(about.mode() & 0o666),
            _ => Self::Private,
        }
    }

    fn of_new(self) -> Mode {
        match self {
            Self::Private => Mode::S_IRUSR | Mode::S_IWUSR,
            Self::Exactly(mode) | Self::Like(mode) => Mode::from_bits_truncate(mode),
        }
    }
}

/// A file that was opened for writing, and where it is.
#[derive(Debug)]
pub(crate) struct Created {
    pub(crate) file: File,
    pub(crate) folder: Folder,
    /// In that folder.
    pub(crate) name: OsString,
}

/// Opens a file that the user has named, empty. An earlier one of the user's own is overwritten. A symbolic link is followed
/// if nobody else can have put it there.
pub(crate) fn create(path: &Path, access: Access) -> io::Result<Created> {
    create_with(path, access, OFlag::empty())
}

/// Opens a pipe that the user has named; an error where nobody reads it.
pub(crate) fn open_pipe_without_waiting(path: &Path) -> io::Result<File> {
    Ok(create_with(path, Access::Private, OFlag::O_NONBLOCK)?.file)
}

/// `flags` are for what is no file.
fn create_with(path: &Path, access: Access, flags: OFlag) -> io::Result<Created> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Some(name) = path.file_name().filter(|_| !path.as_os_str().as_encoded_bytes().ends_with(b"/"))
        else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let folder = Folder::open(path.parent().unwrap_or(Path::new("")))?;
        match folder.open_named(name, access, flags)? {
            Named::File(file) => return Ok(Created { file, name: name.to_owned(), folder }),
            Named::Link(target) => path = folder.path.join(target),
        }
    }
    Err(Errno::ELOOP.into())
}

/// What a name leads to.
enum Named {
    File(File),
    Link(OsString),
}

/// A directory, however it is called by now.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: File,
    path: PathBuf,
    /// Users besides root and ourselves can put files there.
    is_shared: bool,
}

impl Folder {
    /// Opens one.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let path = resolved(path)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = File::from(open(&path, flags, Mode::empty())?);
        let is_shared = is_shared(&fd.metadata()?);
        Ok(Self { fd, path, is_shared })
    }

    /// Opens one for files that the user did not name, and makes it where there is none.
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        let is_new = match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true)?,
        };
        let folder = Self::open(path)?;
        if is_new {
            let readable = openat(&folder.fd, ".", OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
            readable.into_iter().for_each(give_to_sudo_user);
        }
        Ok(folder)
    }

    /// Where a file of it is, for people.
    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file by a name that the user did not choose, or by another one where somebody else has taken that; tells
    /// which. A link is never followed.
    pub(crate) fn create(&self, name: &OsStr, access: Access) -> io::Result<(File, OsString)> {
        let mut wanted = name.to_owned();
        for _ in 0..MOST_NAMES {
            match self.new_file(&wanted, access) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|file| (file, wanted)),
            }
            let there = self.stat(&wanted)?;
            if is_a(&there, SFlag::S_IFREG) && is_own(&there) {
                return self.overwrite(&wanted, access).map(|file| (file, wanted));
            }
            wanted = unpredictable(name);
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Whether its names stand for open files, as in `/dev/fd`.
    pub(crate) fn is_of_descriptors(&self) -> bool {
        fstatfs(&self.fd).is_ok_and(|fs| fs.filesystem_type() == PROC_SUPER_MAGIC)
    }

    /// Whether this name is taken.
    pub(crate) fn has(&self, name: &OsStr) -> bool {
        self.stat(name).is_ok()
    }

    /// Removes a file, if the name is still that of this one.
    pub(crate) fn remove(&self, name: &OsStr, file: FileId) -> io::Result<()> {
        if FileId::from(&self.stat(name)?) != file {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Makes a link point at a file of this folder, replacing an old one at once.
    pub(crate) fn point(&self, link: &OsStr, file: &OsStr) -> io::Result<()> {
        for _ in 0..MOST_NAMES {
            let fresh = unpredictable(link);
            match symlinkat(file, &self.fd, fresh.as_os_str()) {
                Err(Errno::EEXIST) => {}
                made => {
                    made?;
                    return Ok(renameat(&self.fd, fresh.as_os_str(), &self.fd, link)?);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn open_named(&self, name: &OsStr, access: Access, flags: OFlag) -> io::Result<Named> {
        let there = match self.stat(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.new_file(name, access).map(Named::File);
            }
            there => there?,
        };
        if self.is_of_descriptors() {
            return self.open_existing(name, OFlag::O_WRONLY | OFlag::O_TRUNC | flags).map(Named::File);
        }
        if is_a(&there, SFlag::S_IFLNK) {
            if self.is_shared && !Owners::default().contains(there.st_uid) {
                return Err(refusal(
                    "it is a symbolic link of another user, in a directory that others can write",
                ));
            }
            return Ok(Named::Link(readlinkat(&self.fd, name)?));
        }
        if self.is_shared && !is_own(&there) {
            let what =
                if is_linked_twice(&there) { "it is a hard link" } else { "it belongs to another user" };
            return Err(refusal(&format!("{what}, in a directory that others can write: remove it first")));
        }
        match is_a(&there, SFlag::S_IFREG) {
            true => self.overwrite(name, access),
            // a pipe or a device
            false => self.open_existing(name, OFlag::O_WRONLY | OFlag::O_NOFOLLOW | flags),
        }
        .map(Named::File)
    }

    fn new_file(&self, name: &OsStr, access: Access) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.fd, name, flags, access.of_new())?;
        give_to_sudo_user(&file);
        set_mode(&file, access)?;
        Ok(file.into())
    }

    /// Empties a file that is there, unless it has become something else since it was looked at.
    fn overwrite(&self, name: &OsStr, access: Access) -> io::Result<File> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = match self.open_existing(name, OFlag::O_RDWR | flags) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.open_existing(name, OFlag::O_WRONLY | flags)?
            }
            file => file?,
        };
        let there = fstat(&file)?;
        if !is_a(&there, SFlag::S_IFREG) || (self.is_shared && !is_own(&there)) {
            return Err(refusal("it was replaced by somebody else meanwhile"));
        }
        set_mode(&file, access)?;
        file.set_len(0)?;
        Ok(file)
    }

    fn open_existing(&self, name: &OsStr, flags: OFlag) -> io::Result<File> {
        Ok(openat(&self.fd, name, flags | OFlag::O_CLOEXEC, Mode::empty())?.into())
    }

    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        Ok(fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }
}

/// Tells one file from every other that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId(u64, u64);

impl From<&FileStat> for FileId {
    fn from(about: &FileStat) -> Self {
        Self(about.st_dev, about.st_ino)
    }
}

impl FileId {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        Ok(Self::from(&fstat(file)?))
    }
}

fn refusal(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn is_a(about: &FileStat, kind: SFlag) -> bool {
    about.st_mode & SFlag::S_IFMT.bits() == kind.bits()
}

/// Whether it is the user's own and nobody else's under another name, as a file that must not be written could be.
fn is_own(about: &FileStat) -> bool {
    let of_sudo_user = || sudo_user().is_some_and(|(uid, _)| uid == about.st_uid);
    !is_linked_twice(about) && (about.st_uid == geteuid().as_raw() || of_sudo_user())
}

fn is_linked_twice(about: &FileStat) -> bool {
    is_a(about, SFlag::S_IFREG) && about.st_nlink > 1
}

/// Whoever asked for a file by sudo is to read it without.
fn give_to_sudo_user(file: impl std::os::fd::AsFd) {
    if let Some((uid, gid)) = sudo_user() {
        // where the file system does not let us it stays root's
        fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).ok();
    }
}

fn set_mode(file: impl std::os::fd::AsFd, access: Access) -> io::Result<()> {
    match access {
        Access::Exactly(mode) => Ok(fchmod(file, Mode::from_bits_truncate(mode))?),
        _ => Ok(()),
    }
}

/// A name that nobody can have taken beforehand: `t.2.jsonl` becomes `t.2-1f0c9a52b3d4e687.jsonl`.
fn unpredictable(name: &OsStr) -> OsString {
    let random = RandomState::new().build_hasher().finish();
    let text = name.to_string_lossy();
    let end = [".jsonl.zst", ".jsonl"].into_iter().find(|end| text.ends_with(end)).unwrap_or("");
    let stem = text.strip_suffix(end).unwrap_or(&text);
    format!("{stem}-{random:016x}{end}").into()
}

#[cfg(test)]
mod tests;
