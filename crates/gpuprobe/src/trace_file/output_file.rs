//! Files that gpuprobe writes, mostly as root, sometimes where other users can put files too.
//!
//! A new file is created with `O_EXCL`, so a file that another user plants in between is never opened. An existing
//! file is overwritten if it is the user's own. In a directory that others can write, their files and symbolic links
//! are refused. After that everything goes through the descriptor of the directory, so renaming the directory
//! redirects nothing.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use gpuprobe_discover::{Owners, is_shared, resolved, sudo_user};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, geteuid, symlinkat, unlinkat};

/// Most symbolic links followed for one output.
const MOST_LINKS: usize = 16;
/// Most names tried for one file.
const MOST_NAMES: usize = 32;

/// Permissions of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// 0600 for a new file; an existing file keeps its permissions. Traces contain arguments, process names and command
    /// lines.
    Private,
    /// Exactly these, regardless of the umask, for existing files too.
    Exactly(u32),
    /// These minus the umask, for a new file.
    Like(u32),
}

impl Access {
    /// The requested permissions, or `Private`.
    pub(crate) fn requested(mode: Option<u32>) -> Self {
        mode.map_or(Self::Private, Self::Exactly)
    }

    /// The permissions that all files have which this one is derived from.
    pub(crate) fn like(files: &[PathBuf]) -> Self {
        let mode = |file: &PathBuf| match fs::metadata(file) {
            Ok(about) if about.is_file() => Some(about.mode() & 0o666),
            _ => None,
        };
        let all = files.iter().map(mode).reduce(|all, mode| Some(all? & mode?));
        all.flatten().map_or(Self::Private, Self::Like)
    }

    fn of_new(self) -> Mode {
        match self {
            Self::Private => Mode::S_IRUSR | Mode::S_IWUSR,
            Self::Exactly(mode) | Self::Like(mode) => Mode::from_bits_truncate(mode),
        }
    }
}

/// A file that is open for writing, and its directory.
#[derive(Debug)]
pub(crate) struct Created {
    pub(crate) file: File,
    pub(crate) folder: Folder,
    /// The name in that directory.
    pub(crate) name: OsString,
}

/// Opens a file that the user named and truncates it. A symbolic link is followed unless another user could have
/// planted it.
pub(crate) fn create(path: &Path, access: Access) -> io::Result<Created> {
    create_with(path, access, OFlag::empty())
}

/// Opens a FIFO that the user named; fails with ENXIO if it has no reader.
pub(crate) fn open_pipe_without_waiting(path: &Path) -> io::Result<File> {
    Ok(create_with(path, Access::Private, OFlag::O_NONBLOCK)?.file)
}

/// `flags` are added when a FIFO or a device is opened.
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

/// Opens a directory by a path that has no symbolic links, one component after the other: another user may replace
/// one of them by a link meanwhile.
fn open_without_links(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut folder = open("/", flags, Mode::empty())?;
    for component in path.components().filter(|component| matches!(component, Component::Normal(_))) {
        folder = openat(&folder, component.as_os_str(), flags, Mode::empty())?;
    }
    Ok(File::from(folder))
}

/// What a name refers to.
enum Named {
    File(File),
    Link(OsString),
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: File,
    path: PathBuf,
    /// Other users can create files in it.
    is_shared: bool,
}

impl Folder {
    /// Opens a directory.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let path = resolved(path)?;
        let fd = open_without_links(&path)?;
        let is_shared = is_shared(&fd.metadata()?);
        Ok(Self { fd, path, is_shared })
    }

    /// Creates a file without a name, which is removed when it is closed. Not every file system supports it.
    pub(crate) fn create_unnamed(&self) -> io::Result<File> {
        let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&self.fd, ".", flags, Access::Private.of_new())?))
    }

    /// Opens a directory, and creates it if it does not exist.
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

    /// The path of a file in it, for messages.
    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file whose name the user did not choose. If another user's file has that name, another name is chosen.
    /// Returns the name. A symbolic link is never followed.
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

    /// Whether its entries are open file descriptors, as in `/dev/fd`.
    pub(crate) fn is_of_descriptors(&self) -> bool {
        fstatfs(&self.fd).is_ok_and(|fs| fs.filesystem_type() == PROC_SUPER_MAGIC)
    }

    /// Whether it has an entry of this name.
    pub(crate) fn has(&self, name: &OsStr) -> bool {
        self.stat(name).is_ok()
    }

    /// Removes a file if the name still refers to it.
    pub(crate) fn remove(&self, name: &OsStr, file: FileId) -> io::Result<()> {
        if FileId::from(&self.stat(name)?) != file {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Points a link at a file of this folder, atomically replacing an old link.
    pub(crate) fn point(&self, link: &OsStr, file: &OsStr) -> io::Result<()> {
        for _ in 0..MOST_NAMES {
            let fresh = unpredictable(link);
            match symlinkat(file, &self.fd, fresh.as_os_str()) {
                Err(Errno::EEXIST) => {}
                made => {
                    made?;
                    self.give_link_to_sudo_user(&fresh);
                    return Ok(renameat(&self.fd, fresh.as_os_str(), &self.fd, link)?);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn give_link_to_sudo_user(&self, link: &OsStr) {
        if let Some((uid, gid)) = sudo_user() {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            // if the file system refuses, it stays root's
            fchownat(&self.fd, link, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW).ok();
        }
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
            return self.link_target(name, &there).map(Named::Link);
        }
        if self.is_shared && !is_own(&there) {
            let what =
                if is_linked_twice(&there) { "it is a hard link" } else { "it belongs to another user" };
            return Err(refusal(&format!("{what}, in a directory that others can write: remove it first")));
        }
        match is_a(&there, SFlag::S_IFREG) {
            true => self.overwrite(name, access),
            // a FIFO or a device
            false => self.open_existing(name, OFlag::O_WRONLY | OFlag::O_NOFOLLOW | flags),
        }
        .map(Named::File)
    }

    /// The target of a symbolic link, unless another user could have planted it.
    fn link_target(&self, name: &OsStr, there: &FileStat) -> io::Result<OsString> {
        if self.is_shared && !Owners::default().contains(there.st_uid) {
            return Err(refusal(
                "it is a symbolic link of another user, in a directory that others can write",
            ));
        }
        Ok(readlinkat(&self.fd, name)?)
    }

    fn new_file(&self, name: &OsStr, access: Access) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.fd, name, flags, access.of_new())?;
        give_to_sudo_user(&file);
        set_mode(&file, access)?;
        Ok(file.into())
    }

    /// Opens and truncates an existing file, after checking the open file again.
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
            return Err(refusal("another user has replaced it meanwhile"));
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

/// Device and inode of a file.
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

/// Whether the user owns it and it has no other name: a second hard link could be a file that must not be overwritten.
fn is_own(about: &FileStat) -> bool {
    let of_sudo_user = || sudo_user().is_some_and(|(uid, _)| uid == about.st_uid);
    !is_linked_twice(about) && (about.st_uid == geteuid().as_raw() || of_sudo_user())
}

fn is_linked_twice(about: &FileStat) -> bool {
    is_a(about, SFlag::S_IFREG) && about.st_nlink > 1
}

/// Gives a new file to the user who ran sudo, so that they can read it without sudo.
fn give_to_sudo_user(file: impl std::os::fd::AsFd) {
    if let Some((uid, gid)) = sudo_user() {
        // if the file system refuses, it stays root's
        fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).ok();
    }
}

fn set_mode(file: impl std::os::fd::AsFd, access: Access) -> io::Result<()> {
    match access {
        Access::Exactly(mode) => Ok(fchmod(file, Mode::from_bits_truncate(mode))?),
        _ => Ok(()),
    }
}

/// A name that cannot be guessed: `t.2.jsonl` becomes `t.2-1f0c9a52b3d4e687.jsonl`.
fn unpredictable(name: &OsStr) -> OsString {
    let random = RandomState::new().build_hasher().finish();
    let text = name.to_string_lossy();
    let end = [".jsonl.zst", ".jsonl"].into_iter().find(|end| text.ends_with(end)).unwrap_or("");
    let stem = text.strip_suffix(end).unwrap_or(&text);
    format!("{stem}-{random:016x}{end}").into()
}

mod replacement;
mod signal_cleanup;

pub(crate) use self::replacement::Replacement;

#[cfg(test)]
mod tests;
