//! Build options.

/// The first instructions of every export, on x86-64 and on aarch64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prologue {
    /// `push %rbp; mov %rsp,%rbp`; on aarch64 `stp x29,x30,[sp,-16]!; mov x29,sp`
    #[default]
    Push,
    /// `endbr64`, then as `Push`; on aarch64 `paciasp`, which signs the return address
    EndbrPush,
    /// `cmpl $imm,x(%rip); je`, as in drivers 535 and 550; on aarch64 `bti c; cbz`
    CmpJe,
    /// `mov`, then a change of the stack pointer: no cheap probe point
    Mov,
    /// `sub $8,%rsp`, then a push
    SubThenPush,
    /// A nop of five bytes; on aarch64 `nop`
    Nop,
    /// A nop that a later branch jumps back to: it runs three times per call
    LoopBack,
}

impl Prologue {
    /// Every prologue.
    pub const ALL: [Self; 7] =
        [Self::Push, Self::EndbrPush, Self::CmpJe, Self::Mov, Self::SubThenPush, Self::Nop, Self::LoopBack];

    /// The prologues that `gpuprobe bench` compares.
    pub const BENCHED: [Self; 5] = [Self::Push, Self::CmpJe, Self::EndbrPush, Self::Nop, Self::Mov];

    /// The suffix of the macro `PROLOGUE_...` in `stubs.h`.
    pub(crate) fn define(self) -> &'static str {
        match self {
            Self::Push => "PUSH",
            Self::EndbrPush => "ENDBR_PUSH",
            Self::CmpJe => "CMP_JE",
            Self::Mov => "MOV",
            Self::SubThenPush => "SUB_THEN_PUSH",
            Self::Nop => "NOP",
            Self::LoopBack => "LOOP_BACK",
        }
    }

    /// The first bytes of every export on x86-64, up to the first byte that depends on an address.
    pub fn first_bytes(self) -> &'static [u8] {
        match self {
            Self::Push => &[0x55, 0x48, 0x89, 0xe5, 0x5d],
            Self::EndbrPush => &[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5],
            Self::CmpJe => &[0x81, 0x3d],
            Self::Mov => &[0x49, 0x89, 0xfb, 0x48, 0x8d, 0x64, 0x24, 0xf8],
            Self::SubThenPush => &[0x48, 0x83, 0xec, 0x08, 0x53],
            Self::Nop => &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            Self::LoopBack => &[0xb8, 0x03, 0x00, 0x00, 0x00, 0x90],
        }
    }
}

/// The CUDA version of the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cuda {
    /// `libcudart.so.12` with the exports of 12.9
    #[default]
    Cuda12,
    /// `libcudart.so.13` with the exports of 13.4
    Cuda13,
}

impl Cuda {
    /// The major version.
    pub fn major(self) -> u32 {
        match self {
            Self::Cuda12 => 12,
            Self::Cuda13 => 13,
        }
    }

    /// The catalogue version of the export list.
    pub fn version(self) -> &'static str {
        match self {
            Self::Cuda12 => "12.9",
            Self::Cuda13 => "13.4",
        }
    }

    /// File name and SONAME of the runtime in a Python wheel: with a hash, as auditwheel names it.
    pub fn renamed_runtime(self) -> String {
        format!("libcudart-5ca1ab1e.so.{}", self.version())
    }

    /// File name and SONAME of CUPTI.
    pub fn cupti(self) -> String {
        format!("libcupti.so.{}", self.major())
    }

    /// The result of `cudaRuntimeGetVersion`.
    pub(crate) fn runtime_version(self) -> u32 {
        match self {
            Self::Cuda12 => 12090,
            Self::Cuda13 => 13040,
        }
    }
}

/// The libraries and workloads to build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Parts {
    /// All libraries and workloads.
    #[default]
    All,
    /// `libcuda`, `libcudart` and the workload `ledger`.
    Ledger,
    /// What gpuprobe embeds: `libcuda`, `libcudart` and the workload `demo`; `libbench.*.so`, one for each
    /// benchmarked prologue, and the workload `bench`.
    Demo,
    /// `libamdhip64`, and the workloads `ledger`, `torture` and `launches` as programs of HIP; `libcuda`, on which HIP
    /// runs if `STANDIN_HIP_ON_CUDA` is set.
    Hip,
}

/// Build options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BuildOptions {
    /// The first instructions of exports.
    pub prologue: Prologue,
    /// The CUDA version of the runtime.
    pub cuda: Cuda,
    /// The libraries and workloads.
    pub parts: Parts,
}

impl BuildOptions {
    /// All libraries and workloads, with this prologue and runtime.
    pub fn new(prologue: Prologue, cuda: Cuda) -> Self {
        Self { prologue, cuda, parts: Parts::All }
    }

    /// HIP with this prologue.
    pub fn hip(prologue: Prologue) -> Self {
        Self { prologue, parts: Parts::Hip, ..Self::default() }
    }

    /// What gpuprobe embeds for `demo` and `bench`; takes about two seconds to build.
    pub fn demo() -> Self {
        Self { parts: Parts::Demo, ..Self::default() }
    }
}
