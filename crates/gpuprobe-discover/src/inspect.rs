//! From one file to the CUDA libraries in it, each file looked at once however many processes map it.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

use crate::elf::{Elf, ElfSymbol, Machine, Table};
use crate::error::{Defect, DiscoverError};
use crate::file::{FileId, RegularFile, Stamp};
use gpuprobe_event::Api;

use crate::library::{Library, Names, STATIC_RUNTIME, Scan, Symbol, major_of};
use crate::maps::Mapping;
use crate::skipped::{SkipCause, Skipped};

/// libcuda has about 700.
const FUNCTION_LIMIT: usize = 8192;
/// When full the cache is emptied: files that are still mapped are cheap to look at again.
const CACHE_LIMIT: usize = 16384;
/// A program with the runtime linked in has all of these; one that wraps a few calls has not.
const STATIC_PROOFS: [&str; 5] =
    ["cudaMalloc", "cudaFree", "cudaLaunchKernel", "cudaGetDeviceCount", "cudaRuntimeGetVersion"];
const STATIC_PROOFS_NEEDED: usize = 4;
/// Only files with GPU code have a runtime linked in. These sections are loaded, so that `strip` leaves them.
const GPU_CODE: [&[u8]; 2] = [b".nv_fatbin", b".nvFatBinSegment"];
/// Whatever has GPU code hands it to the runtime by this function.
const REGISTRATION: &[u8] = b"__cudaRegisterFatBinary";

/// The file, what it was when it was read, and what its name promised.
type Key = (FileId, Stamp, Option<Api>);

/// Looks into files and remembers what was in them.
#[derive(Debug, Default)]
pub struct Inspector {
    contents: HashMap<Key, Result<Arc<Contents>, Defect>>,
    /// Files that were looked at.
    seen: Identities,
    /// Those of them that hold libraries. Kept apart, because these must not get another identity when there were too
    /// many of the others: they would be probed twice.
    holders: Identities,
    /// What processes had mapped when their new mappings were last asked for.
    pub(crate) asked: HashMap<u32, HashSet<Mapping>>,
}

/// What was found in one file.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) libraries: Vec<Library>,
    /// A program with a runtime linked in whose functions have no names any more.
    hidden_runtime: bool,
}

impl Contents {
    /// Why there is less to probe than the file promised, if so.
    pub(crate) fn lacks(&self, path: &Path) -> Option<(SkipCause, String)> {
        if self.hidden_runtime {
            let reason = "the CUDA runtime is linked in and stripped of its symbols; its calls are seen at \
                          libcuda alone";
            return Some((SkipCause::HiddenRuntime, reason.into()));
        }
        if self.libraries.is_empty() && Api::of_name(path).is_some() {
            let reason = "has the name of a CUDA library but none of its functions";
            return Some((SkipCause::NoFunctions, reason.into()));
        }
        None
    }
}

/// The CUDA libraries in one file, read through `open_path` and named `path`; none when it is something else.
pub fn inspect(path: &Path, open_path: &Path) -> Result<Vec<Library>, DiscoverError> {
    Inspector::new().inspect(path, open_path).map(|scan| scan.libraries)
}

impl Inspector {
    pub fn new() -> Self {
        Self::default()
    }

    /// The CUDA libraries in one file, and why there are none where there should be some.
    pub fn inspect(&mut self, path: &Path, open_path: &Path) -> Result<Scan, DiscoverError> {
        let file = RegularFile::open(open_path)?;
        let contents = self.contents_of(&file, path)?;
        let skipped = contents.lacks(path).map(|(cause, why)| Skipped::file(path, Some(file.id), cause, why));
        let skipped = skipped.into_iter().collect();
        let libraries = contents.libraries.iter().map(|l| self.named(l, &file, path, open_path)).collect();
        Ok(Scan { libraries, skipped })
    }

    /// What is in an opened file, shared and without its final names.
    pub(crate) fn contents_of(
        &mut self,
        file: &RegularFile,
        path: &Path,
    ) -> Result<Arc<Contents>, DiscoverError> {
        if self.contents.len() >= CACHE_LIMIT {
            self.contents.clear();
        }
        let by_name = Api::of_name(path);
        let id = self.real_id(file);
        let look = || contents(file, id, path, by_name).map(Arc::new);
        let found = self.contents.entry((id, file.stamp, by_name)).or_insert_with(look);
        // An error of reading may pass, so it is not kept for the next time.
        let found = found.clone();
        if matches!(found, Err(Defect::Read { .. })) {
            self.contents.remove(&(id, file.stamp, by_name));
        }
        found.map_err(|defect| defect.of(path))
    }

    /// The identity of a file: see [`Identities`].
    pub(crate) fn real_id(&mut self, file: &RegularFile) -> FileId {
        self.seen.of(file)
    }

    /// A library of an opened file, with its final names.
    pub(crate) fn named(
        &mut self,
        library: &Library,
        file: &RegularFile,
        path: &Path,
        open_path: &Path,
    ) -> Library {
        let id = self.holders.of(file);
        Library { id, path: path.to_owned(), open_path: open_path.to_owned(), ..library.clone() }
    }
}

/// The kernel probes the file below an overlay, so two containers of one image share every probe, though each sees the
/// file on a device of its own: attached to both, each call would be counted twice. Inode number, size and times come
/// from the file below. They are trusted only where overlayfs reports them, for other file systems without a disk may be
/// in a user's hand.
#[derive(Debug, Default)]
struct Identities {
    /// By inode and stamp, with the mark of overlayfs.
    known: HashMap<(u64, Stamp), Vec<(FileId, bool)>>,
}

impl Identities {
    fn of(&mut self, file: &RegularFile) -> FileId {
        if self.known.len() >= CACHE_LIMIT {
            self.known.clear();
        }
        let same = self.known.entry((file.id.inode, file.stamp)).or_default();
        let known = same.iter().find(|(id, overlay)| *id == file.id || *overlay || file.overlay);
        if let Some(&(id, _)) = known {
            return id;
        }
        same.push((file.id, file.overlay));
        file.id
    }
}

fn contents(file: &RegularFile, id: FileId, path: &Path, by_name: Option<Api>) -> Result<Contents, Defect> {
    let elf = Elf::parse(file)?;
    let soname = elf.soname()?;
    let kind = by_name.or_else(|| soname.as_deref().and_then(|name| Api::of_name(Path::new(name))));
    let library = |kind, soname, cuda_major, is_static, functions| Library {
        path: path.to_owned(),
        open_path: path.to_owned(),
        id,
        kind,
        soname,
        cuda_major,
        is_static,
        functions,
    };
    let mut found = Vec::new();
    if let Some(kind) = kind {
        let functions = functions(&elf, kind, &[Table::Dynamic])?;
        if count_of(&functions, kind.proofs()) > 0 {
            let base = path.file_name().unwrap_or_default();
            let soname = soname.unwrap_or_else(|| base.to_string_lossy().into_owned());
            let major = major_of(soname.as_bytes()).or_else(|| major_of(base.as_bytes()));
            let major = major.filter(|_| kind == Api::Runtime);
            found.push(library(kind, soname, major, false, functions));
        }
    }
    let has_shared_runtime = found.iter().any(|library| library.kind == Api::Runtime);
    let mut hidden_runtime = false;
    if !has_shared_runtime && (elf.is_program || elf.has_section(&GPU_CODE)?) {
        let functions = functions(&elf, Api::Runtime, &[Table::Full, Table::Dynamic])?;
        if count_of(&functions, &STATIC_PROOFS) >= STATIC_PROOFS_NEEDED {
            let major = static_major(file, elf.machine, &functions);
            found.push(library(Api::Runtime, STATIC_RUNTIME.into(), major, true, functions));
        } else {
            hidden_runtime = hides_runtime(&elf)?;
        }
    }
    Ok(Contents { libraries: found, hidden_runtime })
}

/// Whether a program has GPU code and takes the function that registers it from nobody else: then it has it in itself,
/// and the runtime with it. Asked of programs alone: cuBLAS and its like are built so and are not the user's calls.
fn hides_runtime(elf: &Elf<'_>) -> Result<bool, Defect> {
    Ok(elf.is_program && elf.has_section(&GPU_CODE)? && !elf.imports(REGISTRATION)?)
}

fn count_of(functions: &[Symbol], names: &[&str]) -> usize {
    names.iter().filter(|name| functions.iter().any(|function| function.name == **name)).count()
}

fn functions(elf: &Elf<'_>, kind: Api, tables: &[Table]) -> Result<Vec<Symbol>, Defect> {
    let mut functions = Vec::new();
    let place = |symbol: ElfSymbol| {
        let offset = elf.code_offset(symbol.address)?;
        symbol.is_function.then_some(Symbol { name: symbol.name, offset, size: symbol.size })
    };
    for &table in tables {
        functions.extend(elf.symbols(table, &|name| kind.owns(name))?.into_iter().filter_map(place));
    }
    functions.sort_unstable_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    functions.dedup_by(|a, b| a.offset == b.offset && a.name == b.name);
    if functions.len() > FUNCTION_LIMIT {
        let count = functions.len();
        return Err(Defect::malformed(format!(
            "{count} functions of CUDA, more than the {FUNCTION_LIMIT} that are believed"
        )));
    }
    Ok(functions)
}

/// A linked-in runtime has no SONAME, but `cudaRuntimeGetVersion`, or a function that it calls, stores the
/// version (12040 for 12.4) from a constant in the code through its argument. Only a hint.
fn static_major(file: &RegularFile, machine: Machine, functions: &[Symbol]) -> Option<u32> {
    if machine != Machine::X86_64 {
        return None;
    }
    let read = |offset, size| file.read_some(offset, size, "code").unwrap_or_default();
    let function = functions.iter().find(|function| function.name == "cudaRuntimeGetVersion")?;
    let code = read(function.offset, function.size.min(512));
    let callees = Decoder::with_ip(64, &code, function.offset, DecoderOptions::NONE)
        .into_iter()
        .filter(Instruction::is_call_near)
        .map(|call| call.near_branch_target());
    let version =
        stored_version(&code).or_else(|| callees.take(4).find_map(|at| stored_version(&read(at, 32))));
    version.map(|version| version / 1000)
}

fn stored_version(code: &[u8]) -> Option<u32> {
    Decoder::new(64, code, DecoderOptions::NONE).iter().find_map(|instruction| {
        let stores_constant = instruction.code() == Code::Mov_rm32_imm32
            && instruction.op0_kind() == OpKind::Memory
            && instruction.memory_index() == Register::None
            && instruction.memory_displacement64() == 0;
        let value = stores_constant.then(|| instruction.immediate32())?;
        ((9000..100_000).contains(&value) && value % 10 == 0).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::{CODE_OFFSET, ElfBuilder, Xorshift};

    const PUSH: [u8; 2] = [0x55, 0xc3];

    fn names(library: &Library) -> Vec<&str> {
        library.functions.iter().map(|function| function.name.as_str()).collect()
    }

    fn inspected(builder: &ElfBuilder, name: &str) -> Vec<Library> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        builder.write(&path);
        inspect(&path, &path).unwrap()
    }

    fn runtime() -> ElfBuilder {
        STATIC_PROOFS.iter().fold(ElfBuilder::new(), |builder, name| builder.export(name, &PUSH))
    }

    fn static_program(count: usize) -> ElfBuilder {
        // push; mov dword [rdi], 12040; ret
        let version = [0x55, 0xc7, 0x07, 0x08, 0x2f, 0, 0, 0xc3];
        STATIC_PROOFS.iter().rev().take(count).fold(ElfBuilder::new(), |b, name| b.local(name, &version))
    }

    #[test]
    fn a_shared_runtime_is_found_with_its_functions() {
        let builder = runtime().soname("libcudart.so.11.0").export("helper", &PUSH);
        let found = inspected(&builder, "libcudart-d0da41ae.so.11.8.89");
        assert_eq!(found.len(), 1);
        let library = &found[0];
        assert_eq!((library.kind, library.cuda_major), (Api::Runtime, Some(11)));
        assert_eq!(library.soname, "libcudart.so.11.0");
        assert!(!library.is_static);
        assert_eq!(names(library), STATIC_PROOFS);
        assert_eq!(library.functions[1].offset, CODE_OFFSET + 16, "a file offset, not an address");
        assert_eq!(library.functions[1].size, 2);
    }

    #[test]
    fn only_defined_functions_are_targets() {
        let builder = ElfBuilder::new()
            .export("cuInit", &PUSH)
            .raw("cuUndefined", 0x12, 0, 0x41000)
            .raw("cuZero", 0x12, 1, 0)
            .raw("cuObject", 0x11, 1, 0x41000)
            .raw("cuIndirect", 0x1a, 1, 0x41000)
            .raw("cuOutside", 0x12, 1, 0x9_0000);
        let found = inspected(&builder, "libcuda.so.1");
        assert_eq!(names(&found[0]), ["cuInit"]);
        assert_eq!(found[0].soname, "libcuda.so.1", "the file name where there is no SONAME");
    }

    #[test]
    fn a_name_alone_makes_no_library() {
        let builder = ElfBuilder::new().soname("libcuda.so.1").export("cuteKitten", &PUSH);
        assert!(inspected(&builder, "libcuda.so.1").is_empty());
    }

    #[test]
    fn the_soname_tells_where_the_file_name_does_not() {
        assert_eq!(inspected(&runtime().soname("libcudart.so.12"), "copy.bin").len(), 1);
    }

    #[test]
    fn a_linked_in_runtime_is_found_by_its_symbols() {
        let found = inspected(&static_program(5).interpreter("/lib/ld.so"), "train");
        assert_eq!(found.len(), 1);
        assert!(found[0].is_static);
        assert_eq!((found[0].soname.as_str(), found[0].cuda_major), ("libcudart_static", Some(12)));
        assert_eq!(found[0].functions.len(), 5);

        assert!(inspected(&static_program(3).interpreter("/lib/ld.so"), "wrapper").is_empty());
        assert!(inspected(&static_program(5), "libplain.so").is_empty(), "a library without GPU code");
        assert_eq!(inspected(&static_program(5).section(".nv_fatbin"), "libgpu.so").len(), 1);
    }

    #[test]
    fn a_program_whose_runtime_has_no_names_any_more_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train");
        let causes = |builder: &ElfBuilder| {
            builder.write(&path);
            let scan = Inspector::new().inspect(&path, &path).unwrap();
            assert!(scan.libraries.is_empty());
            scan.skipped.iter().map(|skipped| skipped.cause).collect::<Vec<_>>()
        };
        let stripped = || ElfBuilder::new().section(".nv_fatbin");
        let program = || stripped().interpreter("/lib/ld.so");
        assert_eq!(causes(&program()), [Some(SkipCause::HiddenRuntime)]);
        let shared = program().raw("__cudaRegisterFatBinary", 0x12, 0, 0);
        assert_eq!(causes(&shared), [], "its runtime is a library");
        assert_eq!(causes(&stripped()), [], "a library such as cuBLAS");
        assert_eq!(causes(&ElfBuilder::new().interpreter("/lib/ld.so")), [], "no GPU code");
    }

    #[test]
    fn the_version_of_a_linked_in_runtime_is_found_one_call_away() {
        // mov eax, 13000; call +2; ret; nop; mov dword [rdi], 13000; ret
        let code = [0xb8, 0xc8, 0x32, 0, 0, 0xe8, 2, 0, 0, 0, 0xc3, 0x90, 0xc7, 0x07, 0xc8, 0x32, 0, 0, 0xc3];
        assert_eq!(stored_version(&code[..12]), None, "a constant that is not stored");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, code).unwrap();
        let file = RegularFile::open(&path).unwrap();
        let function = Symbol { name: "cudaRuntimeGetVersion".into(), offset: 0, size: 11 };
        assert_eq!(static_major(&file, Machine::X86_64, &[function]), Some(13));
    }

    #[test]
    fn a_file_can_hold_two_libraries() {
        let builder = static_program(5).section(".nv_fatbin").export("ncclGetVersion", &PUSH);
        let found = inspected(&builder, "libnccl.so.2");
        let kinds: Vec<_> = found.iter().map(|library| (library.kind, library.is_static)).collect();
        assert_eq!(kinds, [(Api::Nccl, false), (Api::Runtime, true)]);
    }

    #[test]
    fn a_file_is_looked_at_again_only_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcudart.so.12");
        runtime().write(&path);
        let mut inspector = Inspector::new();
        inspector.inspect(&path, &path).unwrap();
        let link = dir.path().join("libcudart.so");
        fs::hard_link(&path, &link).unwrap();
        // The link count is part of what changes the stamp; from here on nothing does.
        inspector.inspect(&path, &path).unwrap();
        let before = inspector.contents.len();
        assert_eq!(inspector.inspect(&link, &link).unwrap().libraries[0].path, link);
        assert_eq!(inspector.contents.len(), before);
        runtime().export("cudaMemcpy", &PUSH).write(&path);
        assert_eq!(inspector.inspect(&path, &path).unwrap().libraries[0].functions.len(), 6);
    }

    #[test]
    fn containers_of_one_image_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcudart.so.12");
        runtime().write(&path);
        let seen_on = |dev, overlay| {
            let mut file = RegularFile::open(&path).unwrap();
            (file.id.dev, file.overlay) = (dev, overlay);
            file
        };
        let mut identities = Identities::default();
        let first = identities.of(&seen_on(50, true));
        assert_eq!(identities.of(&seen_on(51, true)), first);
        assert_eq!(identities.of(&seen_on(8, false)), first, "the host's own name of it");
        let mut identities = Identities::default();
        let first = identities.of(&seen_on(50, false));
        assert_ne!(identities.of(&seen_on(51, false)), first, "two disks can have the same numbers");

        let mut inspector = Inspector::new();
        let id_on = |inspector: &mut Inspector, dev| {
            let file = seen_on(dev, true);
            let contents = inspector.contents_of(&file, &path).unwrap();
            inspector.named(&contents.libraries[0], &file, &path, &path).id
        };
        let first = id_on(&mut inspector, 50);
        for inode in 0..CACHE_LIMIT as u64 {
            let mut other = seen_on(50, true);
            other.id.inode = inode;
            inspector.real_id(&other);
        }
        assert_eq!(id_on(&mut inspector, 51), first, "however many other files were seen meanwhile");
    }

    #[test]
    fn changed_bytes_never_panic_nor_take_long() {
        let branch = [0x48, 0x85, 0xff, 0x0f, 0x84, 0, 0, 0, 0, 0xff, 0xe0, 0xc3];
        let good = runtime().soname("libcudart.so.12").export("cudaMemcpy", &branch).build();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcudart.so.12");
        let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
        for _ in 0..2000 {
            let mut bytes = good.clone();
            random.damage(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            if let Ok(found) = inspect(&path, &path) {
                crate::plan::plan(&found, &|_, _| Some(gpuprobe_event::FunctionId(1)));
            }
        }
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcuda.so\n.1");
        fs::write(&path, "no").unwrap();
        let text = inspect(&path, &path).unwrap_err().to_string();
        assert!(text.ends_with("libcuda.so\\n.1\": not an ELF file"), "{text}");
    }

    #[test]
    fn programs_of_the_system_are_not_cuda() {
        for path in ["/bin/sh", "/proc/self/exe"] {
            assert!(inspect(Path::new(path), Path::new(path)).unwrap().is_empty());
        }
    }
}
