//! The threads of GPU processes for programs: one JSON object on one line.

use gpuprobe_analysis::{
    Activity, CpuShares, DifferingProcess, GpuStates, Job, LastOperation, ProcessThreads, RecentXids,
    StacksReport, ThreadGroup,
};
use gpuprobe_event::Frame;
use serde_json::{Value, json};

use super::job_sentence::sentence;
use super::process_gpus::{self, ProcessGpu};
use super::process_xids::{self, ShownXids};
use super::system_calls::{self, Architecture};
use super::thread_text::open_call;
use crate::gpu_op_text;
use crate::memory_json::seconds;

/// The report as a line of JSON, with its line feed.
pub fn stacks_json(
    report: &StacksReport,
    states: &GpuStates,
    unix_seconds: f64,
    architecture: Architecture,
) -> String {
    let one = |process| one_process(process, states, &report.xids, architecture);
    let processes = report.processes.iter().map(one);
    let object = json!({
        "unix": unix_seconds,
        "jobs": report.jobs.iter().map(job).collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
        "nccl": report.nccl,
        "xids_problem": report.xids.problem,
    });
    format!("{object}\n")
}

fn job(job: &Job) -> Value {
    json!({
        "command": job.command,
        "sentence": sentence(job),
        "pids": job.processes,
        "common": activity(&job.common),
        "common_processes": job.common_count,
        "differing": job.differing.iter().map(differing).collect::<Vec<_>>(),
    })
}

fn differing(process: &DifferingProcess) -> Value {
    let mut value = activity(&process.activity);
    value["pid"] = json!(process.tgid);
    value["rank"] = json!(process.rank.as_ref().map(|rank| rank.number));
    value["rank_variable"] = json!(process.rank.as_ref().map(|rank| &rank.variable));
    value
}

fn activity(activity: &Activity) -> Value {
    json!({
        "verdict": activity.verdict,
        "api": activity.api,
        "function": activity.function,
        "place": activity.place,
    })
}

fn one_process(
    process: &ProcessThreads,
    states: &GpuStates,
    recent: &RecentXids,
    architecture: Architecture,
) -> Value {
    let gpus = process_gpus::of_process(process, states);
    let xids = process_xids::of_process(process, &gpus, states, recent);
    json!({
        "pid": process.tgid,
        "process": process.name,
        "command": process.command,
        "container": process.container,
        "age_seconds": process.age_ns.map(seconds),
        "rank": process.rank.as_ref().map(|rank| rank.number),
        "rank_variable": process.rank.as_ref().map(|rank| &rank.variable),
        "gpus": gpus.iter().map(gpu).collect::<Vec<_>>(),
        "xids": xids.iter().map(ShownXids::json).collect::<Vec<_>>(),
        "streams": process.streams.iter().map(stream).collect::<Vec<_>>(),
        "groups": process.groups.iter().map(|threads| group(threads, architecture)).collect::<Vec<_>>(),
        "same_as": process.same_as,
        "threads": process.threads,
        "hidden_threads": process.hidden_threads,
        "other_threads": process.other_threads,
        "exited_threads": process.exited_threads,
        "python_problem": process.python_problem,
        "problem": process.problem,
    })
}

fn gpu(gpu: &ProcessGpu) -> Value {
    json!({
        "gpu": gpu.gpu,
        "busy_percent": gpu.busy_percent,
        "busy_percent_by_process": gpu.busy_percent_by_process,
    })
}

fn stream(last: &LastOperation) -> Value {
    json!({
        "stream": gpu_op_text::stream(last.stream),
        "operation": last.operation,
        "age_seconds": seconds(last.age_ns),
    })
}

fn group(group: &ThreadGroup, architecture: Architecture) -> Value {
    let share = |of: fn(CpuShares) -> f64| group.cpu.map(of);
    json!({
        "tids": group.tids,
        "threads": group.count,
        "name": group.name,
        "main": group.is_main,
        "verdict": group.verdict,
        "function": group.function,
        "open_call": open_call(group),
        "age_seconds": group.age_ns.map(seconds),
        "state": group.state,
        "system_call": group.system_call.and_then(|number| system_calls::name(number, architecture)),
        "system_call_number": group.system_call,
        "wait_channel": group.wait_channel,
        "least_cpu_share": share(|cpu| cpu.least),
        "most_cpu_share": share(|cpu| cpu.most),
        "stack": group.stack.frames.iter().map(frame).collect::<Vec<_>>(),
        "incomplete": group.stack.incomplete,
        "torn": group.stack.is_torn,
    })
}

fn frame(frame: &Frame) -> Value {
    json!({
        "text": frame.to_string(),
        "function": frame.function,
        "file": frame.file,
        "line": frame.line,
        "module": frame.module,
        "python": frame.python,
    })
}
