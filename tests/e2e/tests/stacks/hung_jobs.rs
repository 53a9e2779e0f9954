//! Processes of one job: a sentence names the one that differs.

use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::sampled::{FOR_EVER, Started, library, line_of, list, stacks};
use gpuprobe_e2e::{bpf_test, python};
use gpuprobe_standin::{Cuda, Library};
use serde_json::{Value, json};

const SCRIPT: &str = "job_rank.py";
const RANKS: u32 = 8;

/// A job of which this rank, if any, is one collective behind. This variable has the number of each process.
fn job(variable: &str, behind: Option<u32>) -> Vec<Started> {
    let runtime = shown(library(Library::Runtime(Cuda::Cuda12)));
    let behind = behind.map_or_else(|| "none".to_owned(), |rank| rank.to_string());
    let wait = format!("STANDIN_WAIT=ncclAllReduce:{FOR_EVER},cuStreamSynchronize:{FOR_EVER}");
    let start = |rank: u32| {
        let environment = [&*wait, &format!("{variable}={rank}")];
        Started::python(&python::newest().path, SCRIPT, Library::Nccl, &[&runtime, &behind], &environment)
    };
    (0..RANKS).map(start).collect()
}

/// What is said about the job, and the order of the processes.
fn reported(job: &[Started]) -> (Value, Vec<u32>) {
    let pids: Vec<String> = job.iter().map(|process| process.pid.to_string()).collect();
    let options: Vec<&str> = pids.iter().flat_map(|pid| ["-d", pid]).collect();
    let (report, _) = stacks(&options);
    let [reported] = list(&report["jobs"]) else { panic!("{report}") };
    let order = list(&report["processes"]).iter().map(|process| process["pid"].as_u64().unwrap() as u32);
    (reported.clone(), order.collect())
}

#[bpf_test]
fn the_rank_that_is_behind_is_named_and_comes_first() {
    let job = job("RANK", Some(3));
    let (reported, order) = reported(&job);
    let behind = job[3].pid;
    let line = line_of(&python::script(SCRIPT), "runtime.cudaStreamSynchronize(None)");
    let sentence = format!(
        "7 of 8 wait in ncclAllReduce; rank 3 (pid {behind}) is in cudaStreamSynchronize, {SCRIPT}:{line}"
    );
    assert_eq!(reported["sentence"], sentence);
    assert_eq!(reported["common_processes"], 7);
    let pids: Vec<u32> = job.iter().map(|process| process.pid).collect();
    assert_eq!(reported["pids"], json!(pids));
    let differing = &list(&reported["differing"])[0];
    assert_eq!((&differing["pid"], &differing["rank"]), (&json!(behind), &json!(3)));
    let others = pids.iter().copied().filter(|pid| *pid != behind);
    assert_eq!(order, [behind].into_iter().chain(others).collect::<Vec<_>>());
}

#[bpf_test]
fn ranks_that_wait_for_each_other_are_one_sentence() {
    let job = job("RANK", None);
    let line = line_of(&python::script(SCRIPT), "nccl.ncclAllReduce(");
    let sentence = format!("8 of 8 wait in ncclAllReduce, {SCRIPT}:{line}");
    assert_eq!(reported(&job).0["sentence"], sentence);
}

#[bpf_test]
fn processes_of_one_command_are_compared_without_ranks() {
    let job = job("NUMBER", Some(3));
    let (reported, order) = reported(&job);
    let behind = job[3].pid;
    let line = line_of(&python::script(SCRIPT), "runtime.cudaStreamSynchronize(None)");
    let sentence =
        format!("7 of 8 wait in ncclAllReduce; pid {behind} is in cudaStreamSynchronize, {SCRIPT}:{line}");
    assert_eq!(reported["sentence"], sentence);
    let differing = &list(&reported["differing"])[0];
    assert_eq!((&differing["pid"], &differing["rank"]), (&json!(behind), &Value::Null));
    assert_eq!(order[0], behind);
}
