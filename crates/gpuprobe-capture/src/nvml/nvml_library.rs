//! Finds the file that is loaded as NVML. Its code runs with our privileges.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::{env, io};

use gpuprobe_discover::{Owners, loader_cache, trusted};

use crate::host::privileges::is_privileged;

/// Where the loader searches besides its cache.
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

/// The file to load for a name or a path. With privileges it must be one that only root can change or replace; the
/// error says which file or directory others can write.
pub fn trusted_nvml(library: &OsStr) -> Result<OsString, String> {
    if !is_privileged() {
        return Ok(library.to_owned());
    }
    let path = Path::new(library);
    let is_name = path.components().count() == 1 && !library.as_encoded_bytes().contains(&b'/');
    let found = if is_name { find(library, env::var_os("LD_LIBRARY_PATH")) } else { Some(path.to_owned()) };
    // the loader must not search by name, because it could find a file of another user; this path does not exist
    // either
    let Some(found) = found else { return Ok(Path::new(FOLDERS[0]).join(library).into_os_string()) };
    trusted_file(&found).map(PathBuf::into_os_string).map_err(|error| {
        format!(
            "the NVML library {} is not loaded: {error}: only root may be able to write it and its directories; \
             name another one with --nvml, or `off`",
            found.display()
        )
    })
}

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
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn a_library_that_others_can_replace_is_not_loaded() {
        if !is_privileged() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnvidia-ml.so.1");
        fs::write(&library, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let loaded = || trusted_nvml(library.as_os_str());
        set(&library, 0o755);
        assert_eq!(loaded().unwrap(), library);
        for path in [library.as_path(), folder.path()] {
            set(path, 0o777);
            let said = loaded().unwrap_err();
            let who = format!("is not loaded: other users can write {} (mode 0777)", path.display());
            assert!(said.contains(&who) && said.contains("--nvml") && said.lines().count() == 1, "{said}");
            set(path, 0o755);
        }
        std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
        assert!(loaded().unwrap_err().contains("belongs to another user (uid 65534)"));
    }
}
