//! Which users can change or replace a file. Checked before gpuprobe, as root, reads settings from a file, loads it
//! as code or writes to it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

/// Symbolic links in one path, the same limit as in the Linux kernel.
const MOST_LINKS: usize = 40;
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit only the owner of a file can rename or remove it.
const STICKY: u32 = 0o1000;

/// The users whose files are trusted: root, the user that gpuprobe runs as, and those added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners(Vec<u32>);

impl Default for Owners {
    fn default() -> Self {
        Self(vec![0, geteuid().as_raw()])
    }
}

impl Owners {
    /// Also trusts the user who ran sudo: they could give the same settings on the command line.
    #[must_use]
    pub fn or_sudo_user(mut self) -> Self {
        self.0.extend(sudo_user().map(|(uid, _)| uid));
        self
    }

    pub fn contains(&self, uid: u32) -> bool {
        self.0.contains(&uid)
    }
}

/// User and group id of the user who ran sudo.
pub fn sudo_user() -> Option<(u32, u32)> {
    sudo_user_of(|name| std::env::var(name).ok(), geteuid().is_root())
}

/// The same for these environment variables.
fn sudo_user_of(variable: impl Fn(&str) -> Option<String>, is_root: bool) -> Option<(u32, u32)> {
    let id = |name: &str| variable(name)?.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let found = id("SUDO_UID").zip(id("SUDO_GID"));
    // meaningless when sudo was used to become another user than root
    found.filter(|(uid, _)| *uid != 0 && is_root)
}

/// Resolves a path, and fails unless only these owners can change or replace the file. The error is one line that names
/// the offending file or directory.
pub fn trusted(path: &Path, owners: &Owners) -> io::Result<PathBuf> {
    let found = walk(path, &mut |at, about| {
        if !owners.contains(about.uid()) {
            return Err(refusal(format!("{} belongs to another user (uid {})", at.display(), about.uid())));
        }
        let is_open = about.mode() & OTHERS_WRITE != 0 && !about.is_symlink();
        let keeps_entries = about.is_dir() && about.mode() & STICKY != 0;
        if is_open && !keeps_entries && !is_read_only(at) {
            let mode = about.mode() & 0o7777;
            return Err(refusal(format!("other users can write {} (mode {mode:04o})", at.display())));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Resolves a path. Fails at a symbolic link that another user could have planted.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let owners = Owners::default();
    walk(path, &mut |at, about| {
        let folder = at.parent().unwrap_or(Path::new("/"));
        if about.is_symlink() && !owners.contains(about.uid()) && is_shared(&fs::metadata(folder)?) {
            return Err(refusal(format!("{} is a symbolic link of another user", at.display())));
        }
        Ok(())
    })
}

/// Whether users other than root and ourselves can create files in a directory.
pub fn is_shared(directory: &Metadata) -> bool {
    !Owners::default().contains(directory.uid()) || directory.mode() & OTHERS_WRITE != 0
}

fn refusal(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// A ConfigMap in Kubernetes has a directory of mode 0777 on a read-only mount.
fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|about| about.flags().contains(FsFlags::ST_RDONLY))
}

/// Resolves a path component by component and calls `check` for each directory, symbolic link and the final file.
fn walk(path: &Path, check: &mut dyn FnMut(&Path, &Metadata) -> io::Result<()>) -> io::Result<PathBuf> {
    let mut at = PathBuf::from("/");
    let mut left = parts(&std::path::absolute(path)?);
    let mut links = 0;
    check(&at, &fs::symlink_metadata(&at)?)?;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(part);
        let about = fs::symlink_metadata(&at)?;
        check(&at, &about)?;
        // magic links in /proc may lead to files without a name
        if about.is_symlink() && !is_magic(&at) {
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::from_raw_os_error(nix::errno::Errno::ELOOP as i32));
            }
            let target = fs::read_link(&at)?;
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            left = parts(&target).into_iter().chain(left).collect();
        }
    }
    Ok(at)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

fn is_magic(link: &Path) -> bool {
    let is_own = link.ends_with("self") || link.ends_with("thread-self");
    let in_proc = || {
        link.parent()
            .is_some_and(|folder| statfs(folder).is_ok_and(|fs| fs.filesystem_type() == PROC_SUPER_MAGIC))
    };
    !is_own && in_proc()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_that_others_can_write_or_replace_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        let file = inner.join("file");
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "").unwrap();
        let owners = Owners::default();
        for (of_folder, of_file, refused) in [
            (0o755, 0o644, None),
            (0o755, 0o600, None),
            (0o1777, 0o600, None),
            (0o755, 0o666, Some("file (mode 0666)")),
            (0o755, 0o664, Some("file (mode 0664)")),
            (0o777, 0o644, Some("inner (mode 0777)")),
            (0o775, 0o644, Some("inner (mode 0775)")),
        ] {
            set_mode(&inner, of_folder);
            set_mode(&file, of_file);
            match (trusted(&file, &owners), refused) {
                (Ok(found), None) => assert_eq!(found, file),
                (Err(error), Some(text)) => {
                    let error = error.to_string();
                    assert!(error.starts_with("other users can write") && error.ends_with(text), "{error}");
                }
                (found, expected) => panic!("{of_folder:o} {of_file:o}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn the_target_of_a_link_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let (open, link) = (folder.path().join("open"), folder.path().join("link"));
        fs::create_dir(&open).unwrap();
        fs::write(open.join("file"), "").unwrap();
        symlink("open/../open/file", &link).unwrap();
        assert_eq!(trusted(&link, &Owners::default()).unwrap(), open.join("file"));
        set_mode(&open, 0o777);
        assert!(trusted(&link, &Owners::default()).is_err());
        symlink("around", folder.path().join("around")).unwrap();
        let error = trusted(&folder.path().join("around"), &Owners::default()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::ELOOP as i32));
        assert!(trusted(Path::new("/nowhere/at/all"), &Owners::default()).is_err());
    }

    #[test]
    fn a_file_of_another_user_is_not_trusted() {
        const OTHER_USER: u32 = 65534;
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(OTHER_USER), None).unwrap();
        let error = trusted(&link, &Owners::default()).unwrap_err().to_string();
        assert!(error.ends_with("link belongs to another user (uid 65534)"), "{error}");
        assert_eq!(resolved(&link).unwrap(), file, "only we can put links into this folder");
        set_mode(folder.path(), 0o1777);
        let error = resolved(&link).unwrap_err().to_string();
        assert!(error.ends_with("link is a symbolic link of another user"), "{error}");
        chown(&file, Some(OTHER_USER), None).unwrap();
        assert!(trusted(&file, &Owners::default()).is_err());
        let owners = Owners(vec![0, OTHER_USER]);
        assert_eq!(trusted(&file, &owners).unwrap(), file);
    }

    #[test]
    fn the_user_of_sudo_comes_from_its_variables() {
        let of = |uid: &'static str, gid: &'static str, is_root| {
            let value = move |name: &str| if name == "SUDO_UID" { uid } else { gid };
            sudo_user_of(|name| Some(value(name)).filter(|v| !v.is_empty()).map(str::to_owned), is_root)
        };
        assert_eq!(of("1000", "1001", true), Some((1000, 1001)));
        for (uid, gid, is_root) in [
            ("1000", "1001", false),
            ("0", "0", true),
            ("", "1001", true),
            ("1000", "", true),
            ("-1", "1001", true),
            ("4294967295", "1001", true),
            ("alice", "users", true),
        ] {
            assert_eq!(of(uid, gid, is_root), None, "{uid} {gid}");
        }
    }

    #[test]
    fn magic_links_in_proc_are_not_followed() {
        assert_eq!(resolved(Path::new("/proc/self/fd/0")).unwrap().file_name().unwrap(), "0");
    }
}
