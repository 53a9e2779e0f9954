//! Events: calls, process starts and exits, losses, XIDs, out-of-memory errors, and what the agent inside a process
//! reports. Everything after decoding works on events only, so that recorded traces and live captures are processed in
//! the same way.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent_event::{AgentEvent, RangeEvent};
use crate::catalogue::{Api, Class};
pub use crate::effect::DeviceTime;
use crate::effect::{Effect, MemoryAmount};
use crate::execution::Execution;
use crate::ids::{SiteId, Tgid, Tid};
use crate::loss::LossCause;
pub use crate::name::Name;
use crate::out_of_memory::OutOfMemoryEvent;
use crate::rank::Rank;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A call of a probed function.
    Call(Box<Call>),
    /// A process started, executed another program or exited.
    Process(ProcessEvent),
    /// Records were lost.
    Loss(LossEvent),
    Xid(Box<XidEvent>),
    /// A framework ran out of memory.
    OutOfMemory(Box<OutOfMemoryEvent>),
    /// A GPU executed something.
    Execution(Box<Execution>),
    /// A range or mark of NVTX.
    Range(Box<RangeEvent>),
    /// The agent inside a process began or ceased to collect GPU times.
    Agent(Box<AgentEvent>),
}

impl Event {
    /// When it ended, in nanoseconds since the recording began. A call that was not seen to return ends when it began.
    pub fn ended_ns(&self) -> u64 {
        match self {
            Self::Call(call) => call.start_ns.saturating_add(call.duration_ns().unwrap_or(0)),
            Self::Process(process) => process.at_ns,
            Self::Loss(loss) => loss.at_ns,
            Self::Xid(xid) => xid.at_ns,
            Self::OutOfMemory(event) => event.at_ns,
            Self::Execution(execution) => execution.end_ns,
            Self::Range(range) => range.end_ns,
            Self::Agent(state) => state.end_ns,
        }
    }
}

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
    /// Text that an argument points to, possibly cut.
    Text(String),
    /// `dim3`.
    Dim3([u32; 3]),
    /// A struct with its known fields.
    Struct(Vec<(Name, Self)>),
    /// It could not be read: the memory was not accessible, or it is in a register that a probe does not see. Never
    /// shown as 0.
    Unread,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned: the value of the result register, and the duration.
    Returned { value: u64, duration_ns: u64 },
    /// The process exited, or the recording stopped, during the call.
    Unfinished,
    /// It has no duration: a tracepoint of the Linux kernel.
    Instant,
    /// It began. Its return is another event with the same id, if returns are recorded.
    Begun,
    /// It began. Its return is not probed, because that could harm the program; the returns of other functions are.
    Unobserved,
}

/// One call of a probed function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Unique in its recording; ids of one thread are ascending.
    pub id: u64,
    /// The id of the enclosing call on the same thread.
    pub parent: Option<u64>,
    /// The number of enclosing calls. A live display needs it, because inner calls end, and so are shown, before
    /// outer ones; a trace file has the parents instead.
    pub depth: u8,
    /// An enclosing call of the same kind counts the effect of this one on memory, as a copy or as a launch.
    pub nested: bool,
    /// How many calls it stands for: more than 1 if its function was sampled.
    pub weight: u16,
    /// Nanoseconds since the recording began.
    pub start_ns: u64,
    pub outcome: Outcome,
    /// Its return was probed. If not, it is a launch that is taken to have succeeded, and to have taken as long as the
    /// last launch of the same CUDA kernel whose return was probed.
    pub return_probed: bool,
    pub tgid: Tgid,
    pub tid: Tid,
    pub process: Arc<str>,
    /// The library family.
    pub api: Api,
    /// The exported name.
    pub name: Name,
    /// The class of the function.
    pub class: Class,
    /// The status as a number; `None` if the function returns none, or did not return.
    pub status: Option<i64>,
    /// The name of the status, only if it is a failure.
    pub error: Option<Name>,
    /// The arguments in order; `None` if no prototype is known.
    pub args: Option<Vec<(Name, Value)>>,
    /// The stream argument.
    pub stream: Option<u64>,
    /// The effect of the call.
    pub effect: Effect,
    /// System calls on the NVIDIA devices during the call, if there were any and they are observed.
    pub driver: Option<DeviceTime>,
    /// The call site, if it is known. An allocation has it in its effect.
    pub site: Option<SiteId>,
    /// The call stack, innermost first, if requested. The calls of one call site share it.
    pub stack: Option<Arc<[String]>>,
}

impl Call {
    /// Whether it returned a failure. 600 (NotReady) is an answer, not a failure.
    pub fn failed(&self) -> bool {
        self.status.is_some_and(|status| self.api.is_failure(status))
            || (self.api.row().has_separate_errors && self.error.is_some())
    }

    /// Whether it is a call in the Linux kernel, and not one of a CUDA library.
    pub fn is_in_linux(&self) -> bool {
        self.api == Api::Kernel
    }

    /// A title in one name: an ioctl is shown with its command.
    pub fn title(&self) -> Cow<'_, str> {
        match self.effect.device_syscall().and_then(|call| call.command.as_ref()) {
            Some(command) => Cow::Owned(format!("{} {command}", self.name)),
            None => Cow::Borrowed(&self.name),
        }
    }

    /// The call site, also of an allocation.
    pub fn call_site(&self) -> Option<SiteId> {
        self.effect.allocation().map_or(self.site, |allocation| allocation.site)
    }

    /// Bytes that it copied: only for a successful copy or memset, and only at the outermost call.
    pub fn moved_bytes(&self) -> u64 {
        match &self.effect {
            Effect::Transfer(_) if self.failed() || self.duration_ns().is_none() => 0,
            Effect::Transfer(transfer) if self.nested => transfer.bytes.unwrap_or(0),
            Effect::Transfer(transfer) => transfer.moved(),
            _ => 0,
        }
    }

    /// Whether its effect took place: it succeeded, or it is a free that failed or did not return but whose memory
    /// was freed nevertheless.
    pub fn took_effect(&self) -> bool {
        let was_freed = || match &self.effect {
            Effect::Free(free) => free.freed.is_some(),
            Effect::ContextEnd(_) => true,
            _ => false,
        };
        match self.outcome {
            Outcome::Returned { .. } => !self.failed() || was_freed(),
            Outcome::Unfinished => was_freed(),
            Outcome::Instant | Outcome::Begun | Outcome::Unobserved => false,
        }
    }

    /// Its duration, if it returned.
    pub fn duration_ns(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Returned { duration_ns, .. } => Some(duration_ns),
            Outcome::Unfinished | Outcome::Instant | Outcome::Begun | Outcome::Unobserved => None,
        }
    }
}

/// A change of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessChange {
    /// First seen: forked by a traced process, or at its first CUDA call.
    Start,
    /// It executed another program; its GPU memory was freed.
    Exec,
    /// Its last thread exited.
    Exit,
}

impl ProcessChange {
    /// The word in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exec => "exec",
            Self::Exit => "exit",
        }
    }
}

/// A start, exec or exit of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessEvent {
    /// Unique in its recording.
    pub id: u64,
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    pub change: ProcessChange,
    pub tgid: Tgid,
    /// The thread that caused it.
    pub tid: Tid,
    /// The name of the process from then on.
    pub process: Arc<str>,
    /// Its parent, for a start.
    pub parent: Option<Tgid>,
    /// Its pid in its own pid namespace, if it has one.
    pub ns_pid: Option<Tgid>,
    /// The id of its container, from its cgroup.
    pub container: Option<Arc<str>>,
    /// For an exit, as in a shell: the exit code, or 128 plus the signal.
    pub exit_status: Option<i32>,
    /// Its number in its job, as of its start or exec.
    pub rank: Option<Rank>,
    /// Its live memory by kind, at the start of a trace segment: earlier segments may have been removed.
    pub live: Vec<MemoryAmount>,
}

/// Records that were lost.
#[derive(Clone, Debug, PartialEq)]
pub struct LossEvent {
    /// When it was noticed, in nanoseconds since the recording began.
    pub at_ns: u64,
    pub cause: LossCause,
    /// The number since the last event of this cause.
    pub count: u64,
}

/// An error that a GPU reported through the NVIDIA kernel module (XID).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XidEvent {
    /// Unique in its recording.
    pub id: u64,
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    pub number: u32,
    /// The PCI address of the GPU, as the Linux kernel writes it.
    pub gpu: Arc<str>,
    /// The message of the NVIDIA kernel module.
    pub message: Arc<str>,
    /// The processes that were using that GPU.
    pub processes: Vec<XidProcess>,
}

/// A process that may have caused an XID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct XidProcess {
    pub tgid: Tgid,
    pub process: Arc<str>,
    /// The evidence for it.
    pub evidence: Evidence,
}

/// The evidence that a process caused an XID, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The message names it.
    Named,
    /// It had that GPU open.
    Opened,
    /// It was observed, and had exited before its open files could be read.
    Watched,
}

impl Evidence {
    /// The word in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Opened => "opened",
            Self::Watched => "watched",
        }
    }
}

/// The pid that a message of the NVIDIA kernel module about an XID names: `pid=436` or `pid='436'`.
pub fn pid_in_xid_message(message: &str) -> Option<u32> {
    let (_, rest) = message.split_once("pid=")?;
    let rest = rest.trim_start_matches(['\'', '"', ' ']);
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok().filter(|pid| *pid != 0)
}

impl XidEvent {
    /// The pid in the message.
    pub fn named_pid(&self) -> Option<u32> {
        pid_in_xid_message(&self.message)
    }

    /// The process name in the message.
    pub fn named_process(&self) -> Option<&str> {
        let (_, rest) = self.message.split_once("name=")?;
        let name = rest.split(',').next()?.trim_matches(['\'', '"', ' ']);
        Some(name).filter(|name| !name.is_empty() && *name != "<unknown>")
    }
}
