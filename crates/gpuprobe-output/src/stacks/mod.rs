//! The threads of GPU processes, for people and for programs: where each one is, and whether it is stuck.

mod job_sentence;
mod process_gpus;
mod process_text;
mod process_xids;
mod stacks_json;
mod system_calls;
mod thread_text;

use gpuprobe_analysis::{GpuStates, NcclStatus, StacksReport};

pub use stacks_json::stacks_json;
pub use system_calls::Architecture;

use crate::units::{fitted, printable};

/// Columns of a command before the sentence about its job.
const JOB_COLUMNS: usize = 60;

/// How threads are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StacksOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// The processor of the threads.
    pub architecture: Architecture,
}

/// The report as text: a sentence about each job, then the processes with their threads.
pub fn stacks(report: &StacksReport, states: &GpuStates, options: &StacksOptions) -> String {
    let mut out = String::new();
    for job in &report.jobs {
        // one job need not be distinguished from others
        if report.jobs.len() > 1 {
            out += &format!("{}: ", fitted(&printable(&job.command), JOB_COLUMNS));
        }
        out += &job_sentence::sentence(job);
        out.push('\n');
    }
    for process in &report.processes {
        if !out.is_empty() {
            out.push('\n');
        }
        process_text::process(&mut out, process, states, &report.xids, options);
    }
    for status in &report.nccl {
        nccl(&mut out, status);
    }
    if report.processes.is_empty() {
        out.push_str("no process uses a GPU\n");
    }
    out
}

/// The status of a job as NCCL reports it.
fn nccl(out: &mut String, status: &NcclStatus) {
    *out += &format!("\nNCCL's RAS service at {}:\n", printable(&status.address));
    for line in status.text.lines() {
        *out += format!("  {}", printable(line)).trim_end();
        out.push('\n');
    }
    if status.is_cut {
        out.push_str("  (the end of its answer is missing)\n");
    }
}
