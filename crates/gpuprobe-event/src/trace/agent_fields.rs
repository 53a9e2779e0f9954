//! The fields of what the agent inside a process reports, other than time, duration and process.

use super::fields::Fields;
use crate::agent::Collection;
use crate::agent_event::{AgentEvent, RangeEvent};
use crate::event::Name;
use crate::execution::{Execution, ExecutionKind};

/// The fields of an execution.
pub fn execution_fields(execution: &Execution, to: &mut impl Fields) {
    to.name("op", &Name::Borrowed(execution.kind.as_str()));
    for (key, number) in [
        ("gpu", execution.gpu),
        ("context", execution.context),
        ("stream", execution.stream),
        ("correlation", execution.correlation),
    ] {
        to.uint(key, number.into());
    }
    if let Some(graph) = execution.graph {
        to.uint("graph", graph.into());
    }
    if let Some(by) = execution.submission {
        to.uint("launch", by.call);
        to.microseconds("queued_us", by.queued_ns);
    }
    match &execution.kind {
        ExecutionKind::Kernel { grid, block, shared_bytes, .. } => {
            to.uints("grid", &grid.map(u64::from));
            to.uints("block", &block.map(u64::from));
            if *shared_bytes != 0 {
                to.uint("shared", u64::from(*shared_bytes));
            }
        }
        ExecutionKind::Copy { direction, bytes } => {
            if direction.is_known() {
                to.name("kind", &Name::Borrowed(direction.as_str()));
            }
            to.uint("size", *bytes);
        }
        ExecutionKind::Memset { bytes } => to.uint("size", *bytes),
        ExecutionKind::Graph => {}
    }
}

/// The fields of an NVTX range.
pub fn range_fields(range: &RangeEvent, to: &mut impl Fields) {
    to.name("range", &Name::Borrowed(range.kind.as_str()));
    if let Some(domain) = &range.domain {
        to.text("domain", domain);
    }
    if range.color != 0 {
        to.hex("color", range.color.into());
    }
}

/// The fields of a state of the agent.
pub fn agent_fields(state: &AgentEvent, to: &mut impl Fields) {
    if state.collection == Collection::Collecting {
        to.name("graphs", &Name::Borrowed(state.graphs.as_str()));
    }
    if state.code != 0 {
        to.uint("code", state.code.into());
    }
    to.text("text", &state.text);
}
