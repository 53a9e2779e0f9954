//! The names that each stand-in library exports.

use gpuprobe_event::catalogue::{Api, catalogue};

use crate::options::Cuda;

/// A library that has a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// `libcudart.so.12` or `.13`
    Runtime(Cuda),
    /// `libcuda.so.1`
    Driver,
    /// `libnvidia-ml.so.1`
    Nvml,
    /// `libnccl.so.2`
    Nccl,
    /// `libc10.so`
    C10,
    /// `libamdhip64.so.7` with the exports of HIP 7.1
    Hip,
}

impl Library {
    /// The file name, which is also the SONAME.
    pub fn soname(self) -> &'static str {
        match self {
            Self::Runtime(Cuda::Cuda12) => "libcudart.so.12",
            Self::Runtime(Cuda::Cuda13) => "libcudart.so.13",
            Self::Driver => "libcuda.so.1",
            Self::Nvml => "libnvidia-ml.so.1",
            Self::Nccl => "libnccl.so.2",
            Self::C10 => "libc10.so",
            Self::Hip => "libamdhip64.so.7",
        }
    }

    /// Whether its symbols have a version, which equals the SONAME.
    pub fn versioned(self) -> bool {
        matches!(self, Self::Runtime(_))
    }
}

/// The exported functions of one library, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportList {
    /// The library that exports them.
    pub library: Library,
    /// Function names, sorted and unique.
    pub names: Vec<&'static str>,
}

impl ExportList {
    /// The export list of a library, from the catalogue.
    pub fn of(library: Library) -> Self {
        let names_of = |api, version| catalogue().exports(api, version).map(|f| f.name).collect();
        let mut names: Vec<&'static str> = match library {
            Library::Runtime(cuda) => names_of(Api::Runtime, cuda.version()),
            Library::Driver => names_of(Api::Driver, "13.4"),
            Library::Nvml => names_of(Api::Nvml, "13.4"),
            Library::Hip => names_of(Api::Hip, "7.1"),
            Library::C10 => names_of(Api::Framework, "13.4"),
            // NCCL has its own version numbers, and the catalogue has one version
            Library::Nccl => {
                catalogue().functions().iter().filter(|f| f.api == Api::Nccl).map(|f| f.name).collect()
            }
        };
        names.sort_unstable();
        names.dedup();
        Self { library, names }
    }

    /// Whether the library exports this name.
    pub fn contains(&self, name: &str) -> bool {
        self.names.binary_search(&name).is_ok()
    }
}
