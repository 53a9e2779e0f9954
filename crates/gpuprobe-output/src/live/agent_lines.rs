//! Lines of what the agent inside a process reports.

use gpuprobe_event::agent::{Collection, RangeKind};
use gpuprobe_event::{AgentEvent, Execution, ExecutionKind, RangeEvent};

use crate::agent_text;
use crate::units::{bytes, duration, push_decimal, push_printable};

/// `python 12345 GPU 0 stream 7: kernel<<<[4,2,1], [128,1,1]>>> took 5.4 us, queued 4.3 us`
pub(super) fn execution(out: &mut String, execution: &Execution) {
    push_process(out, &execution.process, execution.tgid.0);
    out.push_str(&format!(" GPU {} stream {}: ", execution.gpu, execution.stream));
    push_printable(out, execution.kind.title());
    match &execution.kind {
        ExecutionKind::Kernel { grid, block, .. } => {
            let [grid, block] = [grid, block].map(|of| of.map(|n| n.to_string()).join(","));
            out.push_str(&format!("<<<[{grid}], [{block}]>>>"));
        }
        ExecutionKind::Copy { direction, bytes: size } => {
            let direction = if direction.is_known() { direction.as_str() } else { "in an unknown direction" };
            out.push_str(&format!(" {direction} {}", bytes(*size)));
        }
        ExecutionKind::Memset { bytes: size } => out.push_str(&format!(" {}", bytes(*size))),
        ExecutionKind::Graph => {
            if let Some(graph) = execution.graph {
                out.push_str(&format!(" {graph}"));
            }
        }
    }
    out.push_str(&format!(" took {}", duration(execution.duration_ns())));
    if let Some(by) = execution.submission {
        out.push_str(&format!(", queued {}", duration(by.queued_ns)));
    }
    out.push('\n');
}

/// `python 12345/12350 range forward (NCCL) took 5.4 us`
pub(super) fn range(out: &mut String, range: &RangeEvent) {
    push_process(out, &range.process, range.tgid.0);
    out.push('/');
    push_decimal(out, range.tid.0.into());
    out.push_str(if range.kind == RangeKind::Mark { " mark " } else { " range " });
    push_printable(out, &range.name);
    if let Some(domain) = &range.domain {
        out.push_str(" (");
        push_printable(out, domain);
        out.push(')');
    }
    if range.kind != RangeKind::Mark {
        out.push_str(&format!(" took {}", duration(range.end_ns.saturating_sub(range.start_ns))));
    }
    out.push('\n');
}

pub(super) fn agent(out: &mut String, state: &AgentEvent) {
    push_process(out, &state.process, state.tgid.0);
    out.push_str(": ");
    out.push_str(agent_text::sentence(state.collection));
    if state.collection != Collection::Collecting && !state.text.is_empty() {
        out.push_str(": ");
        push_printable(out, &state.text);
    }
    out.push('\n');
}

fn push_process(out: &mut String, process: &str, tgid: u32) {
    push_printable(out, process);
    out.push(' ');
    push_decimal(out, tgid.into());
}
