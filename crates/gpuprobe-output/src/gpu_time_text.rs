//! Texts about what GPUs executed, which the summary and the page share.

use gpuprobe_analysis::gpu_time::{AgentSummary, CopyTime, GpuTime, HostActivity, QueueingDelay, RangeTime};
use gpuprobe_event::agent::{Collection, GraphRecords};
use gpuprobe_event::counters::CopyDirection;

use crate::agent_text;
use crate::kmod_text::per_cent;
use crate::units::{bytes, duration};

/// What the host did while a GPU was idle.
pub(crate) fn host(activity: HostActivity) -> String {
    match activity {
        HostActivity::In(function) => format!("in {function}"),
        HostActivity::Outside => "outside CUDA".to_owned(),
        HostActivity::Submitted => "done: submitted, not started on the GPU".to_owned(),
        HostActivity::Unknown => "not known".to_owned(),
    }
}

/// `; 3 unmatched (0.1%)`, or nothing.
pub(crate) fn unmatched(time: &GpuTime) -> String {
    let mut text = String::new();
    if time.unmatched > 0 {
        let share = per_cent(time.unmatched, time.executions);
        text += &format!("; of {} ({share}) the submission was not found", time.unmatched);
    }
    if time.late > 0 {
        text += &format!("; {} came late: busy times may be too low", time.late);
    }
    text
}

pub(crate) fn queueing(delay: &QueueingDelay) -> String {
    format!(
        "from the call to the start on the GPU: p50 {}, p90 {}, p99 {}, max {}",
        duration(delay.p50_ns),
        duration(delay.p90_ns),
        duration(delay.p99_ns),
        duration(delay.max_ns)
    )
}

pub(crate) fn copy_name(copy: &CopyTime) -> &'static str {
    if copy.direction == CopyDirection::Fill { "memset" } else { copy.direction.as_str() }
}

/// Bytes per second of GPU time.
pub(crate) fn copy_bandwidth(copy: &CopyTime) -> String {
    // converting a float to an integer saturates
    copy.bandwidth().map_or_else(|| "-".to_owned(), |rate| format!("{}/s", bytes(rate as u64)))
}

pub(crate) fn range_name(range: &RangeTime) -> String {
    match &range.domain {
        Some(domain) => format!("{domain}: {}", range.name),
        None => range.name.to_string(),
    }
}

/// What is special about the agent of a process: why it does not collect, or that it records nodes of graphs although
/// that was not asked for.
pub(crate) fn agent(agent: &AgentSummary) -> Option<String> {
    let state = Collection::from_word(agent.state)?;
    let who = format!("{} {}", agent.tgid, agent.process);
    if matches!(state, Collection::Refused | Collection::LetGo | Collection::Failed) {
        let collected = match agent.covered_ns {
            0 => String::new(),
            ns => format!(" (they were for {})", duration(ns)),
        };
        return Some(format!("{who}: {}{collected}: {}", agent_text::sentence(state), agent.text));
    }
    (agent.graphs == GraphRecords::NodesOfRunning.as_str()).then(|| {
        format!(
            "{who}: the nodes of CUDA graphs were recorded: graphs from before cannot be recorded as a whole"
        )
    })
}
