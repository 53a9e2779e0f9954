//! Decides which Python frame of a stack is the call site: the user's own code, not the libraries that it calls.

use std::path::{Component, Path};

/// Folders of installed packages.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];
/// Folders that contain the folder of the standard library.
const LIBRARY_FOLDERS: [&str; 3] = ["lib", "lib64", "lib32"];
/// Code that a library made, and that is in no file.
const MADE_BY_LIBRARIES: [&str; 3] = ["<frozen ", "<__array_function__ internals>", "<eval_with_key>"];

/// The index of the call site in the files of a stack, the innermost first: the innermost frame of the user's own
/// code, or the innermost frame if there is none. `None` without any frame.
pub(super) fn innermost_user_code<'f>(files: impl IntoIterator<Item = &'f str>) -> Option<usize> {
    let mut is_empty = true;
    let own = files.into_iter().inspect(|_| is_empty = false).position(is_user_code);
    own.or((!is_empty).then_some(0))
}

/// Whether the file of a code object is the user's own: not the standard library, not an installed package, and not
/// made by one.
fn is_user_code(file: &str) -> bool {
    if MADE_BY_LIBRARIES.iter().any(|begin| file.starts_with(begin)) {
        return false;
    }
    let mut before = "";
    for component in Path::new(file).components() {
        let Component::Normal(name) = component else { continue };
        // a text is always valid
        let name = name.to_str().unwrap_or_default();
        let is_library = LIBRARY_FOLDERS.contains(&before) && is_standard_library(name);
        if is_library || PACKAGES.contains(&name) {
            return false;
        }
        before = name;
    }
    true
}

/// `python3.11`, `python3.13t` or `python311.zip`.
fn is_standard_library(folder: &str) -> bool {
    let Some(version) = folder.strip_prefix("python3") else { return false };
    let digits = match version.strip_prefix('.') {
        Some(minor) => minor.strip_suffix('t').unwrap_or(minor),
        None => version.strip_suffix(".zip").unwrap_or_default(),
    };
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_not_the_users_code() {
        for file in [
            "/usr/lib/python3.11/threading.py",
            "/usr/lib/python311.zip/json/decoder.py",
            "/opt/conda/lib/python3.13t/asyncio/runners.py",
            "/home/user/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
            "/usr/lib/python3/dist-packages/numpy/core/numeric.py",
            "site-packages/package.py",
            "<frozen importlib._bootstrap>",
            "<frozen runpy>",
            "<eval_with_key>.3",
        ] {
            assert!(!is_user_code(file), "{file}");
        }
        for file in [
            "/home/user/train.py",
            "train.py",
            "<string>",
            "<stdin>",
            "/tmp/ipykernel_7/123.py",
            "/home/user/lib/python/train.py",
            "/home/user/python3.11/train.py",
            "/home/user/lib/python3.x/train.py",
            "/home/user/lib/python3/train.py",
            "/home/user/my-site-packages/train.py",
            "",
        ] {
            assert!(is_user_code(file), "{file}");
        }
    }

    #[test]
    fn the_call_site_is_the_innermost_own_frame() {
        let torch = "/x/site-packages/torch/nn/functional.py";
        let library = "/usr/lib/python3.11/runpy.py";
        assert_eq!(innermost_user_code([torch, torch, "model.py", "train.py", library]), Some(2));
        assert_eq!(innermost_user_code(["train.py"]), Some(0));
        assert_eq!(innermost_user_code([torch, library]), Some(0), "the innermost if there is no own code");
        assert_eq!(innermost_user_code([]), None);
    }
}
