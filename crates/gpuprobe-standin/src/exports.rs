//! Which names each stand-in library exports.

use gpuprobe_event::catalogue::{Api, catalogue};

use crate::options::Cuda;

/// The libraries there are stand-ins of.
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
}

impl Library {
    /// Its file name, which is its SONAME.
    pub fn soname(self) -> &'static str {
        match self {
            Self::Runtime(Cuda::Cuda12) => "libcudart.so.12",
            Self::Runtime(Cuda::Cuda13) => "libcudart.so.13",
            Self::Driver => "libcuda.so.1",
            Self::Nvml => "libnvidia-ml.so.1",
            Self::Nccl => "libnccl.so.2",
        }
    }

    /// Whether its symbols carry a version, equal to the SONAME.
    pub fn versioned(self) -> bool {
        matches!(self, Self::Runtime(_))
    }
}

/// The exported functions of one library, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportList {
    /// Whose they are.
    pub library: Library,
    /// Their names.
    pub names: Vec<&'static str>,
}

impl ExportList {
    /// The names that the catalogue has for a library.
    pub fn of(library: Library) -> Self {
        let of_version = |api, version| catalogue().exports(api, version).map(|f| f.name).collect();
        let mut names: Vec<&'static str> = match library {
            Library::Runtime(cuda) => of_version(Api::Runtime, cuda.version()),
            Library::Driver => of_version(Api::Driver, "13.4"),
            Library::Nvml => of_version(Api::Nvml, "13.4"),
            // NCCL has versions of its own, of which the catalogue knows one
            Library::Nccl => {
                catalogue().functions().iter().filter(|f| f.api == Api::Nccl).map(|f| f.name).collect()
            }
        };
        names.sort_unstable();
        names.dedup();
        Self { library, names }
    }

    /// Whether a name is exported.
    pub fn contains(&self, name: &str) -> bool {
        self.names.binary_search(&name).is_ok()
    }
}
