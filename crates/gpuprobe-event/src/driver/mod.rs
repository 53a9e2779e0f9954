//! The interface of NVIDIA's kernel modules: the ioctl commands of the device files by name, their arguments, and XID
//! errors.
//!
//! The tables in `driver/` are compiled in as text and parsed at their first use. Names and numbers are generated
//! from the public headers of the open kernel modules by `tools/driver`, with the releases that each applies to;
//! `structs.tbl` and `xid_meanings.tbl` are maintained by hand. CUDA also uses commands that are in no public header:
//! they are shown as numbers, and `is_known` is false for them.

mod argument;
mod functions;
mod names;
mod version;
mod xid;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

pub use argument::Ioctl;
pub use functions::{function_class, function_row, is_noisy, is_system_call, tracepoint_row};
pub use names::status_name;
pub use version::Version;
pub use xid::{Xid, xid};

use names::{Names, class_names, control_names, escape_names, uvm_names};

/// The kind of an NVIDIA device file. Its number is the one that BPF uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DeviceKind {
    /// `/dev/nvidiactl`
    Control,
    /// `/dev/nvidia0` and so on
    Gpu,
    /// `/dev/nvidia-uvm` and `/dev/nvidia-uvm-tools`
    Uvm,
    /// `/dev/nvidia-modeset`
    Modeset,
    /// `/dev/nvidia-caps/*`
    Caps,
    /// `/dev/nvidia-nvswitch*`
    Nvswitch,
    /// Any other, or a number that this version does not know.
    Other,
}

impl DeviceKind {
    /// All of them, by their numbers.
    pub const ALL: [Self; 7] =
        [Self::Control, Self::Gpu, Self::Uvm, Self::Modeset, Self::Caps, Self::Nvswitch, Self::Other];

    /// The word in traces and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Control => "nvidiactl",
            Self::Gpu => "nvidia",
            Self::Uvm => "nvidia-uvm",
            Self::Modeset => "nvidia-modeset",
            Self::Caps => "nvidia-caps",
            Self::Nvswitch => "nvidia-nvswitch",
            Self::Other => "other",
        }
    }

    /// The inverse of [`DeviceKind::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The number that BPF uses.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The inverse of [`DeviceKind::number`].
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Other)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The key under which commands are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandCode {
    pub device: DeviceKind,
    pub request: u32,
    /// The control command, or the class of the allocated object. 0 for other commands, and if it could not be read.
    pub detail: u32,
}

/// The name of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandName {
    /// `NV_ESC_RM_FREE`, `NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_INFO_V2)`, `UVM_FREE`; numbers for unknown parts.
    pub text: Cow<'static, str>,
    /// Whether all parts have names.
    pub is_known: bool,
}

impl CommandName {
    fn known(text: impl Into<Cow<'static, str>>) -> Self {
        Self { text: text.into(), is_known: true }
    }

    fn unknown(text: String) -> Self {
        Self { text: Cow::Owned(text), is_known: false }
    }
}

/// The type of the requests of `nvidiactl` and `nvidia0`.
const RM_TYPE: u32 = b'F' as u32;
const RM_CONTROL: u32 = 0x2a;
const RM_ALLOC: u32 = 0x2b;

/// The name of a command in one release of the kernel modules.
pub fn command_name(version: Version, code: CommandCode) -> CommandName {
    let Some(command) = Command::of(code.device, code.request) else {
        return CommandName::unknown(format!("{:#x}", code.request));
    };
    let Some(name) = command.names().get(command.number(), version) else {
        return CommandName::unknown(format!("{:#x}", code.request));
    };
    // 0 is a detail that could not be read
    match command.details().filter(|_| code.detail != 0) {
        None => CommandName::known(name),
        Some(details) => match details.get(code.detail, version) {
            Some(detail) => CommandName::known(format!("{name}({detail})")),
            None => CommandName::unknown(format!("{name}({:#x})", code.detail)),
        },
    }
}

/// A command, by the table that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Command {
    /// A command of the resource manager (RM), or of its kernel interface.
    Escape(u32),
    /// A command of unified memory (UVM).
    Uvm(u32),
}

impl Command {
    fn of(device: DeviceKind, request: u32) -> Option<Self> {
        match device {
            DeviceKind::Control | DeviceKind::Gpu => {
                ((request >> 8) & 0xff == RM_TYPE).then_some(Self::Escape(request & 0xff))
            }
            // the plain number, without a type and a size
            DeviceKind::Uvm => Some(Self::Uvm(request)),
            DeviceKind::Modeset | DeviceKind::Caps | DeviceKind::Nvswitch | DeviceKind::Other => None,
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let escape = escape_names().number(name).map(Self::Escape);
        escape.or_else(|| uvm_names().number(name).map(Self::Uvm))
    }

    fn number(self) -> u32 {
        match self {
            Self::Escape(number) | Self::Uvm(number) => number,
        }
    }

    fn names(self) -> &'static Names {
        match self {
            Self::Escape(_) => escape_names(),
            Self::Uvm(_) => uvm_names(),
        }
    }

    /// The names of its details.
    fn details(self) -> Option<&'static Names> {
        match self {
            Self::Escape(RM_CONTROL) => Some(control_names()),
            Self::Escape(RM_ALLOC) => Some(class_names()),
            Self::Escape(_) | Self::Uvm(_) => None,
        }
    }
}
