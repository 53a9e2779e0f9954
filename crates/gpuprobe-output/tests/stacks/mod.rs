//! Threads of processes, as text and JSON.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod sampled_processes;

use gpuprobe_analysis::{GpuStates, NcclStatus, ProcessThreads, SampledProcess, StacksReport, ThreadStack};
use gpuprobe_event::Tgid;
use gpuprobe_output::{Architecture, StacksOptions, stacks, stacks_json};

use super::check;
use sampled_processes::{Random, asleep, native, recent_xids, sampled, states};

const OPTIONS: StacksOptions = StacksOptions { width: 100, architecture: Architecture::X86_64 };

#[test]
fn the_threads_of_a_job_and_of_a_server() {
    let mut report = StacksReport::build(sampled(), false);
    report.nccl = vec![NcclStatus {
        address: "127.0.0.1:28028".to_owned(),
        text: "Job summary\n\n  #0  missing rank 3\x1b".to_owned(),
        is_cut: true,
    }];
    report.xids = recent_xids();
    let text = stacks(&report, &states(), &OPTIONS);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    check("stacks.txt", &text);
    check("stacks.json", &stacks_json(&report, &states(), 1_733_143_016.25, Architecture::X86_64));
}

#[test]
fn all_threads_without_figures_of_gpus() {
    let report = StacksReport::build(sampled().split_off(7), true);
    check("stacks_all_threads.txt", &stacks(&report, &GpuStates::default(), &OPTIONS));
}

#[test]
fn no_process() {
    let (report, none) = (StacksReport::default(), GpuStates::default());
    assert_eq!(stacks(&report, &none, &OPTIONS), "no process uses a GPU\n");
    let object: serde_json::Value =
        serde_json::from_str(&stacks_json(&report, &none, 0.0, Architecture::Aarch64)).unwrap();
    assert_eq!(object["processes"], serde_json::json!([]));
}

#[test]
fn a_hundred_thousand_threads_are_bounded() {
    const THREADS: u32 = 100_000;
    let deep = |tid: u32| ThreadStack {
        frames: (0..tid % 9).map(|depth| native(&format!("f{}", tid % 700 + depth), "app")).collect(),
        ..ThreadStack::default()
    };
    let threads = (1..=THREADS).map(|tid| asleep(tid, "t", deep(tid))).collect();
    let process = SampledProcess { tgid: Tgid(1), threads, ..SampledProcess::default() };
    let report = StacksReport::build(vec![process], true);
    let text = stacks(&report, &GpuStates::default(), &OPTIONS);
    assert!(text.lines().count() < 2500, "{}", text.lines().count());
    let json = stacks_json(&report, &GpuStates::default(), 0.0, Architecture::X86_64);
    let object: serde_json::Value = serde_json::from_str(&json).unwrap();
    let process = &object["processes"][0];
    let groups = process["groups"].as_array().unwrap();
    let shown: u64 = groups.iter().map(|group| group["threads"].as_u64().unwrap()).sum();
    assert_eq!(shown + process["other_threads"].as_u64().unwrap(), u64::from(THREADS));
}

#[test]
fn any_samples_can_be_shown() {
    let mut random = Random(7);
    for _ in 0..300 {
        let processes: Vec<SampledProcess> = (0..random.below(12)).map(|_| random.process()).collect();
        let threads = processes.iter().map(|p| p.threads.len() as u64 + p.exited_threads).sum::<u64>();
        let mut report = StacksReport::build(processes, random.below(2) == 0);
        report.xids = recent_xids();
        let shown = |process: &ProcessThreads| {
            let grouped: u64 = process.groups.iter().map(|group| group.count).sum();
            assert_eq!(grouped + process.hidden_threads + process.other_threads, process.threads);
            process.threads + process.exited_threads
        };
        assert_eq!(report.processes.iter().map(shown).sum::<u64>(), threads);
        for job in &report.jobs {
            assert_eq!(job.common_count + job.differing.len(), job.processes.len());
        }
        let options = StacksOptions { width: random.below(200) as usize, ..OPTIONS };
        let text = stacks(&report, &states(), &options);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
        let json = stacks_json(&report, &states(), 0.0, Architecture::Aarch64);
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }
}
