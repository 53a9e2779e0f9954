//! The section about GPUs: a line for each, and one for each process on it.

use gpuprobe_analysis::gpu_state::{GpuUser, IndexedGpu};
use gpuprobe_analysis::{GpuStates, Snapshot};
use gpuprobe_event::GpuState;
use gpuprobe_event::gpu_state::{Clock, THROTTLE_REASONS};

use super::process_lines::{line, process_line};
use crate::units::{bytes, fitted, printable};

const UNEXPLAINED: &str =
    "(unexplained: the context, code of kernels, libraries' own, managed memory, all from before the probes)";

/// The GPUs of the processes whose memory was compared with the calls that were seen, as lines of this width. Empty
/// if NVML reports none of them.
pub fn gpus_compared(snapshot: &Snapshot, width: usize) -> String {
    let mut states = snapshot.gpu_states.clone();
    states.users.retain(|user| user.seen_bytes.is_some());
    let is_used = |gpu: &IndexedGpu| states.users.iter().any(|user| user.gpu == gpu.gpu);
    states.gpus.retain(is_used);
    let mut out = String::new();
    section(&mut out, snapshot, &states);
    let spaced = out.replace('\t', "  ");
    spaced.lines().flat_map(|line| [fitted(line, width), "\n".into()]).collect()
}

pub(super) fn gpus(out: &mut String, snapshot: &Snapshot) {
    section(out, snapshot, &snapshot.gpu_states);
}

/// Writes nothing if NVML reports no GPU.
fn section(out: &mut String, snapshot: &Snapshot, states: &GpuStates) {
    if states.gpus.is_empty() {
        return;
    }
    out.push_str("GPUs:\n");
    for gpu in &states.gpus {
        line(out, format_args!("{}", headed(gpu)));
        for user in states.users.iter().filter(|user| user.gpu == gpu.gpu) {
            let unprobed = || format!("process {} ({})", user.pid, printable(&user.name));
            let process = snapshot.running(user.pid).map_or_else(unprobed, process_line);
            line(out, format_args!("\t{process}: {}", used(user)));
        }
    }
    if states.users.iter().any(|user| user.unexplained_bytes().is_some_and(|bytes| bytes > 0)) {
        line(out, format_args!("{UNEXPLAINED}"));
    }
    out.push('\n');
}

/// The line of a GPU: number, model, and the values that NVML reports.
fn headed(gpu: &IndexedGpu) -> String {
    let name = format!("GPU {} ({})", gpu.gpu, printable(&gpu.state.id.name));
    let known = known(&gpu.state);
    if known.is_empty() { name } else { format!("{name}: {}", known.join(", ")) }
}

fn known(gpu: &GpuState) -> Vec<String> {
    let watts = |mw: u32| f64::from(mw) / 1000.0;
    let power = gpu.power_mw.map(|mw| match gpu.power_limit_mw {
        Some(limit) => format!("{:.1} of {:.1} W", watts(mw), watts(limit)),
        None => format!("{:.1} W", watts(mw)),
    });
    let memory = gpu.memory.map(|m| format!("memory {} of {}", bytes(m.used_bytes), bytes(m.total_bytes)));
    let clocks = Clock::ALL.into_iter().zip(gpu.clocks_mhz);
    // the SM clock nearly always equals the graphics clock, so only one of them is shown
    let clocks = clocks.filter(|(clock, _)| matches!(clock, Clock::Sm | Clock::Memory));
    let clocks = clocks.filter_map(|(clock, mhz)| Some(format!("{} {} MHz", clock.as_str(), mhz?)));
    let busy = gpu.busy_percent.map(|percent| format!("busy {percent}%"));
    let celsius = gpu.celsius.map(|celsius| format!("{celsius} C"));
    [busy, memory, celsius, power].into_iter().flatten().chain(clocks).chain(throttled(gpu)).collect()
}

/// Why the clocks are low, unless the GPU is idle.
fn throttled(gpu: &GpuState) -> Option<String> {
    let bits = gpu.throttled?;
    let reasons = THROTTLE_REASONS.iter().filter(|(reason, bit)| bits & bit != 0 && *reason != "gpu_idle");
    let reasons: Vec<&str> = reasons.map(|(reason, _)| *reason).collect();
    (!reasons.is_empty()).then(|| format!("throttled by {}", reasons.join(" and ")))
}

fn used(user: &GpuUser) -> String {
    let busy = user.busy_percent.map(|[sm, ..]| format!(", busy {sm}%")).unwrap_or_default();
    let Some(memory) = user.memory_bytes else { return format!("memory unknown{busy}") };
    let above = user.seen_above_bytes().filter(|bytes| *bytes > 0);
    let seen = match (user.seen_bytes, user.unexplained_bytes(), above) {
        (Some(seen), _, Some(above)) => {
            format!(", {} seen by calls, {} more than that", bytes(seen), bytes(above))
        }
        (Some(seen), Some(rest), None) => {
            format!(", {} seen by calls, {} unexplained", bytes(seen), bytes(rest))
        }
        _ => String::new(),
    };
    format!("{}{seen}{busy}", bytes(memory))
}
