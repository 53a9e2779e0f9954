//! Samples the threads of processes, and adds what /proc says about the processes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_analysis::threads::sample::{Rank, SampledProcess, SampledThread};
use gpuprobe_capture::{SampledThreads, ThreadSampler};
use gpuprobe_discover::{container_of, open_gpus, rank_of};
use gpuprobe_event::Tgid;

const PROC: &str = "/proc";
/// The time between two samples.
const BETWEEN: Duration = Duration::from_millis(250);

/// Samples these processes this often.
pub(crate) fn sample(
    sampler: &mut ThreadSampler,
    processes: &[Tgid],
    samples: u32,
) -> Result<Vec<SampledProcess>> {
    let begin = Instant::now();
    for round in 0..samples {
        let due = BETWEEN * round;
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        sampler.sample(processes)?;
    }
    Ok(sampler.finish().into_iter().map(process).collect())
}

fn process(sampled: SampledThreads) -> SampledProcess {
    let (tgid, proc_root) = (sampled.tgid, Path::new(PROC));
    let rank = rank_of(proc_root, tgid.0);
    let threads = sampled.threads.into_iter().map(|(tid, name, samples)| SampledThread {
        tid,
        name,
        samples,
        open_call: None,
        open_call_age_ns: None,
    });
    SampledProcess {
        tgid,
        name: text(tgid, "comm"),
        command: text(tgid, "cmdline"),
        container: container_of(proc_root, tgid.0),
        rank: rank.map(|(variable, number)| Rank { variable: variable.to_owned(), number }),
        gpus: open_gpus(proc_root, tgid.0),
        threads: threads.collect(),
        exited_threads: sampled.exited,
        python_problem: sampled.python_problem,
        problem: sampled.problem,
        streams: Vec::new(),
    }
}

/// A text of /proc; the words of a command line are joined by spaces.
fn text(tgid: Tgid, file: &str) -> String {
    let bytes = fs::read(format!("{PROC}/{tgid}/{file}")).unwrap_or_default();
    let bytes: Vec<u8> = bytes.into_iter().map(|byte| if byte == 0 { b' ' } else { byte }).collect();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}
