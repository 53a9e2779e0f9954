//! Writes the lines of what the agent inside a process reports.

use super::{fixed, head, key, who};
use crate::agent::RangeKind;
use crate::agent_event::{AgentEvent, RangeEvent};
use crate::event::Name;
use crate::execution::{Execution, ExecutionKind};
use crate::trace::agent_fields::{agent_fields, execution_fields, range_fields};
use crate::trace::write::Json;
use crate::trace::{AGENT, EXECUTION, RANGE};

pub(super) fn execution_line(execution: &Execution, out: &mut Vec<u8>) {
    let name = match &execution.kind {
        ExecutionKind::Kernel { name: Some(name), .. } => Name::Owned(name.to_string()),
        ExecutionKind::Kernel { name: None, .. } => Name::Borrowed(ExecutionKind::UNKNOWN_KERNEL),
        kind => Name::Borrowed(kind.as_str()),
    };
    head(out, execution.id, execution.start_ns, EXECUTION, &name, "X");
    let tid = execution.submission.map_or(0, |by| by.tid.0);
    who(out, execution.tgid.0, tid, &execution.process);
    duration(execution.duration_ns(), out);
    execution_fields(execution, &mut Json(out));
}

pub(super) fn range_line(range: &RangeEvent, out: &mut Vec<u8>) {
    let phase = if range.kind == RangeKind::Mark { "i" } else { "X" };
    head(out, range.id, range.start_ns, RANGE, &Name::Owned(range.name.to_string()), phase);
    who(out, range.tgid.0, range.tid.0, &range.process);
    if range.kind != RangeKind::Mark {
        duration(range.end_ns.saturating_sub(range.start_ns), out);
    }
    range_fields(range, &mut Json(out));
}

pub(super) fn agent_line(state: &AgentEvent, out: &mut Vec<u8>) {
    head(out, state.id, state.begin_ns, AGENT, &Name::Borrowed(state.collection.as_str()), "X");
    who(out, state.tgid.0, state.tid.0, &state.process);
    duration(state.end_ns.saturating_sub(state.begin_ns), out);
    agent_fields(state, &mut Json(out));
}

fn duration(ns: u64, out: &mut Vec<u8>) {
    key!(out, "duration_us");
    fixed::<1000>(out, ns);
}
