//! What happened: calls, the lives of processes, and losses. Everything after decoding works on these alone, so a
//! recorded trace and a live capture are the same to it.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalogue::{Api, Class};
pub use crate::effect::DriverTime;
use crate::effect::{Effect, MemoryAmount};
use crate::ids::{Tgid, Tid};
use crate::loss::LossCause;
pub use crate::name::Name;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A call of a hooked function.
    Call(Box<Call>),
    /// A process began, changed its program or ended.
    Process(ProcessEvent),
    /// Something was lost.
    Loss(LossEvent),
    /// A GPU reported an error.
    Xid(Box<XidEvent>),
}

/// The value of one argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Uint(u64),
    /// A signed number.
    Int(i64),
    /// An address, a handle or flags.
    Hex(u64),
    /// An enum value by name.
    Name(Name),
    /// Text that an argument points to, as far as it was read.
    Text(String),
    /// `dim3`.
    Dim3([u32; 3]),
    /// A struct with the fields that are known.
    Struct(Vec<(Name, Self)>),
    /// It could not be read: the memory was not there, or it lies where a probe cannot see. Never shown as 0.
    Unread,
}

/// Whether a call was seen to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned: its value in the result register, and how long it took.
    Returned { value: u64, duration_ns: u64 },
    /// The process ended, or the recording stopped, while it was open.
    Unfinished,
    /// It happened, and was over at once: a tracepoint of the kernel.
    Instant,
    /// It began. Its end is an event of its own, with the same id, where ends are watched at all.
    Begun,
    /// It began. Its return is not probed, because that could harm the program; those of other functions are.
    Unobserved,
}

/// One call of a hooked function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Unique in its recording; ids of one thread rise.
    pub id: u64,
    /// The id of the call that this one was made inside, on the same thread.
    pub parent: Option<u64>,
    /// How many calls it was made inside. A live display needs it, because inner calls end, and so are told, before
    /// outer ones; a trace file says it by its parents.
    pub depth: u8,
    /// An enclosing call of the same kind counts what this one did: to memory, as a copy, or as a launch.
    pub nested: bool,
    /// Nanoseconds since the recording began.
    pub start_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The process.
    pub tgid: Tgid,
    /// The thread.
    pub tid: Tid,
    /// The name of the process.
    pub process: Arc<str>,
    /// Which library family.
    pub api: Api,
    /// The exported name.
    pub name: Name,
    /// What the function is for.
    pub class: Class,
    /// The status as a number; `None` where the function returns none, or did not return.
    pub status: Option<i64>,
    /// The name of the status, only when it is a failure.
    pub error: Option<Name>,
    /// The arguments in order; `None` where no prototype is known.
    pub args: Option<Vec<(Name, Value)>>,
    /// The stream that it names.
    pub stream: Option<u64>,
    /// What the call did to memory, the bus or the GPU.
    pub effect: Effect,
    /// What the call did in the driver, where it entered it and that is watched.
    pub driver: Option<DriverTime>,
    /// Where it was called from, innermost first, where that was asked for.
    pub stack: Option<Vec<String>>,
}

impl Call {
    /// Whether it came back with a failure. 600 (NotReady) is an answer, not a failure.
    pub fn failed(&self) -> bool {
        // the driver's own status comes in the argument of a call that itself went well, as that of some hooks does
        let may_be_told_apart = matches!(self.api, Api::Kernel | Api::Hook);
        self.status.is_some_and(is_failure) || (may_be_told_apart && self.error.is_some())
    }

    /// Whether it is one of the kernel, and so none that a program asked CUDA for.
    pub fn is_kernel(&self) -> bool {
        self.api == Api::Kernel
    }

    /// What it is called where all that is known of it is one name: an ioctl says little without its command.
    pub fn title(&self) -> Cow<'_, str> {
        match self.effect.driver_call().and_then(|asked| asked.command.as_ref()) {
            Some(command) => Cow::Owned(format!("{} {command}", self.name)),
            None => Cow::Borrowed(&self.name),
        }
    }

    /// Bytes that it moved: only of a copy or a memset that returned and did not fail, and only at the outermost one.
    pub fn moved_bytes(&self) -> u64 {
        match &self.effect {
            Effect::Transfer(_) if self.failed() || self.duration_ns().is_none() => 0,
            Effect::Transfer(transfer) if self.nested => transfer.bytes.unwrap_or(0),
            Effect::Transfer(transfer) => transfer.moved(),
            _ => 0,
        }
    }

    /// Whether its effect took place: it succeeded, or it is a free that failed or did not return and whose memory is gone
    /// all the same.
    pub fn took_effect(&self) -> bool {
        let is_gone = || match &self.effect {
            Effect::Free(free) => free.freed.is_some(),
            Effect::ContextEnd(_) => true,
            _ => false,
        };
        match self.outcome {
            Outcome::Returned { .. } => !self.failed() || is_gone(),
            Outcome::Unfinished => is_gone(),
            Outcome::Instant | Outcome::Begun | Outcome::Unobserved => false,
        }
    }

    /// How long it took, if it returned.
    pub fn duration_ns(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Returned { duration_ns, .. } => Some(duration_ns),
            Outcome::Unfinished | Outcome::Instant | Outcome::Begun | Outcome::Unobserved => None,
        }
    }
}

/// Whether a status of CUDA, NVML or NCCL is a failure.
pub fn is_failure(status: i64) -> bool {
    const NOT_READY: i64 = 600;
    status != 0 && status != NOT_READY
}

/// What happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessChange {
    /// First seen: forked by a traced process, or its first CUDA call.
    Start,
    /// It runs another program now; what it held on the GPU is gone.
    Exec,
    /// Its last thread ended.
    Exit,
}

impl ProcessChange {
    /// The word used in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exec => "exec",
            Self::Exit => "exit",
        }
    }
}

/// A change in the life of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessEvent {
    /// Unique in its recording.
    pub id: u64,
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    /// What happened.
    pub change: ProcessChange,
    /// The process.
    pub tgid: Tgid,
    /// The thread it happened on.
    pub tid: Tid,
    /// The process's name from then on.
    pub process: Arc<str>,
    /// Its parent, for a start.
    pub parent: Option<Tgid>,
    /// Its pid as it sees it itself, where it is in a pid namespace of its own.
    pub ns_pid: Option<Tgid>,
    /// The container it is in, where its cgroup tells.
    pub container: Option<Arc<str>>,
    /// For an exit, what a shell shows: the exit code, or 128 plus the signal.
    pub exit_status: Option<i32>,
    /// What it holds, by kind, where a segment of a trace begins while it runs: those before may be gone.
    pub held: Vec<MemoryAmount>,
}

/// Something that should have been recorded was not.
#[derive(Clone, Debug, PartialEq)]
pub struct LossEvent {
    /// When it was noticed, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// Why.
    pub cause: LossCause,
    /// How many, since the last event of this cause.
    pub count: u64,
}

/// An error that a GPU reported through the driver (XID).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XidEvent {
    /// Unique in its recording.
    pub id: u64,
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    /// Which error.
    pub number: u32,
    /// The place of the GPU on the bus, as the kernel writes it.
    pub gpu: Arc<str>,
    /// What the driver says of it.
    pub message: Arc<str>,
    /// Who was using that GPU.
    pub processes: Vec<XidProcess>,
}

/// A process that may have to do with an error of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct XidProcess {
    /// The process.
    pub tgid: Tgid,
    /// Its name.
    pub process: Arc<str>,
    /// How much speaks for it.
    pub evidence: Evidence,
}

/// What speaks for a process having to do with an error, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The driver names it.
    Named,
    /// It had opened that GPU.
    Opened,
    /// It was watched, and had ended before anybody could look at what it had open.
    Watched,
}

impl Evidence {
    /// The word used in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Opened => "opened",
            Self::Watched => "watched",
        }
    }
}

impl XidEvent {
    /// The process that the driver names in its message.
    pub fn named_pid(&self) -> Option<u32> {
        let (_, rest) = self.message.split_once("pid=")?;
        let rest = rest.trim_start_matches(['\'', '"', ' ']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok().filter(|pid| *pid != 0)
    }

    /// What the driver calls that process.
    pub fn named_process(&self) -> Option<&str> {
        let (_, rest) = self.message.split_once("name=")?;
        let name = rest.split(',').next()?.trim_matches(['\'', '"', ' ']);
        Some(name).filter(|name| !name.is_empty() && *name != "<unknown>")
    }
}
