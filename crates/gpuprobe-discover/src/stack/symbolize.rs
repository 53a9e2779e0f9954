//! Resolves addresses of processes to demangled functions, and to source lines if there is debug information.
//!
//! Files are read piece by piece and never mapped: a process that truncates its file would otherwise kill this
//! program.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use addr2line::Context;
use gimli::{Dwarf, EndianRcSlice, LittleEndian, Reader as _, Section, SectionId};
use gpuprobe_event::Frame;

use crate::access::{FileKey, RegularFile};
use crate::elf::{Elf, Table, demangled};
use crate::error::{Defect, DiscoverError};
use crate::process::{mapping_of, open_mapped, read_maps};

type Reader = EndianRcSlice<LittleEndian>;

/// The most files whose names are cached; beyond this number all are dropped.
const FILE_LIMIT: usize = 256;
/// The most addresses whose names are cached, likewise.
const ADDRESS_LIMIT: usize = 64 << 10;
/// Inlined functions are resolved only for debug information up to this size, which is checked beforehand.
const INLINED_LIMIT: usize = 16 << 20;
/// How deep it may be nested: the parser calls itself for each level.
const NESTING_LIMIT: isize = 256;
/// Where distributions install the debug information of stripped files, by build id.
const DEBUG_FOLDER: &str = "/usr/lib/debug/.build-id";

/// A resolved address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The demangled function.
    pub function: String,
    /// Bytes from the beginning of the function.
    pub offset: u64,
    /// The file that contains it.
    pub module: PathBuf,
    /// Source file and line, if there is debug information.
    pub line: Option<(String, u32)>,
}

/// One function at an address of a file. There is one for each function inlined there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    function: Option<String>,
    offset: u64,
    line: Option<(String, u32)>,
    inlined: bool,
}

impl Named {
    /// The frame. The looked-up call is one byte before the return address.
    pub(crate) fn frame(&self, address: u64, module: Option<String>) -> Frame {
        let (file, line) = self.line.clone().unzip();
        let offset = self.offset.wrapping_add(1);
        let (function, inlined) = (self.function.clone(), self.inlined);
        Frame { address, function, offset, module, file, line, inlined, python: false }
    }
}

/// Resolves addresses; each file is read once.
#[derive(Default)]
pub struct Symbolizer {
    /// By file identity, never by build id: anyone can write the build id of another file into their own, and would
    /// name the functions of both.
    files: HashMap<FileKey, Rc<Names>>,
    /// By file and offset in it.
    named: HashMap<(FileKey, u64), Rc<[Named]>>,
    debug_folder: Option<PathBuf>,
}

impl std::fmt::Debug for Symbolizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbolizer").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl Symbolizer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Resolves an address of a process; `None` if it is in no file, or the file has no name for it.
    pub fn name(
        &mut self,
        proc_root: &Path,
        pid: u32,
        address: u64,
    ) -> Result<Option<ResolvedAddress>, DiscoverError> {
        let folder = proc_root.join(pid.to_string());
        let Some((mapping, offset)) = mapping_of(&read_maps(&folder, pid)?, address) else { return Ok(None) };
        let path = mapping.file.path.clone();
        let Ok((file, _)) = open_mapped(&folder, &mapping) else { return Ok(None) };
        let site = self.in_file(&file, &path, offset).map_err(|defect| defect.of(&path))?;
        Ok(site)
    }

    fn in_file(
        &mut self,
        file: &RegularFile,
        path: &Path,
        offset: u64,
    ) -> Result<Option<ResolvedAddress>, Defect> {
        let Some(named) = self.named(file, offset)?.pop() else { return Ok(None) };
        Ok(named.function.map(|function| ResolvedAddress {
            function,
            offset: named.offset,
            module: path.to_owned(),
            line: named.line,
        }))
    }

    /// As [`Symbolizer::named`], but cached. The file is opened only if needed.
    pub(crate) fn remembered(
        &mut self,
        key: FileKey,
        offset: u64,
        open: impl FnOnce() -> Option<RegularFile>,
    ) -> Option<Rc<[Named]>> {
        if let Some(named) = self.named.get(&(key, offset)) {
            return Some(Rc::clone(named));
        }
        let named: Rc<[Named]> = self.named(&open()?, offset).unwrap_or_default().into();
        if self.named.len() >= ADDRESS_LIMIT {
            self.named.clear();
        }
        self.named.insert((key, offset), Rc::clone(&named));
        Some(named)
    }

    /// The function at an offset of a file, after the functions inlined into it, innermost first.
    fn named(&mut self, file: &RegularFile, offset: u64) -> Result<Vec<Named>, Defect> {
        let elf = Elf::parse(file)?;
        let Some(address) = elf.code_address(offset) else { return Ok(Vec::new()) };
        let key = (file.id, file.stamp);
        if self.files.len() >= FILE_LIMIT {
            self.files.clear();
        }
        let names = match self.files.get(&key) {
            Some(names) => Rc::clone(names),
            None => {
                let names = Rc::new(Names::read(&elf, self.debug_folder()));
                self.files.insert(key, Rc::clone(&names));
                names
            }
        };
        Ok(names.named(address))
    }

    fn debug_folder(&self) -> &Path {
        self.debug_folder.as_deref().unwrap_or(Path::new(DEBUG_FOLDER))
    }
}

/// The names of one file.
struct Names {
    /// By address: where a function begins, its size and its name.
    functions: Vec<(u64, u64, String)>,
    lines: Option<Lines>,
}

impl Names {
    /// The names of the file and of its debug file. A table that is damaged or too large counts as absent.
    fn read(elf: &Elf<'_>, debug_folder: &Path) -> Self {
        // a file with the build id of another one only gets wrong names for itself
        let id = elf.build_id().ok().flatten();
        let debug_file = id.and_then(|id| RegularFile::open(&debug_path(debug_folder, &id)).ok());
        let debug = debug_file.as_ref().and_then(|file| Elf::parse(file).ok());
        let mut functions = Vec::new();
        for elf in [Some(elf), debug.as_ref()].into_iter().flatten() {
            for table in [Table::Full, Table::Dynamic] {
                let symbols = elf.symbols(table, &|_| true).unwrap_or_default();
                functions.extend(
                    symbols.into_iter().filter(|s| s.is_function).map(|s| (s.address, s.size, s.name)),
                );
            }
        }
        functions.sort_unstable();
        functions.dedup_by_key(|f| f.0);
        let lines = [debug.as_ref(), Some(elf)].into_iter().flatten().find_map(Lines::read);
        Self { functions, lines }
    }

    /// The function that contains an address.
    fn at(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.functions.partition_point(|f| f.0 <= address);
        let (start, size, name) = self.functions.get(after.checked_sub(1)?)?;
        let within = address - start;
        // hand-written functions may have no size; then the next symbol ends them
        (*size == 0 || within < *size).then_some((name.as_str(), within))
    }

    fn named(&self, address: u64) -> Vec<Named> {
        let symbol = self.at(address);
        let offset = symbol.map_or(address, |(_, offset)| offset);
        let mut found = self.lines.as_ref().map(|lines| lines.frames(address)).unwrap_or_default();
        let outermost = found.pop().unwrap_or_default();
        // The symbol names what is in memory; debug information is used if there are no symbols.
        let function = symbol.map(|(name, _)| demangled(name)).or(outermost.0);
        let inlined = found.into_iter().map(|(function, line)| (function, line, true));
        inlined
            .chain([(function, outermost.1, false)])
            .map(|(function, line, inlined)| Named { function, offset, line, inlined })
            .collect()
    }
}

/// A function and the line in it, from debug information.
type Line = (Option<String>, Option<(String, u32)>);

/// Debug information of one file.
struct Lines {
    context: Context<Reader>,
    /// Whether inlined functions can be resolved.
    inlined: bool,
}

impl Lines {
    /// `None` if a file has no line table, or it is too large.
    fn read(elf: &Elf<'_>) -> Option<Self> {
        let load = |id: SectionId| -> Result<Reader, Defect> {
            let bytes = elf.section(id.name().as_bytes())?.unwrap_or_default();
            Ok(Reader::new(Rc::from(bytes), LittleEndian))
        };
        elf.section(b".debug_line").ok().flatten()?;
        let dwarf = Dwarf::load(load).ok()?;
        let inlined = is_shallow(&dwarf).unwrap_or(false);
        Some(Self { context: Context::from_dwarf(dwarf).ok()?, inlined })
    }

    /// The functions at an address, innermost first; the last is the one that the others are inlined into.
    fn frames(&self, address: u64) -> Vec<Line> {
        let line = |location: addr2line::Location<'_>| Some((location.file?.to_owned(), location.line?));
        let mut found = Vec::new();
        if self.inlined
            && let Ok(mut frames) = self.context.find_frames(address).skip_all_loads()
        {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
                found.push((name.map(|name| demangled(&name)), frame.location.and_then(line)));
            }
        }
        if found.is_empty() {
            let location = self.context.find_location(address).ok().flatten();
            found.push((None, location.and_then(line)));
        }
        found
    }
}

/// Whether debug information is small and not nested deeper than any compiler does. The parser calls itself for each
/// level, so a forged file could overflow the stack.
fn is_shallow(dwarf: &Dwarf<Reader>) -> Result<bool, gimli::Error> {
    if dwarf.debug_info.reader().len() > INLINED_LIMIT {
        return Ok(false);
    }
    let mut headers = dwarf.units();
    while let Some(header) = headers.next()? {
        let unit = dwarf.unit(header)?;
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            if entries.next_depth() > NESTING_LIMIT {
                return Ok(false);
            }
            if let Some(abbreviation) = entries.read_abbreviation()? {
                entries.skip_attributes(abbreviation.attributes())?;
            }
        }
    }
    Ok(true)
}

/// `ab/cdef.debug` for the id abcdef.
fn debug_path(folder: &Path, id: &[u8]) -> PathBuf {
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let (first, rest) = hex.split_at(hex.len().min(2));
    folder.join(first).join(format!("{rest}.debug"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_function_of_this_test_is_resolved_with_its_line() {
        let address = a_function_of_this_test_is_resolved_with_its_line as *const () as u64;
        let site = Symbolizer::new().name(Path::new("/proc"), std::process::id(), address).unwrap().unwrap();
        assert!(site.function.contains("symbolize::tests::a_function_of_this_test"), "{}", site.function);
        assert_eq!(site.offset, 0);
        let (file, line) = site.line.expect("tests are built with line tables");
        assert!(file.ends_with("symbolize.rs") && line > 100, "{file}:{line}");
    }

    /// Builds a small C++ library.
    fn library(folder: &Path, flags: &[&str]) -> PathBuf {
        let (source, library) = (folder.join("source.cpp"), folder.join("lib.so"));
        fs::write(&source, "namespace gpu { int scale(int a, float b) { return a + (int)b; } }\n").unwrap();
        let built = Command::new("c++")
            .args(["-shared", "-fPIC", "-O1", "-g", "-Wl,--build-id=sha1", "-o"])
            .args([&library, &source])
            .args(flags)
            .status();
        assert!(built.unwrap().success());
        library
    }

    const SCALE: &[u8] = b"_ZN3gpu5scaleEif";

    fn site_of(symbolizer: &mut Symbolizer, library: &Path, function: &[u8]) -> Option<ResolvedAddress> {
        let file = RegularFile::open(library).unwrap();
        let elf = Elf::parse(&file).unwrap();
        let symbols = elf.symbols(Table::Dynamic, &|name| name == function).unwrap();
        let offset = elf.code_offset(symbols.first()?.address).unwrap();
        symbolizer.in_file(&file, library, offset + 1).unwrap()
    }

    #[test]
    fn names_are_demangled_and_lines_are_read_from_the_debug_file_of_a_stripped_library() {
        let folder = tempfile::tempdir().unwrap();
        let library = library(folder.path(), &[]);
        let whole = site_of(&mut Symbolizer::new(), &library, SCALE).unwrap();
        assert_eq!((whole.function.as_str(), whole.offset), ("gpu::scale(int, float)", 1));
        let (file, line) = whole.line.unwrap();
        assert!(file.ends_with("source.cpp"));
        assert_eq!(line, 1);

        let id = Elf::parse(&RegularFile::open(&library).unwrap()).unwrap().build_id().unwrap().unwrap();
        let debug = debug_path(folder.path(), &id);
        fs::create_dir_all(debug.parent().unwrap()).unwrap();
        fs::copy(&library, &debug).unwrap();
        assert!(Command::new("strip").arg(&library).status().unwrap().success());
        assert_eq!(site_of(&mut Symbolizer::new(), &library, SCALE).unwrap().line, None);
        let mut symbolizer = Symbolizer { debug_folder: Some(folder.path().to_owned()), ..Symbolizer::new() };
        assert_eq!(site_of(&mut symbolizer, &library, SCALE).unwrap().line.unwrap().1, 1);
    }

    #[test]
    fn a_forged_build_id_does_not_rename_the_functions_of_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let id = ["-Wl,--build-id=0x0123456789abcdef0123456789abcdef01234567"];
        let genuine = library(folder.path(), &id);
        let forged = folder.path().join("forged");
        fs::create_dir(&forged).unwrap();
        // the same code at the same address, under another name
        let forged = library(&forged, &[&id[..], &["-Dscale=forge"]].concat());
        let build_id =
            |path: &Path| Elf::parse(&RegularFile::open(path).unwrap()).unwrap().build_id().unwrap();
        assert_eq!(build_id(&genuine), build_id(&forged));
        let mut symbolizer = Symbolizer::new();
        let forge = site_of(&mut symbolizer, &forged, b"_ZN3gpu5forgeEif").unwrap();
        assert_eq!(forge.function, "gpu::forge(int, float)");
        let scale = site_of(&mut symbolizer, &genuine, SCALE).unwrap();
        assert_eq!(scale.function, "gpu::scale(int, float)");
        // each is read once
        site_of(&mut symbolizer, &genuine, SCALE).unwrap();
        assert_eq!(symbolizer.files.len(), 2);
    }

    #[test]
    fn a_file_that_is_written_again_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = library(folder.path(), &[]);
        let mut symbolizer = Symbolizer::new();
        assert!(site_of(&mut symbolizer, &path, SCALE).is_some());
        let other = tempfile::tempdir().unwrap();
        fs::copy(library(other.path(), &["-Dscale=other"]), &path).unwrap();
        let site = site_of(&mut symbolizer, &path, b"_ZN3gpu5otherEif").unwrap();
        assert_eq!(site.function, "gpu::other(int, float)");
    }

    #[test]
    fn an_unmapped_address_has_no_name() {
        let mut symbolizer = Symbolizer::new();
        let own = std::process::id();
        assert_eq!(symbolizer.name(Path::new("/proc"), own, 0x10).unwrap(), None);
        assert!(symbolizer.name(Path::new("/proc"), u32::MAX, 0x10).is_err());
    }

    /// Builds a function of 16 instructions with debug information of `depth` nested inlined functions.
    fn nested(folder: &Path, depth: usize) -> Vec<Named> {
        let (source, library) = (folder.join("nested.s"), folder.join("nested.so"));
        let text = format!(
            r#"
            .file 1 "nested.cu"
            .text
            .globl outer
            .type outer, %function
            outer: .loc 1 7
            .rept 16
            nop
            .endr
            after: .size outer, .-outer
            .section .note.GNU-stack, "", %progbits
            .section .debug_abbrev
            .byte 1, 0x11, 1, 0x10, 0x17, 0x11, 1, 0x12, 7, 0, 0
            .byte 2, 0x2e, 1, 0x11, 1, 0x12, 7, 0, 0
            .byte 3, 0x1d, 1, 0x03, 8, 0x11, 1, 0x12, 7, 0, 0
            .byte 0
            .section .debug_info
            .long end - begin
            begin: .short 4
            .long 0
            .byte 8
            .byte 1
            .long lines
            .quad outer, after - outer
            .byte 2
            .quad outer, after - outer
            .rept {depth}
            .byte 3
            .asciz "in"
            .quad outer, after - outer
            .endr
            .fill {depth} + 2, 1, 0
            end:
            .section .debug_line
            lines:
            "#
        );
        fs::write(&source, text).unwrap();
        let built = Command::new("cc").args(["-shared", "-o"]).args([&library, &source]).status();
        assert!(built.unwrap().success());
        let file = RegularFile::open(&library).unwrap();
        let elf = Elf::parse(&file).unwrap();
        let symbols = elf.symbols(Table::Dynamic, &|name| name == b"outer").unwrap();
        let offset = elf.code_offset(symbols[0].address).unwrap();
        Symbolizer::new().named(&file, offset + 4).unwrap()
    }

    #[test]
    fn only_the_outer_function_is_resolved_from_deeply_nested_debug_information() {
        let folder = tempfile::tempdir().unwrap();
        let names =
            |named: &[Named]| -> Vec<_> { named.iter().map(|n| n.function.clone().unwrap()).collect() };
        assert_eq!(names(&nested(folder.path(), 2)), ["in", "in", "outer"]);
        // with two bytes or more a level, a file of 16 MiB could have millions
        let deep = nested(folder.path(), 200_000);
        assert_eq!(names(&deep), ["outer"]);
        assert_eq!((deep[0].offset, deep[0].line.as_ref().unwrap().1), (4, 7));
    }
}
