//! Finds the file that the dynamic loader would load for a name, and refuses those that other users can change.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use gpuprobe_discover::{Owners, loader_cache, trusted};

use super::privileges::is_privileged;

/// Where the loader searches besides its cache.
pub(crate) const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

/// The file at this path. With privileges the error says that another user can change it.
pub(crate) fn trusted_file(path: &Path) -> io::Result<PathBuf> {
    if !is_privileged() {
        return Ok(path.to_owned());
    }
    match trusted(path, &Owners::default()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        // it does not exist or cannot be read: loading it gives the error message
        found => Ok(found.unwrap_or_else(|_| path.to_owned())),
    }
}

/// The file that the dynamic loader would choose for a name.
pub(crate) fn find(name: &OsStr, library_path: Option<OsString>) -> Option<PathBuf> {
    let listed = library_path.unwrap_or_default();
    let separators = |byte: &u8| matches!(byte, b':' | b';');
    let folders = listed.as_encoded_bytes().split(separators).filter(|folder| !folder.is_empty());
    let folders: Vec<_> =
        folders.map(|folder| PathBuf::from(String::from_utf8_lossy(folder).as_ref())).collect();
    let in_folders = folders.into_iter().map(|folder| folder.join(name));
    let cached = loader_cache(Path::new("/")).into_iter().filter(|path| path.file_name() == Some(name));
    let usual = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    in_folders.chain(cached).chain(usual).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_name_resolves_to_the_file_that_the_loader_would_choose() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("libc.so.6");
        fs::write(&own, "").unwrap();
        let name = OsStr::new("libc.so.6");
        let searched = |path: &str| find(name, Some(path.into()));
        assert_eq!(searched(&format!("/nowhere:{}", folder.path().display())), Some(own));
        let usual = find(name, None).expect("every host of these tests has it");
        assert_ne!(usual.parent(), Some(folder.path()));
        assert_eq!(find(OsStr::new("libnvidia-ml-missing.so.9"), None), None);
    }
}
