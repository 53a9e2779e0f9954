"""The packages and their headers. A new CUDA version is a new row here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """One wheel. `keep` are the members to unpack, as suffix patterns below `include/` or `lib/`."""

    name: str
    version: str
    keep: tuple[str, ...]

    # A package of Debian, not a wheel.
    debian: bool = False

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


@dataclass(frozen=True)
class Hip:
    """One HIP version: its short name in the tables, and the package with its headers."""

    short: str
    headers: Package
    # The package with its library. Without one, the exports are those of the table of functions in hip_api_trace.hpp.
    library: Package | None = None


@dataclass(frozen=True)
class LevelZero:
    """One version of Level Zero: its short name in the tables, and the package with its headers."""

    short: str
    headers: Package


@dataclass(frozen=True)
class Cuda:
    """One CUDA version: its short name in the tables, and its packages."""

    short: str
    runtime: Package
    compiler: Package
    profiler: Package
    nvml: Package


HEADERS = ("include/*.h", "include/*.hpp")
LIBRARY = ("lib/libcudart.so.*",)


def _cuda(short: str, suffix: str, compiler: str, runtime: str, crt: str, profiler: str, nvml: str) -> Cuda:
    return Cuda(
        short,
        Package(f"nvidia-cuda-runtime{suffix}", runtime, HEADERS + LIBRARY),
        Package(f"{compiler}{suffix}", crt, ("include/crt/*",)),
        Package(f"nvidia-cuda-profiler-api{suffix}", profiler, HEADERS),
        Package(f"nvidia-nvml-dev{suffix}", nvml, HEADERS),
    )


# The crt/ headers, which cuda_runtime_api.h includes, were part of the compiler's package until CUDA 13.
NVCC, CRT = "nvidia-cuda-nvcc", "nvidia-cuda-crt"

# Oldest first: the order defines version ranges and whose spelling is used.
CUDA = (
    _cuda("11.8", "-cu11", NVCC, runtime="11.8.89", crt="11.8.89", profiler="11.8.86", nvml="11.8.86"),
    _cuda("12.0", "-cu12", NVCC, runtime="12.0.146", crt="12.0.140", profiler="12.0.140", nvml="12.0.140"),
    _cuda("12.4", "-cu12", NVCC, runtime="12.4.127", crt="12.4.131", profiler="12.4.127", nvml="12.4.127"),
    _cuda("12.8", "-cu12", NVCC, runtime="12.8.90", crt="12.8.93", profiler="12.8.90", nvml="12.8.90"),
    _cuda("12.9", "-cu12", NVCC, runtime="12.9.79", crt="12.9.86", profiler="12.9.79", nvml="12.9.79"),
    _cuda("13.0", "", CRT, runtime="13.0.96", crt="13.0.88", profiler="13.0.85", nvml="13.0.87"),
    _cuda("13.4", "", CRT, runtime="13.4.92", crt="13.4.92", profiler="13.4.92", nvml="13.4.92"),
)

# nccl.h includes cuda_runtime.h, so it is read on top of the CUDA version it was built for.
NCCL_SHORT = "2.32"
NCCL = Package("nvidia-nccl-cu12", "2.32.3", ("include/nccl.h",))
NCCL_CUDA = "12.9"

# HIP's headers come from Debian, and from wheels of Triton, which contain them for AMD GPUs. Oldest first.
HIP_HEADERS_KEPT = ("include/hip/*",)
HIP = (
    Hip(
        "5.2",
        Package("libamdhip64-dev", "5.2.3-8", HIP_HEADERS_KEPT, debian=True),
        Package("libamdhip64-5", "5.2.3-8", ("lib/*/libamdhip64.so.*.*",), debian=True),
    ),
    Hip("6.1", Package("triton", "3.1.0", HIP_HEADERS_KEPT)),
    Hip("6.2", Package("triton", "3.3.1", HIP_HEADERS_KEPT)),
    Hip("7.1", Package("triton", "3.8.0", HIP_HEADERS_KEPT)),
)
HIP_MACROS = ("__HIP_PLATFORM_AMD__",)
# Those that a version does not have are left out.
HIP_HEADERS = (
    "hip/hip_runtime_api.h",
    "hip/hip_deprecated.h",
    "hip/amd_detail/amd_hip_gl_interop.h",
    "hip/amd_detail/amd_hip_runtime_pt_api.h",
)
# The table through which the library calls each of its functions: for names that no other header declares.
HIP_DISPATCH = "hip/amd_detail/hip_api_trace.hpp"
# Structs that only the table of functions mentions.
HIP_OPAQUE = ("hipDeviceProp_tR0000", "hipArrayMemoryRequirements")
# hip_ext.h declares these as C++ functions until HIP 5, which exports them by these names.
HIP_CPLUSPLUS = {
    "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j": (
        "hipExtModuleLaunchKernel"
    ),
    "_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_": (
        "hipHccModuleLaunchKernel"
    ),
    "_Z22hipCreateSurfaceObjectPP13__hip_surfacePK15hipResourceDesc": "hipCreateSurfaceObject",
    "_Z23hipDestroySurfaceObjectP13__hip_surface": "hipDestroySurfaceObject",
}

# The same function describes a copy with a struct of other members in this version.
HIP_OTHER_STRUCTS = {"5.2": {"HIP_MEMCPY3D": "HIP_MEMCPY3D_5"}}
HIP_STRUCTS = (
    "hipExtent",
    "hipPitchedPtr",
    "hipMemLocation",
    "hipLaunchConfig_t",
    "HIP_LAUNCH_CONFIG",
    "hipLaunchParams",
    "hipFunctionLaunchParams",
    "hipMemcpy3DParms",
    "hipMemcpy3DPeerParms",
    "hip_Memcpy2D",
    "HIP_MEMCPY3D",
    "hipMemAllocationProp",
    "HIP_ARRAY_DESCRIPTOR",
    "HIP_ARRAY3D_DESCRIPTOR",
    "hipChannelFormatDesc",
)

# cudaVDPAU.h does not include vdpau.h itself.
DRIVER_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "vdpau/vdpau.h", "cudaVDPAU.h", "cudaProfiler.h")
RUNTIME_HEADERS = (
    "cuda_runtime_api.h",
    "cuda_gl_interop.h",
    "cuda_egl_interop.h",
    "cuda_vdpau_interop.h",
    "cuda_profiler_api.h",
)
# The calls that nvcc generates in programs (`__cuda...`). host_runtime.h declares them when it is included again;
# device_functions.h declares them only for nvcc, which it recognizes by a macro.
REGISTER_HEADERS = ("cuda_runtime_api.h", "crt/host_runtime.h", "crt/host_runtime.h")
LAUNCH_HEADERS = ("cuda_runtime_api.h", "crt/device_functions.h")
LAUNCH_MACROS = ("__CUDACC__",)

# Each set of macros selects other names of the same header: the plain ones, those of per-thread default streams,
# and every name that a library has to export, including outdated ones. The first is the default view of programs.
CUDA_VIEWS = ((), ("CUDA_API_PER_THREAD_DEFAULT_STREAM",), ("__CUDA_API_VERSION_INTERNAL",))
NVML_VIEWS = ((), ("NVML_NO_UNVERSIONED_FUNC_DEFS",))

# Exported by libcuda, which is in no package, and declared in no public header.
DRIVER_WITHOUT_PROTOTYPE = ("cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2")

# Names for unnamed arguments of the headers; roles.tbl refers to them.
ARGUMENT_NAMES = {"__cudaGetKernel": ("kernel", "entryFuncAddr")}

# Replacements for headers of other projects. The interop headers use a few types of graphics headers, of which only the
# width matters; cuda_fp16.h, which nccl.h includes, needs nv/target only for device code.
STAND_INS = {
    "GL/gl.h": "typedef unsigned int GLenum; typedef unsigned int GLuint;",
    "EGL/egl.h": "typedef int EGLint;",
    "EGL/eglext.h": "typedef void *EGLImageKHR; typedef void *EGLStreamKHR; typedef void *EGLSyncKHR;",
    "vdpau/vdpau.h": "#include <stdint.h>\n"
    "typedef uint32_t VdpDevice; typedef uint32_t VdpOutputSurface; typedef uint32_t VdpVideoSurface;"
    " typedef int VdpGetProcAddress(VdpDevice, uint32_t, void **);",
    "nv/target": "",
}

# Structs whose fields the decoder reads, in the order of the table.
STRUCTS = (
    "dim3",
    "cudaExtent",
    "cudaPitchedPtr",
    "cudaMemLocation",
    "CUmemLocation",
    "cudaLaunchConfig_t",
    "CUlaunchConfig",
    "cudaMemcpy3DParms",
    "CUDA_MEMCPY2D",
    "CUDA_MEMCPY3D",
    "CUmemAllocationProp",
    "CUDA_ARRAY_DESCRIPTOR",
    "CUDA_ARRAY3D_DESCRIPTOR",
    "cudaChannelFormatDesc",
)

# OpenCL: the Debian package with its headers, and the versions that they can be asked for.
OPENCL_PACKAGE = ("opencl-c-headers", "3.0~2023.02.06-1")
OPENCL_VERSIONS = ("1.0", "1.1", "1.2", "2.0", "2.1", "2.2", "3.0")
OPENCL_HEADERS = ("CL/cl.h", "CL/cl_gl.h")
# Their functions belong to no version.
OPENCL_EXTENSIONS = ("CL/cl_egl.h", "CL/cl_ext.h")
OPENCL_STRUCTS = ("cl_image_desc",)
# Errors of extensions, which the headers list among other constants.
OPENCL_ERRORS = {
    -1000: "CL_INVALID_GL_SHAREGROUP_REFERENCE_KHR",
    -1001: "CL_PLATFORM_NOT_FOUND_KHR",
    -1057: "CL_DEVICE_PARTITION_FAILED_EXT",
    -1058: "CL_INVALID_PARTITION_COUNT_EXT",
    -1059: "CL_INVALID_PARTITION_NAME_EXT",
    -1092: "CL_EGL_RESOURCE_NOT_ACQUIRED_KHR",
    -1093: "CL_INVALID_EGL_OBJECT_KHR",
}

LEVEL_ZERO = (LevelZero("1.8", Package("libze-dev", "1.8.12-1", ("include/level_zero/*.h",), debian=True)),)
LEVEL_ZERO_HEADERS = ("level_zero/ze_api.h",)
LEVEL_ZERO_STRUCTS = ("ze_group_count_t", "ze_kernel_desc_t", "ze_copy_region_t")
