//! Addresses of processes to names: the function, demangled, and the line where debug information is.
//!
//! Files are read piece by piece, never mapped: a process that cuts its file short while it is looked at would
//! otherwise end us.

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

/// Files whose names are kept; beyond this many, all are read again.
const FILE_LIMIT: usize = 256;
/// Addresses whose names are kept, likewise.
const NAMED_LIMIT: usize = 64 << 10;
/// Debug information up to this size is looked through before functions within functions are asked for.
const INLINED_LIMIT: usize = 16 << 20;
/// How deep it may be nested: what reads it calls itself for each level.
const NESTING_LIMIT: isize = 256;
/// Where distributions put debug information of stripped files, by build id.
const DEBUG_FOLDER: &str = "/usr/lib/debug/.build-id";

/// What an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function, demangled.
    pub function: String,
    /// Bytes from its beginning.
    pub offset: u64,
    /// The file it is in.
    pub module: PathBuf,
    /// Source file and line, where debug information tells.
    pub line: Option<(String, u32)>,
}

/// What a file says about one of its addresses, once for each function that was put there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    function: Option<String>,
    offset: u64,
    line: Option<(String, u32)>,
    inlined: bool,
}

impl Named {
    /// A frame whose call lies one byte before the address it returns to.
    pub(crate) fn frame(&self, address: u64, module: Option<String>) -> Frame {
        let (file, line) = self.line.clone().unzip();
        let offset = self.offset.wrapping_add(1);
        Frame { address, function: self.function.clone(), offset, module, file, line, inlined: self.inlined }
    }
}

/// Knows the names in files, each read once.
#[derive(Default)]
pub struct Symbolizer {
    /// By what the file system says of a file, never by its build id: anybody can write the build id of another file into
    /// their own, and would name the functions of both.
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

    /// What an address of a process is; none where it lies in no file, or the file has no name for it.
    pub fn name(&mut self, proc_root: &Path, pid: u32, address: u64) -> Result<Option<Place>, DiscoverError> {
        let folder = proc_root.join(pid.to_string());
        let Some((mapping, offset)) = mapping_of(&read_maps(&folder, pid)?, address) else { return Ok(None) };
        let path = mapping.file.path.clone();
        let Ok((file, _)) = open_mapped(&folder, &mapping) else { return Ok(None) };
        let place = self.in_file(&file, &path, offset).map_err(|defect| defect.of(&path))?;
        Ok(place)
    }

    fn in_file(&mut self, file: &RegularFile, path: &Path, offset: u64) -> Result<Option<Place>, Defect> {
        let Some(named) = self.named(file, offset)?.pop() else { return Ok(None) };
        Ok(named.function.map(|function| Place {
            function,
            offset: named.offset,
            module: path.to_owned(),
            line: named.line,
        }))
    }

    /// As [`Symbolizer::named`], each address of a file once. The file is opened where it must be.
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
        if self.named.len() >= NAMED_LIMIT {
            self.named.clear();
        }
        self.named.insert((key, offset), Rc::clone(&named));
        Some(named)
    }

    /// The function at an offset of a file, after those that were put into it, the innermost first.
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
    /// What the file and its debug file have. A table that is damaged or too large is as good as none.
    fn read(elf: &Elf<'_>, debug_folder: &Path) -> Self {
        // a file that names another one's debug information lies about itself alone
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

    /// The function that an address lies in.
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
        // The symbol names what is in memory; debug information helps where a file has no symbols.
        let function = symbol.map(|(name, _)| demangled(name)).or(outermost.0);
        let inlined = found.into_iter().map(|(function, line)| (function, line, true));
        inlined
            .chain([(function, outermost.1, false)])
            .map(|(function, line, inlined)| Named { function, offset, line, inlined })
            .collect()
    }
}

/// A function and the line in it, as debug information tells.
type Line = (Option<String>, Option<(String, u32)>);

/// Debug information of one file.
struct Lines {
    context: Context<Reader>,
    /// Whether functions within functions can be asked for.
    inlined: bool,
}

impl Lines {
    /// None where a file has no line table, or it is too large to be read.
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

    /// The functions at an address, the innermost first and the last the one that holds them.
    fn frames(&self, address: u64) -> Vec<Line> {
        let place = |location: addr2line::Location<'_>| Some((location.file?.to_owned(), location.line?));
        let mut found = Vec::new();
        if self.inlined
            && let Ok(mut frames) = self.context.find_frames(address).skip_all_loads()
        {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
                found.push((name.map(|name| demangled(&name)), frame.location.and_then(place)));
            }
        }
        if found.is_empty() {
            let location = self.context.find_location(address).ok().flatten();
            found.push((None, location.and_then(place)));
        }
        found
    }
}

/// Whether debug information is small and nested no deeper than any compiler does: it is read by a function that
/// calls itself for each level, and a made-up file must not end us.
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
    fn a_function_of_our_own_is_named_with_its_line() {
        let address = a_function_of_our_own_is_named_with_its_line as *const () as u64;
        let place = Symbolizer::new().name(Path::new("/proc"), std::process::id(), address).unwrap().unwrap();
        assert!(place.function.contains("symbolize::tests::a_function_of_our_own"), "{}", place.function);
        assert_eq!(place.offset, 0);
        let (file, line) = place.line.expect("tests are built with line tables");
        assert!(file.ends_with("symbolize.rs") && line > 100, "{file}:{line}");
    }

    /// A small C++ library, stripped into a folder of debug files or not.
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

    fn place_of(symbolizer: &mut Symbolizer, library: &Path, function: &[u8]) -> Option<Place> {
        let file = RegularFile::open(library).unwrap();
        let elf = Elf::parse(&file).unwrap();
        let symbols = elf.symbols(Table::Dynamic, &|name| name == function).unwrap();
        let offset = elf.code_offset(symbols.first()?.address).unwrap();
        symbolizer.in_file(&file, library, offset + 1).unwrap()
    }

    #[test]
    fn names_are_demangled_and_lines_come_from_the_debug_file_of_a_stripped_library() {
        let folder = tempfile::tempdir().unwrap();
        let library = library(folder.path(), &[]);
        let whole = place_of(&mut Symbolizer::new(), &library, SCALE).unwrap();
        assert_eq!((whole.function.as_str(), whole.offset), ("gpu::scale(int, float)", 1));
        let (file, line) = whole.line.unwrap();
        assert!(file.ends_with("source.cpp"));
        assert_eq!(line, 1);

        let id = Elf::parse(&RegularFile::open(&library).unwrap()).unwrap().build_id().unwrap().unwrap();
        let debug = debug_path(folder.path(), &id);
        fs::create_dir_all(debug.parent().unwrap()).unwrap();
        fs::copy(&library, &debug).unwrap();
        assert!(Command::new("strip").arg(&library).status().unwrap().success());
        assert_eq!(place_of(&mut Symbolizer::new(), &library, SCALE).unwrap().line, None);
        let mut symbolizer = Symbolizer { debug_folder: Some(folder.path().to_owned()), ..Symbolizer::new() };
        assert_eq!(place_of(&mut symbolizer, &library, SCALE).unwrap().line.unwrap().1, 1);
    }

    #[test]
    fn a_file_with_the_build_id_of_another_does_not_name_its_functions() {
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
        let forge = place_of(&mut symbolizer, &forged, b"_ZN3gpu5forgeEif").unwrap();
        assert_eq!(forge.function, "gpu::forge(int, float)");
        let scale = place_of(&mut symbolizer, &genuine, SCALE).unwrap();
        assert_eq!(scale.function, "gpu::scale(int, float)");
        // each is read once
        place_of(&mut symbolizer, &genuine, SCALE).unwrap();
        assert_eq!(symbolizer.files.len(), 2);
    }

    #[test]
    fn a_file_that_is_written_again_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = library(folder.path(), &[]);
        let mut symbolizer = Symbolizer::new();
        assert!(place_of(&mut symbolizer, &path, SCALE).is_some());
        let other = tempfile::tempdir().unwrap();
        fs::copy(library(other.path(), &["-Dscale=other"]), &path).unwrap();
        let place = place_of(&mut symbolizer, &path, b"_ZN3gpu5otherEif").unwrap();
        assert_eq!(place.function, "gpu::other(int, float)");
    }

    #[test]
    fn what_has_no_name_has_none() {
        let mut symbolizer = Symbolizer::new();
        let own = std::process::id();
        assert_eq!(symbolizer.name(Path::new("/proc"), own, 0x10).unwrap(), None);
        assert!(symbolizer.name(Path::new("/proc"), u32::MAX, 0x10).is_err());
    }

    /// A function of 16 instructions, with debug information of `depth` functions within one another.
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
    fn debug_information_that_is_nested_without_end_gives_the_outer_function_alone() {
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
