//! The dynamic loader of a program, and the function in it that runs whenever libraries have been mapped: a
//! probe there sees libcuda before its first call.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::elf::{Elf, Table};
use crate::error::{Defect, DiscoverError};
use crate::file::{FileId, RegularFile};

/// As many as the kernel follows.
const SCRIPT_LIMIT: usize = 5;
/// The kernel reads no more of a script's first line.
const SCRIPT_LINE: u64 = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loader {
    /// What the kernel can open now.
    pub path: PathBuf,
    pub id: FileId,
    /// File offset of `_dl_debug_state`.
    pub debug_state_offset: u64,
    /// The same as an address before relocation.
    pub debug_state_address: u64,
    /// Address before relocation of `_r_debug`, which lists the libraries. musl has none of that name.
    pub r_debug_address: Option<u64>,
}

/// The loader that the kernel would start for `executable`, both looked up below `root`; none for a statically
/// linked program. For a script it is that of its interpreter: behind `/usr/bin/env` that may be another
/// program's, but hardly ever another loader.
pub fn loader_of(root: &Path, executable: &Path) -> Result<Option<Loader>, DiscoverError> {
    let mut path = executable.to_owned();
    for _ in 0..SCRIPT_LIMIT {
        let file = RegularFile::open(&below(root, &path))?;
        let bad = |defect: Defect| defect.of(&path);
        let line = file.read_some(0, SCRIPT_LINE, "the first line").map_err(bad)?;
        if let Some(interpreter) = interpreter_of_script(&line) {
            path = interpreter;
            continue;
        }
        let name = Elf::parse(&file).and_then(|elf| elf.interpreter()).map_err(bad)?;
        return name.map(|name| loader(&below(root, Path::new(OsStr::from_bytes(&name))))).transpose();
    }
    Err(DiscoverError::ScriptChain { path: executable.to_owned(), limit: SCRIPT_LIMIT })
}

fn below(root: &Path, path: &Path) -> PathBuf {
    path.strip_prefix("/").map_or_else(|_| path.to_owned(), |relative| root.join(relative))
}

fn interpreter_of_script(line: &[u8]) -> Option<PathBuf> {
    let line = line.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let name = line.split(|b| matches!(b, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

fn loader(path: &Path) -> Result<Loader, DiscoverError> {
    let file = RegularFile::open(path)?;
    let wanted = |name: &[u8]| name == b"_dl_debug_state" || name == b"_r_debug";
    let (symbols, offset) = Elf::parse(&file)
        .and_then(|elf| {
            let mut symbols = elf.symbols(Table::Dynamic, &wanted)?;
            symbols.extend(elf.symbols(Table::Full, &wanted)?);
            let state = symbols.iter().find(|symbol| symbol.is_function);
            let place = state.and_then(|state| Some((state.address, elf.code_offset(state.address)?)));
            Ok((symbols, place))
        })
        .map_err(|defect| defect.of(path))?;
    let Some((debug_state_address, debug_state_offset)) = offset else {
        return Err(DiscoverError::NoDebugState { path: path.to_owned() });
    };
    let r_debug_address =
        symbols.iter().find(|symbol| symbol.name == "_r_debug").map(|symbol| symbol.address);
    Ok(Loader {
        path: path.to_owned(),
        id: file.id,
        debug_state_offset,
        debug_state_address,
        r_debug_address,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::{CODE_OFFSET, ElfBuilder};

    #[test]
    fn the_loader_of_the_shell_is_found() {
        let loader = loader_of(Path::new("/"), Path::new("/bin/sh")).unwrap().unwrap();
        assert!(loader.path.is_absolute());
        assert!(loader.debug_state_offset > 0 && loader.debug_state_address > 0);
    }

    #[test]
    fn names_are_looked_up_below_the_root_and_scripts_followed() {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str| root.path().join(name);
        ElfBuilder::new()
            .export("other", &[0xc3])
            .export("_dl_debug_state", &[0xc3])
            .raw("_r_debug", 0x11, 1, 0x5000)
            .write(&put("lib/ld.so"));
        ElfBuilder::new().interpreter("/lib/ld.so").write(&put("bin/python"));
        fs::write(put("bin/script"), "#! /bin/python -u\nprint()\n").unwrap();
        let loader = loader_of(root.path(), Path::new("/bin/script")).unwrap().unwrap();
        assert_eq!(loader.path, put("lib/ld.so"));
        assert_eq!(loader.debug_state_offset, CODE_OFFSET + 16);
        assert_eq!(loader.debug_state_address, 0x41010);
        assert_eq!(loader.r_debug_address, Some(0x5000));
    }

    #[test]
    fn a_static_program_has_none() {
        let root = tempfile::tempdir().unwrap();
        ElfBuilder::new().write(&root.path().join("busybox"));
        assert_eq!(loader_of(root.path(), Path::new("/busybox")).unwrap(), None);
    }

    #[test]
    fn scripts_that_run_each_other_end() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "#!/b").unwrap();
        fs::write(root.path().join("b"), "#!/a\n").unwrap();
        let error = loader_of(root.path(), Path::new("/a")).unwrap_err();
        assert_eq!(error.to_string(), "\"/a\": more than 5 scripts run each other");
    }

    #[test]
    fn a_loader_without_the_function_is_named() {
        let root = tempfile::tempdir().unwrap();
        ElfBuilder::new().export("other", &[0xc3]).write(&root.path().join("ld"));
        ElfBuilder::new().interpreter("/ld").write(&root.path().join("program"));
        let error = loader_of(root.path(), Path::new("/program")).unwrap_err();
        assert!(matches!(error, DiscoverError::NoDebugState { .. }), "{error}");
        fs::write(root.path().join("text"), "hello").unwrap();
        assert!(loader_of(root.path(), Path::new("/text")).is_err());
        assert!(loader_of(root.path(), Path::new("/absent")).is_err());
    }
}
