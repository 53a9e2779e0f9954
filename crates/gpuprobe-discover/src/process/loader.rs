//! Finds the dynamic loader of a process and the function in it that runs whenever libraries have been mapped. A
//! probe there sees libcuda before its first call.

use std::path::{Path, PathBuf};

use super::mapped_file::{lasting_path, open_mapped, read_maps};
use super::maps::executable_files;
use crate::access::{FileId, RegularFile};
use crate::elf::{Elf, Table};
use crate::error::{Defect, DiscoverError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loader {
    /// A path that can be opened now.
    pub path: PathBuf,
    pub id: FileId,
    /// Device (major, minor) and inode as the Linux kernel shows them for the mapping.
    pub mapped: (u32, u32, u64),
    /// File offset of `_dl_debug_state`.
    pub debug_state_offset: u64,
    /// Its address before relocation.
    pub debug_state_address: u64,
    /// Address before relocation of `_r_debug`, which lists the libraries. musl has no symbol of that name.
    pub r_debug_address: Option<u64>,
}

/// The loader that a process has mapped. It is mapped from the exec on, whatever root and mounts the process has, so
/// no path has to be resolved. `None` for a statically linked program.
pub fn loader_of(proc_root: &Path, pid: u32) -> Result<Option<Loader>, DiscoverError> {
    let folder = proc_root.join(pid.to_string());
    for mapping in executable_files(&read_maps(&folder, pid)?) {
        // a file that cannot be opened or parsed is not a loader that could be probed
        let Ok((file, open_path)) = open_mapped(&folder, &mapping) else { continue };
        if let Ok(Some(loader)) = loader_in(&file, &open_path) {
            let (major, minor) = mapping.file.device().unwrap_or_default();
            let path = lasting_path(&mapping, &file, open_path);
            return Ok(Some(Loader { path, mapped: (major, minor, mapping.file.inode), ..loader }));
        }
    }
    Ok(None)
}

/// The loader in a file; `None` if the file has no `_dl_debug_state`.
fn loader_in(file: &RegularFile, path: &Path) -> Result<Option<Loader>, Defect> {
    let wanted = |name: &[u8]| name == b"_dl_debug_state" || name == b"_r_debug";
    let elf = Elf::parse(file)?;
    let mut symbols = elf.symbols(Table::Dynamic, &wanted)?;
    symbols.extend(elf.symbols(Table::Full, &wanted)?);
    let state = symbols.iter().find(|symbol| symbol.is_function);
    let location = state.and_then(|state| Some((state.address, elf.code_offset(state.address)?)));
    Ok(location.map(|(debug_state_address, debug_state_offset)| Loader {
        path: path.to_owned(),
        id: file.id,
        mapped: (0, 0, 0),
        debug_state_offset,
        debug_state_address,
        r_debug_address: symbols.iter().find(|symbol| symbol.name == "_r_debug").map(|symbol| symbol.address),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CODE_OFFSET, ElfBuilder, FakeProc};

    #[test]
    fn our_own_loader_is_found() {
        let loader = loader_of(Path::new("/proc"), std::process::id()).unwrap().unwrap();
        assert!(loader.path.is_absolute());
        assert!(loader.debug_state_offset > 0 && loader.debug_state_address > 0);
        assert!(loader.r_debug_address.is_some(), "glibc has _r_debug");
    }

    #[test]
    fn the_mapped_file_with_the_function_is_the_loader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ld.so");
        ElfBuilder::new()
            .export("other", &[0xc3])
            .export("_dl_debug_state", &[0xc3])
            .raw("_r_debug", 0x11, 1, 0x5000)
            .write(&path);
        let loader = loader_in(&RegularFile::open(&path).unwrap(), &path).unwrap().unwrap();
        assert_eq!(loader.debug_state_offset, CODE_OFFSET + 16);
        assert_eq!(loader.debug_state_address, 0x41010);
        assert_eq!(loader.r_debug_address, Some(0x5000));
    }

    #[test]
    fn a_file_without_the_function_is_no_loader_and_an_exited_process_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        ElfBuilder::new().export("main", &[0xc3]).write(&path);
        assert_eq!(loader_in(&RegularFile::open(&path).unwrap(), &path).unwrap(), None);
        let proc = FakeProc::new();
        let error = loader_of(proc.path(), 9).unwrap_err();
        assert!(matches!(error, DiscoverError::NoSuchProcess { pid: 9 }), "{error}");
    }
}
