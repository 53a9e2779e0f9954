//! Searches the files that a process has mapped for the name of a CUDA kernel. A text that was found at a guessed place
//! in memory is a name of a kernel if the program contains the same name: as the host function that the compiler
//! makes for a kernel, or as the text that the program registers the kernel or looks it up with.

use std::path::Path;
use std::time::{Duration, Instant};

use gpuprobe_event::Api;

use super::scan::Names;
use crate::access::RegularFile;
use crate::elf::{Elf, Table};
use crate::error::Defect;
use crate::process::{Mapping, executable_files, open_mapped, read_maps};

/// The most files that one search reads, the program first.
const FILE_LIMIT: usize = 64;
/// The most bytes of tables and texts that one search reads. What does not fit is skipped: libraries with thousands of
/// kernels, which need no search.
const BYTE_LIMIT: u64 = 16 << 20;
/// No search begins until this many times the duration of the last one has passed.
const PATIENCE: u32 = 20;

/// Searches for names, and rests after each search.
#[derive(Debug, Default)]
pub struct KernelNameSearch {
    rests_until: Option<Instant>,
}

impl KernelNameSearch {
    /// Whether a file of the process contains the name; `None` if it is too early for another search.
    pub fn find(&mut self, proc_root: &Path, pid: u32, name: &str) -> Option<bool> {
        let begin = Instant::now();
        if self.rests_until.is_some_and(|until| begin < until) {
            return None;
        }
        let found = is_in_files(&proc_root.join(pid.to_string()), pid, name);
        let rest = begin.elapsed().checked_mul(PATIENCE).unwrap_or(Duration::MAX);
        self.rests_until = Instant::now().checked_add(rest);
        Some(found)
    }
}

fn is_in_files(folder: &Path, pid: u32, name: &str) -> bool {
    let Ok(maps) = read_maps(folder, pid) else { return false };
    let mut left = BYTE_LIMIT;
    // the program comes first
    for mapping in executable_files(&maps).iter().filter(|mapping| !is_of_nvidia(mapping)).take(FILE_LIMIT) {
        let Ok((file, _)) = open_mapped(folder, mapping) else { continue };
        // a file that cannot be parsed contains no names
        if is_in_file(&file, name, &mut left).unwrap_or(false) {
            return true;
        }
    }
    false
}

/// Whether a file is part of CUDA or of the driver. Their own texts say nothing about the kernels of a program.
fn is_of_nvidia(mapping: &Mapping) -> bool {
    let path = &mapping.file.path;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Api::of_name(path).is_some() || name.starts_with("libnvidia-")
}

/// Whether a file contains a mangled name, or a host function with a plain name next to GPU code. Any file may have a
/// plain word as a text or as a function.
fn is_in_file(file: &RegularFile, name: &str, left: &mut u64) -> Result<bool, Defect> {
    let elf = Elf::parse(file)?;
    let is_mangled = name.starts_with("_Z");
    if !is_mangled && !elf.has_gpu_code()? {
        return Ok(false);
    }
    for table in [Table::Full, Table::Dynamic] {
        let Some(after) = left.checked_sub(elf.table_size(table)) else { continue };
        *left = after;
        // a table that is damaged or too large counts as absent
        let symbols = elf.symbols(table, &|symbol| symbol == name.as_bytes()).unwrap_or_default();
        if symbols.iter().any(|symbol| symbol.is_function) {
            return Ok(true);
        }
    }
    if !is_mangled {
        return Ok(false);
    }
    let texts = elf.section_up_to(b".rodata", *left)?.map(|(_, bytes)| bytes).unwrap_or_default();
    *left = left.saturating_sub(texts.len() as u64);
    Ok(texts.split(|byte| *byte == 0).any(|text| text == name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ElfBuilder, FakeProc};

    const MANGLED: &str = "_Z3addPfS_i";

    /// Whether a process with these files contains the name.
    fn contains(files: &[(&str, ElfBuilder)], name: &str) -> bool {
        let proc = FakeProc::new();
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = files
            .iter()
            .map(|(shown, elf)| {
                let path = folder.path().join(shown.trim_start_matches('/'));
                elf.write(&path);
                (*shown, path)
            })
            .collect();
        let mapped: Vec<_> = files.iter().map(|(shown, path)| (*shown, path.as_path())).collect();
        proc.process(7, &mapped);
        KernelNameSearch::default().find(proc.path(), 7, name).unwrap()
    }

    fn with_texts(texts: &[u8]) -> ElfBuilder {
        ElfBuilder::new().section_with(".rodata", texts)
    }

    #[test]
    fn a_mangled_name_is_found_as_a_text_or_as_a_host_function() {
        assert!(contains(&[("/app", with_texts(b"usage\0_Z3addPfS_i\0"))], MANGLED));
        assert!(contains(&[("/app", ElfBuilder::new().local(MANGLED, b"\xc3"))], MANGLED));
        assert!(contains(&[("/app", ElfBuilder::new()), ("/a.so", with_texts(b"_Z3addPfS_i"))], MANGLED));
        assert!(!contains(&[("/app", with_texts(b"x_Z3addPfS_i\0_Z3addPfS_ii\0"))], MANGLED), "only a part");
    }

    #[test]
    fn a_plain_name_is_found_as_a_host_function_next_to_gpu_code_only() {
        let program = || ElfBuilder::new().local("add", b"\xc3");
        assert!(contains(&[("/app", program().section(".nv_fatbin"))], "add"));
        assert!(!contains(&[("/app", program())], "add"));
        assert!(!contains(&[("/app", with_texts(b"\0add\0").section(".nv_fatbin"))], "add"));
    }

    #[test]
    fn texts_of_the_driver_do_not_count() {
        for shown in ["/libcuda.so.1", "/libcudart.so.12", "/libnvidia-ptxjitcompiler.so.1"] {
            assert!(!contains(&[(shown, with_texts(b"_Z3addPfS_i\0"))], MANGLED), "{shown}");
        }
    }

    #[test]
    fn no_search_begins_right_after_another() {
        let proc = FakeProc::new();
        let mut search = KernelNameSearch::default();
        assert_eq!(search.find(proc.path(), 7, MANGLED), Some(false), "no such process");
        search.rests_until = Some(Instant::now() + Duration::from_secs(60));
        assert_eq!(search.find(proc.path(), 7, MANGLED), None);
        search.rests_until = Some(Instant::now());
        assert_eq!(search.find(proc.path(), 7, MANGLED), Some(false));
    }

    #[test]
    fn what_does_not_fit_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app");
        with_texts(b"_Z3addPfS_i\0").local("f", b"\xc3").write(&path);
        let file = RegularFile::open(&path).unwrap();
        let size = Elf::parse(&file).unwrap().table_size(Table::Full);
        assert_eq!(size, 2 * 24 + 4, "two symbols and their names");
        for (left, is_found) in [(1000, true), (size + 11, false), (12, true), (11, false)] {
            let mut after = left;
            assert_eq!(is_in_file(&file, MANGLED, &mut after).unwrap(), is_found, "{left}");
            assert!(after < left || !is_found);
        }
    }

    #[test]
    fn damaged_files_contain_no_names() {
        let mut random = crate::testing::Xorshift(7);
        let bytes = with_texts(b"_Z3addPfS_i\0").local("f", b"\xc3").build();
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..300 {
            let mut damaged = bytes.clone();
            random.damage(&mut damaged);
            let path = folder.path().join("app");
            std::fs::write(&path, damaged).unwrap();
            let file = RegularFile::open(&path).unwrap();
            // neither a panic nor another name
            assert!(!is_in_file(&file, "_Z5otherv", &mut BYTE_LIMIT.clone()).unwrap_or(false));
        }
    }
}
