//! What every line of a trace begins with.

use super::fields::Key;
use super::{AGENT, EXECUTION, OUT_OF_MEMORY, RANGE, type_of};
use crate::agent::RangeKind;
use crate::event::{Call, Event, Evidence, Outcome, XidEvent};
use crate::execution::{Execution, ExecutionKind};
use crate::ids::{Tgid, Tid};

/// How the begin and the return of a call are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phases {
    /// In one line, when it has returned.
    #[default]
    Together,
    /// In two lines, as they happen.
    Separate,
}

/// The fields that every line has, and those that follow from the kind of event.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    pub id: u64,
    /// `ts`, in nanoseconds.
    pub at_ns: u64,
    /// `type`.
    pub kind: &'static str,
    pub name: Key<'a>,
    pub phase: &'static str,
    pub tgid: Tgid,
    pub tid: Tid,
    pub process: &'a str,
    /// The name of the field that says why a call has no return: `unfinished` or `unobserved`.
    pub incomplete: Option<&'static str>,
    pub duration_ns: Option<u64>,
}

impl<'a> Head<'a> {
    pub fn of(event: &'a Event, phases: Phases) -> Self {
        match event {
            Event::Call(call) => Self::of_call(call, phases),
            Event::Process(change) => Self {
                process: &change.process,
                tgid: change.tgid,
                tid: change.tid,
                ..Self::instant(change.id, change.at_ns, "process", change.change.as_str())
            },
            Event::Loss(loss) => Self::instant(0, loss.at_ns, "loss", loss.cause.as_str()),
            Event::Xid(xid) => Self::of_xid(xid),
            Event::OutOfMemory(event) => Self {
                process: &event.process,
                tgid: event.tgid,
                tid: event.tid,
                ..Self::instant(event.id, event.at_ns, OUT_OF_MEMORY, OUT_OF_MEMORY)
            },
            Event::Execution(execution) => Self::of_execution(execution),
            Event::Range(range) => {
                let duration_ns = range.end_ns.saturating_sub(range.start_ns);
                let is_mark = range.kind == RangeKind::Mark;
                Self {
                    name: Key::Theirs(&range.name),
                    phase: if is_mark { "i" } else { "X" },
                    process: &range.process,
                    tgid: range.tgid,
                    tid: range.tid,
                    duration_ns: (!is_mark).then_some(duration_ns),
                    ..Self::instant(range.id, range.start_ns, RANGE, "")
                }
            }
            Event::Agent(state) => Self {
                phase: "X",
                process: &state.process,
                tgid: state.tgid,
                tid: state.tid,
                duration_ns: Some(state.end_ns.saturating_sub(state.begin_ns)),
                ..Self::instant(state.id, state.begin_ns, AGENT, state.collection.as_str())
            },
        }
    }

    /// Something without a duration, of no process.
    fn instant(id: u64, at_ns: u64, kind: &'static str, name: &'static str) -> Self {
        Self {
            id,
            at_ns,
            kind,
            name: Key::Ours(name),
            phase: "i",
            tgid: Tgid(0),
            tid: Tid(0),
            process: "",
            incomplete: None,
            duration_ns: None,
        }
    }

    fn of_call(call: &'a Call, phases: Phases) -> Self {
        let (phase, at_ns) = match (call.outcome, phases) {
            (Outcome::Returned { .. }, Phases::Together) => ("X", call.start_ns),
            (Outcome::Returned { duration_ns, .. }, Phases::Separate) => {
                ("E", call.start_ns.saturating_add(duration_ns))
            }
            (Outcome::Instant, _) => ("i", call.start_ns),
            (Outcome::Unfinished | Outcome::Begun | Outcome::Unobserved, _) => ("B", call.start_ns),
        };
        Self {
            id: call.id,
            at_ns,
            kind: type_of(call.class),
            name: Key::from(&call.name),
            phase,
            tgid: call.tgid,
            tid: call.tid,
            process: &call.process,
            incomplete: match call.outcome {
                Outcome::Unfinished => Some("unfinished"),
                Outcome::Unobserved => Some("unobserved"),
                Outcome::Returned { .. } | Outcome::Instant | Outcome::Begun => None,
            },
            duration_ns: call.duration_ns(),
        }
    }

    fn of_xid(xid: &'a XidEvent) -> Self {
        let named = xid.processes.iter().find(|process| process.evidence == Evidence::Named);
        Self {
            process: named.map_or("", |named| &named.process),
            tgid: named.map_or(Tgid(0), |named| named.tgid),
            ..Self::instant(xid.id, xid.at_ns, "kernel", "xid")
        }
    }

    fn of_execution(execution: &'a Execution) -> Self {
        let name = match &execution.kind {
            ExecutionKind::Kernel { name: Some(name), .. } => Key::Theirs(name),
            ExecutionKind::Kernel { name: None, .. } => Key::Ours(ExecutionKind::UNKNOWN_KERNEL),
            kind => Key::Ours(kind.as_str()),
        };
        Self {
            name,
            phase: "X",
            process: &execution.process,
            tgid: execution.tgid,
            tid: execution.submission.map_or(Tid(0), |by| by.tid),
            duration_ns: Some(execution.duration_ns()),
            ..Self::instant(execution.id, execution.start_ns, EXECUTION, "")
        }
    }
}
