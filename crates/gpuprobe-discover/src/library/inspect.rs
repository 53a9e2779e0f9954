//! Finds the CUDA libraries in one file. Each file is inspected once, however many processes map it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use gpuprobe_event::{Api, Hooks, catalogue};

use super::runtime_version::static_major;
use super::scan::{Library, Names, STATIC_RUNTIME, Scan, Symbol, major_of};
use crate::access::{FileId, RegularFile, Stamp};
use crate::elf::{Elf, ElfSymbol, Table};
use crate::error::{Defect, DiscoverError};
use crate::process::Mapping;
use crate::skipped::{SkipCause, Skipped};

/// libcuda has about 700.
const FUNCTION_LIMIT: usize = 8192;
/// When the cache is full it is emptied: files that are still mapped are cheap to inspect again.
const CACHE_LIMIT: usize = 16384;
/// Names of files with hooks that are remembered.
const HOOKED_LIMIT: usize = 16;
/// A program with the runtime linked in has most of these; one that wraps a few calls has not.
const STATIC_PROOFS: [&str; 5] =
    ["cudaMalloc", "cudaFree", "cudaLaunchKernel", "cudaGetDeviceCount", "cudaRuntimeGetVersion"];
const STATIC_PROOFS_NEEDED: usize = 4;
/// Files with GPU code register it with the runtime through this function.
const REGISTRATION: &[u8] = b"__cudaRegisterFatBinary";

/// The file, its version, the CUDA library that its name suggests, and the name itself if hooks match it.
type Key = (FileId, Stamp, Option<Api>, Option<String>);

/// Inspects files and caches the results.
#[derive(Debug, Default)]
pub struct Inspector {
    contents: HashMap<Key, Cached>,
    /// Files that were inspected.
    seen: Identities,
    /// Those that contain libraries. A separate cache, so that they do not get a new identity when the other is
    /// emptied: they would be probed twice.
    holders: Identities,
    /// Functions of any library that the user has named.
    hooks: Arc<Hooks>,
    /// Names of files that hooks match.
    hooked: BTreeSet<String>,
    /// What processes had mapped when their new mappings were last requested.
    pub(crate) asked: HashMap<u32, HashSet<Mapping>>,
}

/// The cached result of one file.
#[derive(Debug)]
struct Cached {
    found: Result<Arc<Contents>, Defect>,
    /// Used since the last call of [`Inspector::forget_unused`].
    is_used: bool,
}

/// The contents of one file.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) libraries: Vec<Library>,
    /// A program with a runtime linked in whose symbols were stripped.
    hidden_runtime: bool,
}

impl Contents {
    /// Why there is less to probe than the file's name suggests, if so.
    pub(crate) fn missing_functions(&self, path: &Path) -> Option<(SkipCause, String)> {
        if self.hidden_runtime {
            let reason = "the CUDA runtime is linked in and stripped of its symbols; only its calls \
                          to libcuda are seen";
            return Some((SkipCause::HiddenRuntime, reason.into()));
        }
        // an old library of a framework has none of the functions of the catalogue
        let is_named = Api::of_name(path).is_some_and(Api::is_gpu_library) && !Api::is_behind_loader(path);
        if self.libraries.is_empty() && is_named {
            let reason = "has the name of a GPU library but none of its functions";
            return Some((SkipCause::NoFunctions, reason.into()));
        }
        None
    }
}

/// The CUDA libraries in one file, read through `open_path` and shown as `path`.
pub fn inspect(path: &Path, open_path: &Path) -> Result<Vec<Library>, DiscoverError> {
    Inspector::new().inspect(path, open_path).map(|scan| scan.libraries)
}

impl Inspector {
    pub fn new() -> Self {
        Self::default()
    }

    /// An inspector that also finds the functions of these hooks.
    pub fn with_hooks(hooks: Arc<Hooks>) -> Self {
        Self { hooks, ..Self::default() }
    }

    /// Whether the name of a file suggests that it has functions to probe: it is that of a CUDA library, or a hook
    /// matches it.
    pub fn may_have_targets(&self, path: &Path) -> bool {
        Api::of_name(path).is_some() || self.hooks.fit_library(&file_name(path))
    }

    /// The CUDA libraries in one file, and the reason if there are none where the name suggests some.
    pub fn inspect(&mut self, path: &Path, open_path: &Path) -> Result<Scan, DiscoverError> {
        let file = RegularFile::open(open_path)?;
        let contents = self.contents_of(&file, path)?;
        let skipped = contents
            .missing_functions(path)
            .map(|(cause, why)| Skipped::file(path, Some(file.id), cause, why));
        let skipped = skipped.into_iter().collect();
        let libraries = contents.libraries.iter().map(|l| self.named(l, &file, path, open_path)).collect();
        Ok(Scan { libraries, skipped, ..Scan::default() })
    }

    /// The files inspected so far that hooks match, whether they have the hooked functions or not.
    pub fn hooked_files(&self) -> &BTreeSet<String> {
        &self.hooked
    }

    /// The contents of an open file, shared and without its final paths.
    pub(crate) fn contents_of(
        &mut self,
        file: &RegularFile,
        path: &Path,
    ) -> Result<Arc<Contents>, DiscoverError> {
        if self.contents.len() >= CACHE_LIMIT {
            self.contents.clear();
        }
        let by_name = Api::of_name(path);
        let hooked = Some(file_name(path)).filter(|name| self.hooks.fit_library(name));
        if let Some(name) = hooked.as_ref().filter(|_| self.hooked.len() < HOOKED_LIMIT) {
            self.hooked.insert(name.clone());
        }
        // Not by the identity of the file below an overlay: otherwise a user's own file system could decide where the
        // functions of another file are.
        let key: Key = (file.id, file.stamp, by_name, hooked);
        let found = match self.contents.get(&key) {
            Some(cached) => cached.found.clone(),
            None => contents(file, path, by_name, &self.hooks).map(Arc::new),
        };
        // A read error may be temporary, so it is not cached.
        if !matches!(found, Err(Defect::Read { .. })) {
            self.contents.insert(key, Cached { found: found.clone(), is_used: true });
        }
        found.map_err(|defect| defect.of(path))
    }

    /// Drops files that were not used since the last call: each replaced library would otherwise take a hundred
    /// kilobytes for ever.
    pub(crate) fn forget_unused(&mut self) {
        self.contents.retain(|_, cached| std::mem::replace(&mut cached.is_used, false));
    }

    /// The identity of a file: see [`Identities`].
    pub(crate) fn real_id(&mut self, file: &RegularFile) -> FileId {
        self.seen.of(file)
    }

    /// A library of an open file, with its final paths.
    pub(crate) fn named(
        &mut self,
        library: &Library,
        file: &RegularFile,
        path: &Path,
        open_path: &Path,
    ) -> Library {
        let id = self.holders.of(file);
        Library {
            id,
            path: path.to_owned(),
            open_path: open_path.to_owned(),
            opened: Some(file.opened()),
            may_stall: file.may_stall,
            ..library.clone()
        }
    }
}

/// Gives one identity to a file that two containers share. The Linux kernel probes the file below an overlay, so two
/// containers of one image share every probe, though each sees the file on its own device: attached to both, each
/// call would be counted twice. Inode number, size and times come from the file below. They are trusted only if
/// overlayfs reports them, because other file systems without a disk may be under a user's control. So may the one
/// below an overlay; but the files of its users do not belong to root.
#[derive(Debug, Default)]
struct Identities {
    /// By inode and stamp, with a flag for overlayfs.
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

/// The file name that hooks are matched against.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn contents(
    file: &RegularFile,
    path: &Path,
    by_name: Option<Api>,
    hooks: &Hooks,
) -> Result<Contents, Defect> {
    let elf = Elf::parse(file)?;
    let soname = elf.soname()?;
    let kind = by_name.or_else(|| soname.as_deref().and_then(|name| Api::of_name(Path::new(name))));
    let library = |kind, soname, cuda_major, is_static, functions| Library {
        path: path.to_owned(),
        open_path: path.to_owned(),
        id: file.id,
        opened: Some(file.opened()),
        kind,
        soname,
        cuda_major,
        is_static,
        is_behind_loader: Api::is_behind_loader(path),
        may_stall: file.may_stall,
        functions,
    };
    let mut found = Vec::new();
    if let Some(kind) = kind {
        let functions = functions(&elf, &|name| kind.owns(name), &[Table::Dynamic])?;
        let has_proof = match kind.row().proofs {
            [] => !functions.is_empty(),
            proofs => count_of(&functions, proofs) > 0,
        };
        if has_proof {
            let base = path.file_name().unwrap_or_default();
            let soname = soname.clone().unwrap_or_else(|| base.to_string_lossy().into_owned());
            let major = major_of(soname.as_bytes()).or_else(|| major_of(base.as_bytes()));
            let major = major.filter(|_| kind.row().has_majors);
            found.push(library(kind, soname, major, false, functions));
        }
    }
    let has_shared_runtime = found.iter().any(|library| library.kind == Api::Runtime);
    let mut hidden_runtime = false;
    if !has_shared_runtime && may_contain_runtime(&elf)? {
        let functions = functions(&elf, &|name| Api::Runtime.owns(name), &[Table::Full, Table::Dynamic])?;
        if count_of(&functions, &STATIC_PROOFS) >= STATIC_PROOFS_NEEDED {
            let major = static_major(file, elf.machine, &functions);
            found.push(library(Api::Runtime, STATIC_RUNTIME.into(), major, true, functions));
        } else {
            hidden_runtime = hides_runtime(&elf)?;
        }
    }
    let name = file_name(path);
    if hooks.fit_library(&name) {
        let is_known = |function: &str| {
            found.iter().any(|l: &Library| catalogue().lookup(l.kind, l.cuda_major, function).is_some())
        };
        let wanted =
            |function: &[u8]| std::str::from_utf8(function).is_ok_and(|f| hooks.fit(&name, f, is_known(f)));
        let hooked = functions(&elf, &wanted, &[Table::Full, Table::Dynamic]);
        match hooked {
            Ok(functions) if !functions.is_empty() => {
                found.push(library(Api::Hook, soname.unwrap_or(name), None, false, functions));
            }
            // a glob that matches too much must not hide the other libraries in the file
            Err(defect) if found.is_empty() => return Err(defect),
            _ => {}
        }
    }
    Ok(Contents { libraries: found, hidden_runtime })
}

/// Whether the CUDA runtime may be linked into a file: a program, or a library with GPU code. If such a library imports
/// the function that registers the code, the runtime that has it is not linked in, and the full symbol table is not read.
/// That of a large library takes long, and the program waits meanwhile.
fn may_contain_runtime(elf: &Elf<'_>) -> Result<bool, Defect> {
    Ok(elf.is_program || (elf.has_gpu_code()? && !elf.imports(REGISTRATION)?))
}

/// Whether a program has GPU code and does not import the function that registers it: then the function, and the
/// runtime with it, is linked in. Only for programs: cuBLAS and similar libraries are built the same way, and their
/// calls are not the user's.
fn hides_runtime(elf: &Elf<'_>) -> Result<bool, Defect> {
    Ok(elf.is_program && elf.has_gpu_code()? && !elf.imports(REGISTRATION)?)
}

fn count_of(functions: &[Symbol], names: &[&str]) -> usize {
    names.iter().filter(|name| functions.iter().any(|function| function.name == **name)).count()
}

fn functions(elf: &Elf<'_>, wanted: &dyn Fn(&[u8]) -> bool, tables: &[Table]) -> Result<Vec<Symbol>, Defect> {
    let mut functions = Vec::new();
    let with_offset = |symbol: ElfSymbol| {
        let offset = elf.code_offset(symbol.address)?;
        symbol.is_function.then_some(Symbol { name: symbol.name, offset, size: symbol.size })
    };
    for &table in tables {
        functions.extend(elf.symbols(table, wanted)?.into_iter().filter_map(with_offset));
    }
    functions.sort_unstable_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    functions.dedup_by(|a, b| a.offset == b.offset && a.name == b.name);
    if functions.len() > FUNCTION_LIMIT {
        let count = functions.len();
        return Err(Defect::malformed(format!("{count} functions, more than the limit of {FUNCTION_LIMIT}")));
    }
    Ok(functions)
}

#[cfg(test)]
mod tests;
