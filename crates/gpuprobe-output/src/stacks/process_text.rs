//! A process: one line about it, and then its threads.

use gpuprobe_analysis::{GpuStates, ProcessThreads, RecentXids};

use super::StacksOptions;
use super::job_sentence::rank;
use super::process_gpus::{self, ProcessGpu};
use super::process_xids;
use super::thread_text::{group, how_long};
use crate::gpu_op_text::stream;
use crate::memory_view::line;
use crate::units::{count, fitted, printable};

/// Streams shown per process; the others are counted.
const MOST_STREAMS: usize = 8;
/// The smallest width of the command.
const LEAST_COMMAND: usize = 24;

pub(super) fn process(
    out: &mut String,
    process: &ProcessThreads,
    states: &GpuStates,
    recent: &RecentXids,
    options: &StacksOptions,
) {
    let gpus = process_gpus::of_process(process, states);
    head(out, process, &gpus, options.width);
    for xids in process_xids::of_process(process, &gpus, states, recent) {
        line(out, format_args!("  {}", xids.text()));
    }
    streams(out, process);
    for threads in &process.groups {
        group(out, threads, process.same_as, options);
    }
    rest(out, process);
}

/// `Process 31 (rank 3, GPU 3 busy 100%, in pod/trainer): python train.py`
fn head(out: &mut String, process: &ProcessThreads, gpus: &[ProcessGpu], width: usize) {
    let rank = process.rank.iter().map(rank);
    let gpus = gpus.iter().map(|gpu| match gpu.busy_percent {
        Some(percent) => format!("GPU {} busy {percent}%", gpu.gpu),
        None => format!("GPU {}", gpu.gpu),
    });
    let container = process.container.iter().map(|container| format!("in {}", printable(container)));
    let known: Vec<String> = rank.chain(gpus).chain(container).collect();
    let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
    let begin = format!("Process {}{known}: ", process.tgid);
    let command = if process.command.is_empty() { &process.name } else { &process.command };
    let room = width.saturating_sub(begin.chars().count()).max(LEAST_COMMAND);
    line(out, format_args!("{begin}{}", fitted(&printable(command.trim_end()), room)));
}

fn streams(out: &mut String, process: &ProcessThreads) {
    for last in process.streams.iter().take(MOST_STREAMS) {
        let (stream, operation) = (stream(last.stream), printable(&last.operation));
        line(out, format_args!("  {stream}: {operation}, {} ago", how_long(last.age_ns)));
    }
    let others = process.streams.len().saturating_sub(MOST_STREAMS) as u64;
    if others > 0 {
        line(out, format_args!("  {} with earlier operations", count(others, "stream", "streams")));
    }
}

/// What is not shown, and why.
fn rest(out: &mut String, process: &ProcessThreads) {
    let threads = |number: u64| (number > 0).then(|| count(number, "thread", "threads"));
    let hidden = threads(process.hidden_threads).map(|n| format!("{n} outside of GPU calls not shown"));
    let other = threads(process.other_threads).map(|n| format!("{n} with other stacks not shown"));
    let exited = threads(process.exited_threads).map(|n| format!("{n} exited meanwhile"));
    let python = process.python_problem.as_ref().map(|why| format!("no Python frames: {}", printable(why)));
    let problem = process.problem.as_ref().map(|why| format!("stacks are missing: {}", printable(why)));
    for text in [hidden, other, exited, python, problem].into_iter().flatten() {
        line(out, format_args!("  {text}"));
    }
}
