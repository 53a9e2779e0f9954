//! Finds the CPython interpreter of a process: the file that contains it, which may be the program, a library or a
//! program that embeds it, its version, and where its state `_PyRuntime` is in memory.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::debug_offsets::{Stated, TABLE_SIZE, stated_offsets};
use super::offsets::PythonOffsets;
use super::version::PythonVersion;
use crate::access::path_from_proc;
use crate::elf::{Elf, ElfSymbol, Machine, Table};
use crate::error::DiscoverError;
use crate::process::{
    CodeRange, MappedFile, Memory, ProcessMemory, code_ranges, load_bias, open_mapped, read_maps,
};

/// The most bytes of files that are read for one process.
const FILE_BYTES: u64 = 256 << 20;
/// The most files that are known to have no interpreter; beyond that all are searched again.
const KNOWN_FILES: usize = 16 << 10;
const RUNTIME: &[u8] = b"_PyRuntime";
/// A number, since 3.11.
const VERSION: &[u8] = b"Py_Version";
/// The section of `_PyRuntime`, since 3.10. A stripped program still has it.
const SECTION: &[u8] = b".PyRuntime";

/// The interpreter of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interpreter {
    pub version: PythonVersion,
    /// The address of `_PyRuntime`.
    pub runtime_address: u64,
    pub offsets: PythonOffsets,
}

/// Why the Python frames of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NoInterpreter {
    #[error("the process has no Python interpreter")]
    NotPython,
    #[error("Python {0}.{1} is not supported; 3.9 to 3.14 are")]
    UnknownVersion(u8, u8),
    #[error("the process has a Python interpreter whose version cannot be determined")]
    NoVersion,
    #[error("Python {0} is a pre-release, whose structures are not known")]
    PreRelease(PythonVersion),
    #[error("Python {0} does not state where its structures are, or its memory cannot be read")]
    NoOffsets(PythonVersion),
    #[error("free-threaded builds of Python are not supported")]
    FreeThreaded,
    #[error("Python on musl is not supported; on glibc it is")]
    Musl,
    #[error("Python is supported on x86-64 only")]
    OtherMachine,
    #[error(transparent)]
    Process(#[from] DiscoverError),
}

/// Finds interpreters. Each file that has none is searched once.
#[derive(Debug, Default)]
pub struct InterpreterSearch {
    without: HashSet<MappedFile>,
}

impl InterpreterSearch {
    /// Finds the interpreter of a process.
    pub fn find(&mut self, proc_root: &Path, pid: u32) -> Result<Interpreter, NoInterpreter> {
        let folder = proc_root.join(pid.to_string());
        let text = read_maps(&folder, pid)?;
        // an exited process that its parent has not waited for
        if text.is_empty() {
            return Err(DiscoverError::NoSuchProcess { pid }.into());
        }
        let exe = fs::read_link(folder.join("exe")).map(|exe| path_from_proc(exe.as_os_str().as_bytes()));
        let files = mapped_files(&text, exe.ok().as_deref());
        let found = self.in_files(&folder, &files).ok_or(NoInterpreter::NotPython)?;
        Interpreter::of_runtime(&found, &files, &ProcessMemory::new(&folder))
    }

    fn in_files(&mut self, folder: &Path, files: &[CodeRange]) -> Option<Runtime> {
        let mut bytes_read = 0;
        for (index, range) in files.iter().enumerate() {
            let mapping = range.file.as_ref()?;
            if self.without.contains(&mapping.file) {
                continue;
            }
            // a file that cannot be opened or parsed has no interpreter that could be read
            let Ok((file, _)) = open_mapped(folder, mapping) else { continue };
            let path = &mapping.file.path;
            // The full table of a large library takes long to read, and an interpreter in a library exports its symbols.
            let is_likely = index == 0 || is_called_python(path);
            let found = Elf::parse(&file).ok().and_then(|elf| in_file(&elf, range, path, is_likely));
            bytes_read += file.bytes_read();
            if found.is_some() || bytes_read > FILE_BYTES {
                return found;
            }
            if self.without.len() >= KNOWN_FILES {
                self.without.clear();
            }
            self.without.insert(mapping.file.clone());
        }
        None
    }
}

impl Interpreter {
    /// Finds the interpreter of a process.
    pub fn of_pid(proc_root: &Path, pid: u32) -> Result<Self, NoInterpreter> {
        InterpreterSearch::default().find(proc_root, pid)
    }

    fn of_runtime(found: &Runtime, files: &[CodeRange], memory: &dyn Memory) -> Result<Self, NoInterpreter> {
        if found.machine != Machine::X86_64 {
            return Err(NoInterpreter::OtherMachine);
        }
        if paths(files).any(|path| has_name(path, &[b"ld-musl", b"libc.musl"])) {
            return Err(NoInterpreter::Musl);
        }
        let runtime_address = found.address;
        let table = memory.bytes(runtime_address, TABLE_SIZE);
        if let Some(stated) = table.as_deref().and_then(Stated::read) {
            let version = stated.version;
            if stated.is_free_threaded {
                return Err(NoInterpreter::FreeThreaded);
            }
            if !stated.is_release {
                return Err(NoInterpreter::PreRelease(version));
            }
            let known = known_offsets(version)?;
            let offsets = stated_offsets(table.as_deref().unwrap_or_default(), version, &known);
            let offsets = offsets.ok_or(NoInterpreter::NoOffsets(version))?;
            return Ok(Self { version, runtime_address, offsets });
        }
        let of_name = |path: &Path| PythonVersion::in_name(path.as_os_str().as_bytes());
        let named = || of_name(&found.path).or_else(|| paths(files).find_map(of_name));
        let (version, is_release) = match found.number {
            Some(number) => PythonVersion::from_number(number),
            None => (found.in_contents.or_else(named).ok_or(NoInterpreter::NoVersion)?, true),
        };
        if !is_release {
            return Err(NoInterpreter::PreRelease(version));
        }
        let offsets = known_offsets(version)?;
        // these state their offsets, unless their memory could not be read
        if version.minor >= 13 {
            return Err(NoInterpreter::NoOffsets(version));
        }
        Ok(Self { version, runtime_address, offsets })
    }
}

fn known_offsets(version: PythonVersion) -> Result<PythonOffsets, NoInterpreter> {
    PythonOffsets::of(version).ok_or(NoInterpreter::UnknownVersion(version.major, version.minor))
}

fn paths(files: &[CodeRange]) -> impl Iterator<Item = &Path> {
    files.iter().filter_map(|range| Some(range.file.as_ref()?.file.path.as_path()))
}

fn has_name(path: &Path, beginnings: &[&[u8]]) -> bool {
    let name = path.file_name().map_or(&b""[..], OsStrExt::as_bytes);
    beginnings.iter().any(|begin| name.starts_with(begin))
}

/// The first executable range of each mapped file: the program, then what is called python, then the others.
fn mapped_files(text: &[u8], exe: Option<&Path>) -> Vec<CodeRange> {
    let mut seen = HashSet::new();
    let is_new =
        |range: &CodeRange| range.file.as_ref().is_some_and(|mapping| seen.insert(mapping.file.clone()));
    let mut files: Vec<_> = code_ranges(text).filter(is_new).collect();
    files.sort_by_key(|range| {
        let path = range.file.as_ref().map(|mapping| mapping.file.path.as_path());
        match path {
            Some(path) if exe == Some(path) => 0,
            Some(path) if is_called_python(path) => 1,
            _ => 2,
        }
    });
    files
}

fn is_called_python(path: &Path) -> bool {
    has_name(path, &[b"python", b"libpython"])
}

/// Where a file has its interpreter, and what it says about the version.
#[derive(Debug)]
struct Runtime {
    path: PathBuf,
    machine: Machine,
    /// The address in memory of `_PyRuntime`.
    address: u64,
    /// The version as CPython writes it.
    number: Option<u64>,
    /// The version by the texts in the file.
    in_contents: Option<PythonVersion>,
}

fn in_file(elf: &Elf<'_>, range: &CodeRange, path: &Path, is_likely: bool) -> Option<Runtime> {
    let wanted = |name: &[u8]| name == RUNTIME || name == VERSION;
    let mut symbols = elf.symbols(Table::Dynamic, &wanted).unwrap_or_default();
    if is_likely && !symbols.iter().any(|symbol| is_variable(symbol, RUNTIME)) {
        symbols.extend(elf.symbols(Table::Full, &wanted).unwrap_or_default());
    }
    let variable =
        |name| symbols.iter().find(|symbol| is_variable(symbol, name)).map(|symbol| symbol.address);
    let address = variable(RUNTIME).or_else(|| elf.section_address(SECTION).ok().flatten())?;
    let number = variable(VERSION).and_then(|at| elf.loaded(at, 8, "the version of Python").ok());
    let number = number.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    Some(Runtime {
        path: path.to_owned(),
        machine: elf.machine,
        address: load_bias(range, elf)?.wrapping_add(address),
        number,
        in_contents: if number.is_none() { version_in_contents(elf) } else { None },
    })
}

fn is_variable(symbol: &ElfSymbol, name: &[u8]) -> bool {
    symbol.name.as_bytes() == name && !symbol.is_function
}

/// The version by the name of the folder of the standard library, which is a text of its own up to 3.10. `None` if
/// there are texts of several versions.
fn version_in_contents(elf: &Elf<'_>) -> Option<PythonVersion> {
    let texts = elf.section(b".rodata").ok().flatten()?;
    let names =
        texts.split(|byte| *byte == 0).filter(|text| text.len() < 16 && text.starts_with(b"python3."));
    let mut versions = names.filter_map(PythonVersion::in_name);
    let first = versions.next()?;
    versions.all(|version| version == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::RegularFile;
    use crate::python::debug_offsets::tests::table;
    use crate::testing::{ElfBuilder, FakeProc};

    /// The memory of a process that has these bytes as its `_PyRuntime`.
    struct At(u64, Vec<u8>);

    impl Memory for At {
        fn bytes(&self, address: u64, size: usize) -> Option<Vec<u8>> {
            let at = usize::try_from(address.checked_sub(self.0)?).ok()?;
            self.1.get(at..at.checked_add(size)?).map(<[u8]>::to_vec)
        }
    }

    const ADDRESS: u64 = 0x7f00_0000_5000;

    fn runtime(number: Option<u64>, in_contents: Option<u8>, path: &str) -> Runtime {
        Runtime {
            path: path.into(),
            machine: Machine::X86_64,
            address: ADDRESS,
            number,
            in_contents: in_contents.map(|minor| PythonVersion::new(3, minor)),
        }
    }

    fn found(runtime: &Runtime, mapped: &str, memory: Vec<u8>) -> Result<Interpreter, String> {
        let maps = format!("1000-2000 r-xp 0 fe:00 7 /bin/app\n3000-4000 r-xp 0 fe:00 8 {mapped}\n");
        let files = mapped_files(maps.as_bytes(), None);
        Interpreter::of_runtime(runtime, &files, &At(ADDRESS, memory)).map_err(|why| why.to_string())
    }

    #[test]
    fn the_version_is_from_the_best_source() {
        let minor =
            |runtime, mapped: &str| found(&runtime, mapped, Vec::new()).map(|found| found.version.minor);
        let extension = "/x/_json.cpython-39-x86_64-linux-gnu.so";
        assert_eq!(minor(runtime(Some(0x030c_01f0), Some(10), "/usr/bin/python3.9"), extension), Ok(12));
        assert_eq!(minor(runtime(None, Some(10), "/usr/bin/python3.9"), extension), Ok(10));
        assert_eq!(minor(runtime(None, None, "/usr/bin/python3.11"), extension), Ok(11));
        assert_eq!(minor(runtime(None, None, "/usr/bin/app"), extension), Ok(9));
        let none = minor(runtime(None, None, "/usr/bin/app"), "/lib/libc.so.6").unwrap_err();
        assert_eq!(none, "the process has a Python interpreter whose version cannot be determined");
        let old = minor(runtime(Some(0x0308_12f0), None, "/usr/bin/app"), extension).unwrap_err();
        assert_eq!(old, "Python 3.8 is not supported; 3.9 to 3.14 are");
        let beta = minor(runtime(Some(0x030c_00b3), None, "/usr/bin/app"), extension).unwrap_err();
        assert_eq!(beta, "Python 3.12.0 is a pre-release, whose structures are not known");
    }

    #[test]
    fn a_table_of_offsets_is_the_best_source() {
        let of = |minor: u8, number, change: fn(&mut Vec<u8>)| {
            let version = PythonVersion::new(3, minor);
            let mut table = table(version, number, &PythonOffsets::of(version).unwrap());
            change(&mut table);
            found(&runtime(Some(0x030d_00f0), None, "/usr/bin/app"), "/lib/libc.so.6", table)
        };
        let interpreter = of(14, 0x030e_03f0, |_| ()).unwrap();
        assert_eq!(
            (interpreter.version.to_string().as_str(), interpreter.runtime_address),
            ("3.14.3", ADDRESS)
        );
        assert_eq!(interpreter.offsets, PythonOffsets::of(interpreter.version).unwrap());
        let error = |number, change| of(13, number, change).unwrap_err();
        assert_eq!(
            error(0x030d_00f0, |table| table[16] = 1),
            "free-threaded builds of Python are not supported"
        );
        assert_eq!(error(0x030f_00f0, |_| ()), "Python 3.15 is not supported; 3.9 to 3.14 are");
        assert_eq!(
            error(0x030e_00a1, |_| ()),
            "Python 3.14.0 is a pre-release, whose structures are not known"
        );
        let stated = "does not state where its structures are, or its memory cannot be read";
        assert_eq!(error(0x030d_00f0, |table| table[47] = 1), format!("Python 3.13.0 {stated}"));
        assert_eq!(error(0x030d_00f0, Vec::clear), format!("Python 3.13.0 {stated}"));
    }

    #[test]
    fn other_machines_and_musl_are_refused() {
        let arm = Runtime { machine: Machine::Aarch64, ..runtime(Some(0x030c_01f0), None, "/x") };
        assert_eq!(
            found(&arm, "/lib/libc.so.6", Vec::new()).unwrap_err(),
            "Python is supported on x86-64 only"
        );
        let x86 = runtime(Some(0x030c_01f0), None, "/x");
        let musl = found(&x86, "/lib/ld-musl-x86_64.so.1", Vec::new()).unwrap_err();
        assert_eq!(musl, "Python on musl is not supported; on glibc it is");
    }

    #[test]
    fn the_runtime_is_found_by_its_symbol_and_moved_as_its_file_is() {
        let proc = FakeProc::new();
        let path = proc.path().join("embeds");
        // an object of the dynamic table
        ElfBuilder::new().export("main", &[0xc3; 0x1000]).raw("_PyRuntime", 0x11, 1, 0x45000).write(&path);
        let folder = proc.process(7, &[("/bin/sh", Path::new("/bin/sh")), ("/opt/embeds", &path)]);
        let text = read_maps(&folder, 7).unwrap();
        let files = mapped_files(&text, None);
        let found = InterpreterSearch::default().in_files(&folder, &files).unwrap();
        // the code is at 0x41000 in the file and mapped at the address of the second file
        assert_eq!((found.address, found.number), (0x7f00_0001_0000 + 0x4000, None));
        assert_eq!(found.path, Path::new("/opt/embeds"));

        ElfBuilder::new().export("main", &[0xc3]).write(&path);
        assert!(InterpreterSearch::default().in_files(&folder, &files).is_none());
        let error = Interpreter::of_pid(proc.path(), 7).unwrap_err();
        assert_eq!(error.to_string(), "the process has no Python interpreter");
        let error = Interpreter::of_pid(proc.path(), 8).unwrap_err();
        assert_eq!(error.to_string(), "no process 8: it has exited or never existed");
    }

    #[test]
    fn the_program_is_searched_first_and_then_what_is_called_python() {
        let maps = b"\
1000-2000 r-xp 0 fe:00 1 /lib/libc.so.6
3000-4000 r-xp 0 fe:00 2 /lib/libpython3.12.so.1.0
5000-6000 r-xp 0 fe:00 2 /lib/libpython3.12.so.1.0
7000-8000 r-xp 0 fe:00 3 /bin/app
9000-a000 rwxp 0 00:00 0
";
        let files = mapped_files(maps, Some(Path::new("/bin/app")));
        assert_eq!(files.iter().map(|range| range.start).collect::<Vec<_>>(), [0x7000, 0x3000, 0x1000]);
    }

    #[test]
    fn a_function_of_that_name_is_no_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("python");
        ElfBuilder::new().export("_PyRuntime", &[0xc3]).write(&path);
        let file = RegularFile::open(&path).unwrap();
        let range = CodeRange { start: 0x1000, end: 0x2000, offset: 0x1000, file: None };
        assert!(in_file(&Elf::parse(&file).unwrap(), &range, &path, true).is_none());
    }
}
