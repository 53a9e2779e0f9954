//! The APIs: one row for each, with everything that the rest of the program needs to know about it. A new API is a new
//! variant and a new row; those of a new vendor also have the tables of [`Vendor`].

use std::fmt;

use serde::{Deserialize, Serialize};

use super::vendor::{CUDA, HIP, LEVEL_ZERO, OPENCL, OTHER, Vendor};
use super::{Class, EnumTable};

/// The library families whose functions are in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// libcuda.so.1
    Driver,
    /// libcudart, shared or static
    Runtime,
    /// libnvidia-ml.so.1
    Nvml,
    /// libnccl.so.2
    Nccl,
    /// The Linux kernel: system calls on the NVIDIA devices, and functions of the kernel modules.
    Kernel,
    /// Any library: functions that the user has hooked.
    Hook,
    /// Libraries of frameworks that have their own memory allocators: libc10 of PyTorch.
    Framework,
    /// libamdhip64
    Hip,
    /// libOpenCL, the loader of the vendors' OpenCL libraries
    OpenCl,
    /// libze_loader, the loader of the vendors' libraries of Level Zero
    LevelZero,
}

/// Where an API is in the stack of those that lead to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It does the work: its functions are where memory, copies, launches and waits are counted.
    Work,
    /// Its functions call this API for their work, which is counted there. Only what is wanted by the name that the
    /// program called (calls, failures, launches) is counted here.
    Above(Api),
    /// A GPU library whose functions neither allocate nor copy, or do it through one of the others.
    Beside,
    /// Not a GPU library.
    Outside,
}

/// How the handle of a launch leads to the name of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelHandles {
    /// Calls name them, and besides they point to objects of the library that contain a pointer to the name.
    Objects,
    /// Calls name them, and the API below is called with handles of objects that may have the name.
    AboveObjects,
    /// Only calls name them.
    Named,
}

/// One API.
#[derive(Debug)]
pub struct ApiRow {
    pub api: Api,
    /// The word in traces and metrics.
    pub word: &'static str,
    /// The name of the library, for people.
    pub title: &'static str,
    pub vendor: &'static Vendor,
    pub position: Position,
    /// The names of its files up to `.so`.
    pub libraries: &'static [&'static str],
    /// Libraries that implement it behind a loader with one of these names. Programs may also call them directly.
    pub behind_loader: &'static [&'static str],
    /// What the names of its functions begin with; a capital letter follows. Without any, only functions of the
    /// catalogue are its own.
    pub prefixes: &'static [&'static str],
    /// A real library exports at least one of these; if there are none, one that it owns.
    pub proofs: &'static [&'static str],
    /// Some of its functions have different signatures in different major versions of the library.
    pub has_majors: bool,
    /// The enum with the names of its statuses. Errors of an API without one carry their names.
    pub statuses: Option<&'static str>,
    /// Statuses besides 0 that are answers, not failures: "not ready yet".
    pub answers: &'static [i64],
    /// A call may fail although its result is no status: it writes its status through an argument, or that of an ioctl
    /// is in its struct.
    pub has_separate_errors: bool,
    pub kernels: KernelHandles,
    /// The class of functions that have no row in a table of roles.
    pub class: Class,
    /// Base names of the functions that are probed if each probe is expensive: allocations, copies, launches and waits.
    pub essential: &'static [&'static str],
    /// Its functions.
    pub functions: &'static str,
}

/// A row for functions that no library of its own exports.
const PLAIN: ApiRow = ApiRow {
    api: Api::Hook,
    word: "hook",
    title: "hooked functions",
    vendor: &OTHER,
    position: Position::Outside,
    libraries: &[],
    behind_loader: &[],
    prefixes: &[],
    proofs: &[],
    has_majors: false,
    statuses: None,
    answers: &[600],
    has_separate_errors: false,
    kernels: KernelHandles::Named,
    class: Class::Other,
    essential: &[],
    functions: "",
};

/// Every API, in the order of its variants.
static ROWS: [ApiRow; Api::ALL.len()] = [
    ApiRow {
        api: Api::Driver,
        word: "driver",
        title: "the CUDA driver",
        vendor: &CUDA,
        position: Position::Work,
        libraries: &["libcuda"],
        prefixes: &["cu"],
        proofs: &["cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuMemAlloc_v2", "cuLaunchKernel"],
        statuses: Some("CUresult"),
        kernels: KernelHandles::Objects,
        essential: &ESSENTIAL_CUDA,
        functions: include_str!("../../catalogue/driver.tbl"),
        ..PLAIN
    },
    ApiRow {
        api: Api::Runtime,
        word: "runtime",
        title: "the CUDA runtime",
        vendor: &CUDA,
        position: Position::Above(Api::Driver),
        libraries: &["libcudart"],
        prefixes: &["cuda", "__cuda"],
        proofs: &[
            "cudaMalloc",
            "cudaFree",
            "cudaLaunchKernel",
            "cudaGetDeviceCount",
            "cudaRuntimeGetVersion",
        ],
        has_majors: true,
        statuses: Some("cudaError_t"),
        kernels: KernelHandles::AboveObjects,
        functions: include_str!("../../catalogue/runtime.tbl"),
        ..PLAIN
    },
    ApiRow {
        api: Api::Nvml,
        word: "nvml",
        title: "NVML",
        vendor: &CUDA,
        position: Position::Beside,
        libraries: &["libnvidia-ml"],
        prefixes: &["nvml"],
        proofs: &["nvmlInit", "nvmlInit_v2", "nvmlShutdown"],
        statuses: Some("nvmlReturn_t"),
        class: Class::Nvml,
        functions: include_str!("../../catalogue/nvml.tbl"),
        ..PLAIN
    },
    ApiRow {
        api: Api::Nccl,
        word: "nccl",
        title: "NCCL",
        vendor: &CUDA,
        position: Position::Beside,
        libraries: &["libnccl"],
        prefixes: &["nccl", "pnccl"],
        proofs: &["ncclGetVersion", "ncclCommInitRank", "ncclAllReduce"],
        statuses: Some("ncclResult_t"),
        functions: include_str!("../../catalogue/nccl.tbl"),
        ..PLAIN
    },
    ApiRow {
        api: Api::Kernel,
        word: "kernel",
        title: "the Linux kernel",
        has_separate_errors: true,
        class: Class::Driver,
        functions: include_str!("../../catalogue/kernel.tbl"),
        ..PLAIN
    },
    ApiRow { has_separate_errors: true, ..PLAIN },
    ApiRow {
        api: Api::Framework,
        word: "framework",
        title: "frameworks",
        libraries: &["libc10"],
        functions: include_str!("../../catalogue/framework.tbl"),
        ..PLAIN
    },
    ApiRow {
        api: Api::Hip,
        word: "hip",
        title: "HIP",
        vendor: &HIP,
        position: Position::Work,
        libraries: &["libamdhip64"],
        prefixes: &["hip", "__hip"],
        proofs: &[
            "hipMalloc",
            "hipFree",
            "hipGetDeviceCount",
            "hipRuntimeGetVersion",
            "hipModuleLaunchKernel",
        ],
        has_majors: true,
        statuses: Some("hipError_t"),
        essential: &ESSENTIAL_HIP,
        functions: include_str!("../../catalogue/hip/functions.tbl"),
        ..PLAIN
    },
    ApiRow {
        api: Api::OpenCl,
        word: "opencl",
        title: "OpenCL",
        vendor: &OPENCL,
        position: Position::Work,
        libraries: &["libOpenCL"],
        behind_loader: &[
            "libMesaOpenCL",
            "libRusticlOpenCL",
            "libamdocl64",
            "libigdrcl",
            "libintelocl",
            "libmali",
            "libnvidia-opencl",
            "libpocl",
        ],
        prefixes: &["cl"],
        proofs: &["clGetPlatformIDs", "clCreateContext", "clCreateBuffer", "clEnqueueNDRangeKernel"],
        statuses: Some("cl_int"),
        has_separate_errors: true,
        essential: &ESSENTIAL_OPENCL,
        functions: include_str!("../../catalogue/opencl/functions.tbl"),
        ..PLAIN
    },
    ApiRow {
        api: Api::LevelZero,
        word: "levelzero",
        title: "Level Zero",
        vendor: &LEVEL_ZERO,
        position: Position::Work,
        libraries: &["libze_loader"],
        prefixes: &["ze"],
        proofs: &["zeInit", "zeDriverGet", "zeContextCreate", "zeMemAllocDevice", "zeKernelCreate"],
        statuses: Some("ze_result_t"),
        answers: &[1],
        essential: &ESSENTIAL_LEVEL_ZERO,
        functions: include_str!("../../catalogue/level_zero/functions.tbl"),
        ..PLAIN
    },
];

/// The functions of the CUDA driver, which every library calls: about sixty probes.
const ESSENTIAL_CUDA: [&str; 22] = [
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemAllocHost",
    "cuMemAllocAsync",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemFreeAsync",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuGraphLaunch",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
];

const ESSENTIAL_LEVEL_ZERO: [&str; 13] = [
    "zeCommandListAppendLaunchCooperativeKernel",
    "zeCommandListAppendLaunchKernel",
    "zeCommandListAppendMemoryCopy",
    "zeCommandListAppendMemoryFill",
    "zeCommandQueueExecuteCommandLists",
    "zeCommandQueueSynchronize",
    "zeEventHostSynchronize",
    "zeFenceHostSynchronize",
    "zeKernelCreate",
    "zeMemAllocDevice",
    "zeMemAllocHost",
    "zeMemAllocShared",
    "zeMemFree",
];

const ESSENTIAL_OPENCL: [&str; 20] = [
    "clBuildProgram",
    "clCreateBuffer",
    "clCreateBufferWithProperties",
    "clCreateImage",
    "clCreateKernel",
    "clEnqueueCopyBuffer",
    "clEnqueueFillBuffer",
    "clEnqueueNDRangeKernel",
    "clEnqueueReadBuffer",
    "clEnqueueReadBufferRect",
    "clEnqueueReadImage",
    "clEnqueueSVMMemcpy",
    "clEnqueueWriteBuffer",
    "clEnqueueWriteBufferRect",
    "clEnqueueWriteImage",
    "clFinish",
    "clReleaseMemObject",
    "clSVMAlloc",
    "clSVMFree",
    "clWaitForEvents",
];

/// The functions of HIP, of which libraries above it use most.
const ESSENTIAL_HIP: [&str; 29] = [
    "hipMalloc",
    "hipExtMallocWithFlags",
    "hipMallocPitch",
    "hipMallocManaged",
    "hipHostMalloc",
    "hipMallocHost",
    "hipMallocAsync",
    "hipFree",
    "hipHostFree",
    "hipFreeHost",
    "hipFreeAsync",
    "hipMemCreate",
    "hipMemRelease",
    "hipMemcpy",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
    "hipMemcpyHtoD",
    "hipMemcpyDtoH",
    "hipMemcpyHtoDAsync",
    "hipMemcpyDtoHAsync",
    "hipMemcpyDtoDAsync",
    "hipLaunchKernel",
    "hipExtLaunchKernel",
    "hipModuleLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipGraphLaunch",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipEventSynchronize",
];

impl Api {
    pub const ALL: [Self; 10] = [
        Self::Driver,
        Self::Runtime,
        Self::Nvml,
        Self::Nccl,
        Self::Kernel,
        Self::Hook,
        Self::Framework,
        Self::Hip,
        Self::OpenCl,
        Self::LevelZero,
    ];

    /// Everything known about it.
    pub fn row(self) -> &'static ApiRow {
        &ROWS[self as usize]
    }

    /// The word in traces and metrics.
    pub fn as_str(self) -> &'static str {
        self.row().word
    }

    /// The inverse of [`Api::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.as_str() == name)
    }

    /// Whether it does the work itself: see [`Position::Work`].
    pub fn does_work(self) -> bool {
        self.row().position == Position::Work
    }

    /// Whether its functions call another API for their work.
    pub fn is_above(self) -> bool {
        matches!(self.row().position, Position::Above(_))
    }

    /// Whether another API calls it for its work.
    pub fn is_below(self) -> bool {
        Self::ALL.into_iter().any(|api| api.row().position == Position::Above(self))
    }

    /// Whether its functions launch kernels, by themselves or through the API below.
    pub fn launches(self) -> bool {
        self.does_work() || self.is_above()
    }

    /// Whether it is a library for GPUs.
    pub fn is_gpu_library(self) -> bool {
        self.row().position != Position::Outside
    }

    /// The GPU libraries.
    pub fn gpu_libraries() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|api| api.is_gpu_library())
    }

    /// Whether a status is a failure.
    pub fn is_failure(self, status: i64) -> bool {
        status != 0 && !self.row().answers.contains(&status)
    }

    /// Whether a call with this status may have an error.
    pub fn may_have_failed(self, status: Option<i64>) -> bool {
        status.is_some_and(|status| self.is_failure(status)) || self.row().has_separate_errors
    }

    /// The names of its statuses, if it has any.
    pub fn statuses(self) -> Option<&'static EnumTable> {
        self.row().statuses.and_then(|name| super::catalogue().enum_table(name))
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_variants() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!((row.api as usize, Api::ALL[at]), (at, row.api));
            assert_eq!(Api::from_name(row.word), Some(row.api));
            let word = serde_json::to_value(row.api).unwrap();
            assert_eq!(word.as_str(), Some(row.word), "the word in JSON");
        }
    }

    #[test]
    fn the_positions_fit_together() {
        assert_eq!(Api::ALL.into_iter().filter(|api| api.is_above()).count(), 1);
        assert!(Api::Driver.is_below() && Api::Driver.does_work());
        for row in &ROWS {
            for name in row.essential {
                let is_it = |f: &&super::super::Function| (f.api, f.base) == (row.api, *name);
                assert!(super::super::catalogue().functions().iter().any(|f| is_it(&f)), "{name}");
            }
            if let Position::Above(below) = row.position {
                assert!(below.does_work(), "{}", row.word);
            }
            if row.api.is_gpu_library() {
                assert!(!row.libraries.is_empty() && !row.prefixes.is_empty(), "{}", row.word);
            }
        }
    }
}
