//! The layers of CUDA whose functions are probed.

use clap::ValueEnum;
use gpuprobe_event::Api;

/// A program may call the CUDA runtime, which calls the CUDA driver, or the CUDA driver itself, as some libraries do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layer {
    /// The CUDA driver (libcuda): everything that reaches the GPU, with one pair of probes per operation. Not seen:
    /// which function of the runtime was called, and calls of it that fail before they reach the CUDA driver
    Driver,
    /// The CUDA runtime (libcudart): what the program itself calls. Not seen: what libraries such as cuBLAS launch
    /// through the CUDA driver
    Runtime,
    /// Both
    #[default]
    Both,
}

impl Layer {
    /// Whether functions of an API belong to it. Those of other libraries than CUDA always do.
    pub(crate) fn has(self, api: Api) -> bool {
        match self {
            Self::Driver => !api.is_above(),
            Self::Runtime => !api.is_below(),
            Self::Both => true,
        }
    }
}
