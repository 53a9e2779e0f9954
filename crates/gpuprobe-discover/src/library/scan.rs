//! The result of a scan, and the names of GPU libraries and their functions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gpuprobe_event::{Api, catalogue};

use crate::access::{FileId, OpenedFile};
use crate::skipped::Skipped;

/// One GPU library in one file. A file can contain two: libnccl has a runtime linked in.
#[derive(Clone, Debug)]
pub struct Library {
    /// The path shown to people; inside a container, the container's path.
    pub path: PathBuf,
    /// A path that can be opened now: the same, or one below /proc/PID that disappears with the process.
    pub open_path: PathBuf,
    pub id: FileId,
    /// The file that was inspected; `None` for files that were not, such as this program itself.
    pub opened: Option<OpenedFile>,
    pub kind: Api,
    /// DT_SONAME, or `libcudart_static`.
    pub soname: String,
    /// Only for libraries whose signatures depend on it.
    pub cuda_major: Option<u32>,
    pub is_static: bool,
    /// A loader of this API calls it.
    pub is_behind_loader: bool,
    /// Its file system may not answer when the Linux kernel reads the file to attach probes.
    pub may_stall: bool,
    /// Sorted by offset, then by name.
    pub functions: Vec<Symbol>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    pub name: String,
    /// File offset of the entry.
    pub offset: u64,
    /// 0 if the file does not say.
    pub size: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// One per real file and kind.
    pub libraries: Vec<Library>,
    pub skipped: Vec<Skipped>,
    /// Processes that have mapped a library that copies stacks: see [`crate::copies_stacks`].
    pub stack_copiers: Vec<u32>,
    /// The processes that have mapped the files of these libraries. A file that was found by its path alone has no
    /// entry.
    pub users: HashMap<FileId, Users>,
    /// Mapped files, by inode, that could not be read because their file system does not answer.
    pub stalled: HashSet<u64>,
    /// Not all processes could be inspected, so a library without users may be in use.
    pub is_incomplete: bool,
}

/// Processes that have a file mapped, by pid, with their users.
pub type Users = BTreeMap<u32, UserId>;

/// A uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(pub u32);

impl UserId {
    pub const ROOT: Self = Self(0);
    /// The user of a process that exited before it could be inspected. No user has this uid.
    pub const UNKNOWN: Self = Self(u32::MAX);
}

pub(crate) const STATIC_RUNTIME: &str = "libcudart_static";

/// The names of the libraries of each family and of their functions.
pub(crate) trait Names: Sized {
    fn of_name(path: &Path) -> Option<Self>;
    /// Whether the name is that of a library that a loader calls.
    fn is_behind_loader(path: &Path) -> bool;
    fn owns(self, name: &[u8]) -> bool;
}

/// The library family of a function on a stack, and its exported name; the file name if the function is not known. Only
/// functions of the catalogue count outside of the libraries themselves: the runtime may be linked into a program.
pub fn gpu_api_of(module: Option<&str>, function: Option<&str>) -> Option<(Api, String)> {
    let library = module.and_then(|module| Api::of_name(Path::new(module)));
    let library = library.filter(|api| api.is_gpu_library());
    if let Some(function) = function {
        let name = function.as_bytes();
        let is_it = |api: &Api| api.owns(name);
        let owner = library.filter(is_it).or_else(|| {
            let known = |api: &Api| catalogue().lookup(*api, None, function).is_some();
            Api::gpu_libraries().filter(is_it).find(known)
        });
        if let Some(api) = owner {
            return Some((api, function.to_owned()));
        }
    }
    library.zip(module.map(str::to_owned))
}

impl Names for Api {
    /// By file name: `libcuda.so.1`, `libcudart-9df6d2b8.so.12` (auditwheel), but not `libcudadevrt.a` or
    /// `libcudart_static.a`.
    fn of_name(path: &Path) -> Option<Self> {
        let plain = plain_stem(path)?;
        let is_it = |library: &&str| library.as_bytes() == plain;
        Self::ALL.into_iter().find(|api| {
            let row = api.row();
            row.libraries.iter().chain(row.behind_loader).any(is_it)
        })
    }

    fn is_behind_loader(path: &Path) -> bool {
        let is_it = |library: &&str| Some(library.as_bytes()) == plain_stem(path);
        Self::ALL.into_iter().any(|api| api.row().behind_loader.iter().any(is_it))
    }

    /// Whether a symbol is part of this library's API. The capital letter after the prefix distinguishes `cuInit`
    /// from `cudaFree`, and both from `cuda_helper` of a program. The library of a framework has thousands of functions,
    /// so only those of the catalogue count; so do C++ functions of any library.
    fn owns(self, name: &[u8]) -> bool {
        let prefixes = self.row().prefixes;
        if prefixes.is_empty() || name.starts_with(b"_Z") {
            let is_known = |name| catalogue().lookup(self, None, name).is_some();
            return str::from_utf8(name).is_ok_and(is_known);
        }
        let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix.as_bytes()));
        // `cudaMalloc.cold` and similar symbols are parts of functions.
        rest.is_some_and(|rest| {
            rest.first().is_some_and(u8::is_ascii_uppercase)
                && rest.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
        })
    }
}

/// `libcudart-9df6d2b8.so.12` -> `libcudart`: the name without what auditwheel and delocate add to it.
fn plain_stem(path: &Path) -> Option<&[u8]> {
    let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
    let (stem, version) = name.split_at(find(name, b".so")?);
    matches!(version.get(3), None | Some(b'.')).then(|| &stem[..hash_start(stem).unwrap_or(stem.len())])
}

/// `libcudart.so.11.0` -> 11, `libcudart-9df6d2b8.so.12.4.127` -> 12.
pub(crate) fn major_of(name: &[u8]) -> Option<u32> {
    let rest = &name[find(name, b".so.")? + 4..];
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Where `-<hash>` begins: a hyphen and at least six hexadecimal digits, which `-ml` and `-gdb` are not.
fn hash_start(stem: &[u8]) -> Option<usize> {
    let hyphen = stem.iter().rposition(|&b| b == b'-')?;
    let hash = &stem[hyphen + 1..];
    (hash.len() >= 6 && hash.iter().all(u8::is_ascii_hexdigit)).then_some(hyphen)
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_their_file_names() {
        let kind = |name: &str| Api::of_name(&Path::new("/x").join(name));
        for name in ["libcuda.so", "libcuda.so.1", "libcuda.so.550.163.01"] {
            assert_eq!(kind(name), Some(Api::Driver), "{name}");
        }
        for name in
            ["libcudart.so", "libcudart.so.11.0", "libcudart-9df6d2b8.so.12", "libcudart-d0da41ae.so.11.0"]
        {
            assert_eq!(kind(name), Some(Api::Runtime), "{name}");
        }
        assert_eq!(kind("libnvidia-ml.so.1"), Some(Api::Nvml));
        assert_eq!(kind("libnccl.so.2"), Some(Api::Nccl));
        assert_eq!(kind("libc10.so"), Some(Api::Framework));
        assert_eq!(kind("libamdhip64.so.7"), Some(Api::Hip));
        assert_eq!(kind("libc10_cuda.so"), None);
        for name in [
            "libcudart_static.a",
            "libcudadevrt.a",
            "libcublas.so.12",
            "libcudnn.so.9",
            "libcudnn_ops_infer.so.8",
            "libcuda-gdb.so",
            "libcudadebugger.so.1",
            "libcuda.source",
            "libnccl-net.so",
            "cuda",
            "",
        ] {
            assert_eq!(kind(name), None, "{name}");
        }
    }

    #[test]
    fn functions_are_known_by_prefix_and_capital() {
        assert!(Api::Driver.owns(b"cuMemAlloc_v2"));
        assert!(!Api::Driver.owns(b"cudaMalloc"));
        assert!(!Api::Driver.owns(b"cu"));
        assert!(Api::Runtime.owns(b"__cudaRegisterFunction"));
        assert!(!Api::Runtime.owns(b"cuda_helper"));
        assert!(!Api::Runtime.owns(b"cudaMalloc.cold"));
        assert!(Api::Nccl.owns(b"pncclAllReduce"));
        assert!(Api::Hip.owns(b"__hipRegisterFunction") && !Api::Hip.owns(b"hiprtcCompileProgram"));
        let launch = b"_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j";
        assert!(Api::Hip.owns(launch) && !Api::Hip.owns(b"_Z22hipCreateSomething"));
        assert!(Api::Framework.owns(b"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"));
        assert!(!Api::Framework.owns(b"_ZN3c1021memoryProfilingEnabledEv"));
    }

    #[test]
    fn the_major_version_is_in_the_soname() {
        assert_eq!(major_of(b"libcudart.so.11.0"), Some(11));
        assert_eq!(major_of(b"libcudart.so.13"), Some(13));
        assert_eq!(major_of(b"libcudart-9df6d2b8.so.12.4.127"), Some(12));
        assert_eq!(major_of(b"libcudart.so"), None);
        assert_eq!(major_of(b"libcudart.so.99999999999"), None);
    }
}
