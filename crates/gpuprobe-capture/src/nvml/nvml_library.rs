//! Finds the file that is loaded as NVML. Its code runs with our privileges.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::host::privileges::is_privileged;
use crate::host::shared_library::{FOLDERS, find, trusted_file};

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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

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
