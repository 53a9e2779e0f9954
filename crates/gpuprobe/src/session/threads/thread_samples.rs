//! Samples the threads of processes, and adds what /proc says about the processes.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_analysis::threads::sample::{SampledProcess, SampledThread};
use gpuprobe_capture::{SampledThreads, ThreadSampler};
use gpuprobe_discover::{CONTAINER_LOGS, container_of, open_gpus, origin_of, pod_of};
use gpuprobe_event::{Call, Container, Frame, HostGpu, Tgid};

use crate::session::host::rank::rank;

const PROC: &str = "/proc";
/// The time between two samples.
const BETWEEN: Duration = Duration::from_millis(250);

/// Samples these processes this often, on a host with these GPUs.
pub(crate) fn sample(
    sampler: &mut ThreadSampler,
    processes: &[Tgid],
    samples: u32,
    gpus: &[HostGpu],
) -> Result<Vec<SampledProcess>> {
    let mut begin = Instant::now();
    for round in 0..samples {
        let due = BETWEEN * round;
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        sampler.sample(processes)?;
        // a later watch would see too little
        if round <= samples / 3 && samples > 1 {
            sampler.watch_returns();
        }
        if round == 0 {
            // names are read for the first time, which may take longer than all other rounds
            begin = Instant::now();
        }
    }
    Ok(sampler.finish().into_iter().map(|sampled| process(sampled, gpus)).collect())
}

/// Calls that have not returned, as probes saw them begin.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls {
    pub(crate) calls: Vec<Call>,
    /// When they were read, on the clock of their start.
    pub(crate) now_ns: u64,
}

impl OpenCalls {
    /// Adds to each thread its outermost open call.
    pub(crate) fn add_to(&self, sampled: &mut [SampledProcess]) {
        let outermost = self.calls.iter().filter(|call| call.parent.is_none());
        let by_thread: HashMap<_, _> = outermost.map(|call| ((call.tgid, call.tid), call)).collect();
        for process in sampled {
            for thread in &mut process.threads {
                // the call may have returned since
                let stack = thread.samples.last().map(|sample| &sample.stack);
                let is_on_stack = |call: &&&Call| {
                    stack.is_some_and(|stack| {
                        let is_it = |frame: &Frame| frame.function.as_deref() == Some(&*call.name);
                        stack.frames.iter().any(is_it) || stack.incomplete.is_some()
                    })
                };
                let call = by_thread.get(&(process.tgid, thread.tid)).filter(is_on_stack);
                thread.open_call = call.map(|call| (*call).clone());
                thread.open_call_age_ns = call.map(|call| self.now_ns.saturating_sub(call.start_ns));
            }
        }
    }
}

fn process(sampled: SampledThreads, gpus: &[HostGpu]) -> SampledProcess {
    let (tgid, proc_root) = (sampled.tgid, Path::new(PROC));
    let origin = origin_of(proc_root, tgid.0);
    let threads = sampled.threads.into_iter().map(|thread| SampledThread {
        tid: thread.tid,
        name: thread.name,
        samples: thread.samples,
        open_call: None,
        open_call_age_ns: None,
        has_returned: thread.has_returned,
    });
    SampledProcess {
        tgid,
        name: text(tgid, "comm"),
        command: text(tgid, "cmdline"),
        container: container_of(proc_root, tgid.0).map(shown),
        parent: origin.map(|origin| Tgid(origin.parent)),
        session: origin.map(|origin| origin.session),
        age_ns: origin.and_then(|origin| u64::try_from(origin.age.as_nanos()).ok()),
        rank: rank(tgid),
        gpus: open_gpus(proc_root, tgid.0).into_iter().map(|minor| number_of(minor, gpus)).collect(),
        threads: threads.collect(),
        exited_threads: sampled.exited,
        python_problem: sampled.python_problem,
        problem: sampled.problem,
        streams: Vec::new(),
    }
}

/// The host's number of the GPU whose device file has this number; the latter if the GPU is not listed.
fn number_of(minor: u32, gpus: &[HostGpu]) -> u32 {
    let listed = gpus.iter().find(|gpu| gpu.minor == Some(minor));
    listed.map_or(minor, |gpu| gpu.index.into())
}

/// The container as it is shown elsewhere.
fn shown(id: String) -> String {
    let pod = pod_of(Path::new(CONTAINER_LOGS), &id);
    Container { id, pod }.shown()
}

/// A text of /proc; the words of a command line are joined by spaces.
fn text(tgid: Tgid, file: &str) -> String {
    let bytes = fs::read(format!("{PROC}/{tgid}/{file}")).unwrap_or_default();
    let bytes: Vec<u8> = bytes.into_iter().map(|byte| if byte == 0 { b' ' } else { byte }).collect();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}
