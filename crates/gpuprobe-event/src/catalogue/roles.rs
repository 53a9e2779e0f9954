//! The classes of functions, and the roles of their arguments.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Arg;

macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// The purpose of a function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Class { $($(#[$doc])* $name,)* }

        impl Class {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word in `roles.tbl`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            pub(crate) fn from_name(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$name),)* _ => None }
            }
        }
    };
}

classes! {
    Alloc = "alloc", Free = "free", Pool = "pool", Vmm = "vmm", Ipc = "ipc",
    HostRegister = "host_register", HostUnregister = "host_unregister",
    Memcpy = "memcpy", Memset = "memset", Launch = "launch", GraphLaunch = "graph_launch",
    Sync = "sync", Stream = "stream", Event = "event", Device = "device", Context = "context",
    Module = "module", Function = "function", Collective = "collective", Comm = "comm",
    Diagnostics = "diagnostics", EntryPoint = "entry_point", Error = "error", External = "external",
    Graph = "graph", GraphCapture = "graph_capture", Group = "group", HostCallback = "host_callback",
    Interop = "interop", LaunchConfig = "launch_config", LinkJit = "link_jit",
    LogicalEndpoint = "logical_endpoint", ManagedHint = "managed_hint", MemQuery = "mem_query",
    Nvml = "nvml", Occupancy = "occupancy", P2p = "p2p", Peer = "peer", Profiler = "profiler",
    Reference = "reference", Map = "map", Register = "register", StreamMemop = "stream_memop", Texture = "texture",
    VmmMulticast = "vmm_multicast", Driver = "driver", Scheduler = "scheduler", Tensor = "tensor", Other = "other",
}

impl Class {
    /// Calls that compilers insert (`__cudaRegisterFunction`, `__cudaPushCallConfiguration`): a program does not make
    /// them itself, and they are shown only on request.
    pub fn is_internal(self) -> bool {
        matches!(self, Self::Register | Self::LaunchConfig)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The kind of memory of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Space {
    /// Plain device memory.
    Device,
    /// Managed memory, which moves between host and device.
    Managed,
    /// Host memory locked for the device.
    Pinned,
    /// Device memory from a stream-ordered pool.
    Pool,
    /// Physical memory of the virtual memory management API.
    Vmm,
    /// CUDA arrays.
    Array,
    /// Not recorded in the trace, or not known to this version.
    #[default]
    Unknown,
}

impl Space {
    /// All known kinds, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Device, Self::Managed, Self::Pinned, Self::Pool, Self::Vmm, Self::Array];

    /// The word in traces and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
            Self::Pool => "pool",
            Self::Vmm => "vmm",
            Self::Array => "array",
            Self::Unknown => "unknown",
        }
    }

    /// The kind with this word.
    pub fn from_word(word: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word).unwrap_or(Self::Unknown)
    }

    fn from_role(word: &str) -> Option<Self> {
        Some(match word {
            "device" => Self::Device,
            "device_async" => Self::Pool,
            "host" => Self::Pinned,
            "managed" => Self::Managed,
            "array" => Self::Array,
            _ => return None,
        })
    }
}

/// How the direction of a copy is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// By the function's name.
    Fixed(&'static str),
    /// By a `cudaMemcpyKind` argument.
    FromKind,
    /// By the struct that describes the copy.
    FromStruct,
    /// Only by what is known about the two pointers.
    FromPointers,
}

impl Direction {
    fn from_role(word: &str) -> Self {
        match word {
            "HtoD" | "HtoA" => Self::Fixed("H2D"),
            "DtoH" | "AtoH" => Self::Fixed("D2H"),
            "DtoD" | "AtoD" | "DtoA" | "AtoA" => Self::Fixed("D2D"),
            "P2P" => Self::Fixed("P2P"),
            "from_kind" => Self::FromKind,
            "from_struct" => Self::FromStruct,
            _ => Self::FromPointers,
        }
    }
}

/// The arguments (by position) with a role; one field per role word. The words are explained in `roles.tbl`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roles {
    pub out: Option<u8>,
    pub size: Option<u8>,
    pub ptr: Option<u8>,
    pub dst: Option<u8>,
    pub src: Option<u8>,
    pub kind: Option<u8>,
    pub stream: Option<u8>,
    pub func: Option<u8>,
    pub width: Option<u8>,
    pub height: Option<u8>,
    pub pitch_out: Option<u8>,
    pub pitched_out: Option<u8>,
    pub extent: Option<u8>,
    pub config: Option<u8>,
    pub params: Option<u8>,
    pub desc: Option<u8>,
    pub levels: Option<u8>,
    pub handle: Option<u8>,
    pub device: Option<u8>,
    /// Bytes that a framework's allocator has given out, and those that it has reserved.
    pub in_use: Option<u8>,
    pub reserved: Option<u8>,
    pub graph: Option<u8>,
    pub graph_exec: Option<u8>,
    pub child: Option<u8>,
    pub node: Option<u8>,
    /// Whether a node is enabled from now on.
    pub enabled: Option<u8>,
    pub event: Option<u8>,
    /// The number of entries of list arguments.
    pub count: Option<u8>,
    /// A list of sizes, parallel to lists of targets and sources.
    pub sizes: Option<u8>,
    /// The operation, as a word of its class.
    pub op: Option<&'static str>,
    pub shared: Option<u8>,
    pub name: Option<u8>,
    /// A struct that has a pointer to the name.
    pub name_in: Option<u8>,
    /// A handle or host function that the call gives a name to.
    pub named: Option<u8>,
    pub name_out: Option<u8>,
    /// Where the handle of a CUDA kernel is returned.
    pub func_out: Option<u8>,
    /// Where the handle of what the call makes is returned; a list of them if `count` is set.
    pub made: Option<u8>,
    /// The unique id of a communicator.
    pub id: Option<u8>,
    /// The handle that the returned one is an alias of.
    pub alias: Option<u8>,
    /// One dim3, or three integers from this argument on.
    pub grid: Option<u8>,
    pub block: Option<u8>,
    /// Three integers from this argument on: the whole grid in threads, of which blocks are a part.
    pub threads: Option<u8>,
    /// The number of dimensions of a launch whose sizes are in lists: the global sizes, and the local ones or NULL.
    pub dimensions: Option<u8>,
    pub global: Option<u8>,
    pub local: Option<u8>,
    /// A list of three sizes: bytes or pixels of a row, rows, planes.
    pub region: Option<u8>,
    /// The image whose pixels a region counts.
    pub image: Option<u8>,
    /// The format of the pixels of an image.
    pub format: Option<u8>,
    /// The call gives a name only if this argument has this value.
    pub only_if: Option<(u8, u16)>,
    /// Two integers from this argument on: a grid whose block size was set before.
    pub plane: Option<u8>,
    /// Bytes per counted element, for memsets that count elements.
    pub elem: u8,
    pub space: Option<Space>,
    pub direction: Option<Direction>,
    pub asynchronous: bool,
    /// A flag argument that makes an asynchronous call wait.
    pub waits: Option<u8>,
    /// The allocated address is the return value.
    pub out_is_result: bool,
    /// The handle of the named CUDA kernel is the return value.
    pub func_is_result: bool,
    /// Where it writes its status, which is not the return value.
    pub error_out: Option<u8>,
    /// The hook declares that no exception leaves this C++ function.
    pub nothrow: bool,
    /// The exported function that this one tail-calls: probing both would count the call twice.
    pub jumps_to: Option<&'static str>,
    /// What a synchronization waits for: `stream`, `device` or `event`.
    pub scope: Option<&'static str>,
}

/// The word for the result of a function.
const RETURN: &str = "return";

impl Roles {
    /// Resolves the role words of a function against the arguments of one signature.
    pub(crate) fn resolve(words: &'static str, args: &[Arg]) -> Self {
        let mut roles = Self { elem: 1, ..Self::default() };
        // the first name that this signature has: variants name the same argument differently
        let position = |names: &str| {
            let at = names.split(',').find_map(|name| args.iter().position(|a| a.name == name));
            at.and_then(|i| u8::try_from(i).ok())
        };
        for word in words.split(' ') {
            let Some((role, value)) = word.split_once('=') else {
                roles.asynchronous |= word == "async";
                continue;
            };
            if value == RETURN {
                roles.out_is_result |= role == "out";
                roles.func_is_result |= role == "func_out";
                continue;
            }
            if let Some(argument) = roles.argument(role) {
                *argument = position(value);
                continue;
            }
            match role {
                "op" => roles.op = Some(value),
                "elem" => roles.elem = value.parse().unwrap_or(1),
                "space" => roles.space = Space::from_role(value),
                "direction" => roles.direction = Some(Direction::from_role(value)),
                "jumps_to" => roles.jumps_to = Some(value),
                "scope" => roles.scope = Some(value),
                "if" => {
                    let (argument, wanted) = value.split_once(':').unwrap_or_default();
                    roles.only_if = position(argument).zip(wanted.parse().ok());
                }
                _ => {}
            }
        }
        roles
    }

    /// The argument with a role, by the word of the role.
    fn argument(&mut self, role: &str) -> Option<&mut Option<u8>> {
        Some(match role {
            "out" => &mut self.out,
            "size" => &mut self.size,
            "ptr" => &mut self.ptr,
            "dst" => &mut self.dst,
            "src" => &mut self.src,
            "kind" => &mut self.kind,
            "stream" => &mut self.stream,
            "func" => &mut self.func,
            "width" => &mut self.width,
            "height" => &mut self.height,
            "pitch_out" => &mut self.pitch_out,
            "pitched_out" => &mut self.pitched_out,
            "extent" => &mut self.extent,
            "config" => &mut self.config,
            "params" => &mut self.params,
            "desc" => &mut self.desc,
            "levels" => &mut self.levels,
            "handle" => &mut self.handle,
            "device" => &mut self.device,
            "in_use" => &mut self.in_use,
            "reserved" => &mut self.reserved,
            "graph" => &mut self.graph,
            "graph_exec" => &mut self.graph_exec,
            "child" => &mut self.child,
            "node" => &mut self.node,
            "enabled" => &mut self.enabled,
            "event" => &mut self.event,
            "count" => &mut self.count,
            "sizes" => &mut self.sizes,
            "shared" => &mut self.shared,
            "name" => &mut self.name,
            "name_in" => &mut self.name_in,
            "named" => &mut self.named,
            "name_out" => &mut self.name_out,
            "func_out" => &mut self.func_out,
            "made" => &mut self.made,
            "id" => &mut self.id,
            "alias" => &mut self.alias,
            "grid" => &mut self.grid,
            "threads" => &mut self.threads,
            "block" => &mut self.block,
            "plane" => &mut self.plane,
            "dimensions" => &mut self.dimensions,
            "global" => &mut self.global,
            "local" => &mut self.local,
            "region" => &mut self.region,
            "image" => &mut self.image,
            "format" => &mut self.format,
            "waits" => &mut self.waits,
            "error" => &mut self.error_out,
            _ => return None,
        })
    }
}
