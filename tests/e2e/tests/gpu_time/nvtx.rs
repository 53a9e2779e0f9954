//! NVTX ranges of a program: each is in the trace once, around the calls that the program made in it.

use std::collections::{BTreeMap, BTreeSet};

use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Outcome, Recording, Run, bpf_test, fixtures};
use gpuprobe_event::{Call, RangeEvent, Tid};
use gpuprobe_standin::Cuda;

const THREADS: usize = 3;
const ROUNDS: usize = 20;

/// Name, domain, kind and color.
type Key = (String, String, String, u64);

fn run() -> Outcome {
    let standins = fixtures::standins(Cuda::Cuda12);
    let (threads, rounds) = (THREADS.to_string(), ROUNDS.to_string());
    let run = Run::new(standins.workload("nvtx_ranges")).options(&["--gpu-time"]);
    let run = run.args(&["--threads", &threads, "--rounds", &rounds]);
    let outcome = run.env("LD_LIBRARY_PATH", &standins.dir).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    outcome
}

/// What the program says it has made.
fn made(outcome: &Outcome) -> BTreeMap<Key, u64> {
    let lines = outcome.finished.json();
    assert_eq!(lines[0]["attached"], true, "{}", outcome.finished.stderr);
    let text = |line: &serde_json::Value, name: &str| line[name].as_str().unwrap().to_owned();
    let key = |line| (text(line, "name"), text(line, "domain"), text(line, "kind"), number(&line["color"]));
    lines[1..].iter().map(|line| (key(line), number(&line["count"]))).collect()
}

fn recorded(trace: &Recording) -> BTreeMap<Key, u64> {
    let mut counts = BTreeMap::new();
    for range in &trace.ranges {
        let domain = range.domain.as_deref().unwrap_or_default().to_owned();
        let key = (range.name.to_string(), domain, range.kind.as_str().to_owned(), u64::from(range.color));
        *counts.entry(key).or_default() += 1;
    }
    counts
}

/// The ranges of this name of a thread, in order.
fn of<'t>(trace: &'t Recording, name: &str, tid: Tid) -> Vec<&'t RangeEvent> {
    let mut ranges: Vec<_> =
        trace.ranges.iter().filter(|range| *range.name == *name && range.tid == tid).collect();
    ranges.sort_by_key(|range| range.start_ns);
    assert_eq!(ranges.len(), ROUNDS, "{name} of {tid:?}");
    ranges
}

fn is_around(outer: &RangeEvent, times: (u64, u64)) -> bool {
    outer.start_ns <= times.0 && times.1 <= outer.end_ns
}

/// Checks the rounds of a thread: in each are two launches, and it overlaps with no other one.
fn assert_rounds(trace: &Recording, tid: Tid) {
    let mut launches: Vec<&Call> =
        trace.calls.iter().filter(|call| call.tid == tid && *call.name == *"cuLaunchKernel").collect();
    launches.sort_by_key(|call| call.start_ns);
    let launches: Vec<(u64, u64)> =
        launches.iter().map(|call| (call.start_ns, call.start_ns + call.duration_ns().unwrap())).collect();
    assert_eq!(launches.len(), 2 * ROUNDS);
    let [steps, fetches, forward, backward, marks, batches] =
        ["step", "fetch", "vorwärts", "backward", "half", "batch"].map(|name| of(trace, name, tid));
    let times = |range: &RangeEvent| (range.start_ns, range.end_ns);
    for round in 0..ROUNDS {
        let (step, fetch, inner, mark) = (steps[round], fetches[round], forward[round], marks[round]);
        let (first, second) = (launches[2 * round], launches[2 * round + 1]);
        assert!(is_around(step, first) && first.1 <= fetch.start_ns, "{step:?} {first:?} {fetch:?}");
        assert!(is_around(inner, second), "{inner:?} {second:?}");
        assert!(is_around(step, times(inner)) && is_around(fetch, times(inner)), "{step:?} {inner:?}");
        assert!(inner.end_ns <= mark.start_ns && mark.start_ns == mark.end_ns, "{inner:?} {mark:?}");
        let last = backward[round];
        assert!(mark.end_ns <= last.start_ns && is_around(step, times(last)), "{mark:?} {last:?}");
        // it ends in the domain after the step around it
        assert!(step.end_ns <= fetch.end_ns && fetch.end_ns <= batches[round].start_ns, "{step:?} {fetch:?}");
        let next = steps.get(round + 1).map_or(u64::MAX, |next| next.start_ns);
        assert!(batches[round].start_ns <= next, "{:?} {next}", batches[round]);
    }
}

#[bpf_test]
fn every_range_is_around_the_calls_that_were_made_in_it() {
    let outcome = run();
    let trace = &outcome.trace;
    assert_eq!(recorded(trace), made(&outcome));
    let pid = pid_of(&outcome.finished.json()[0]);
    assert!(trace.ranges.iter().all(|range| range.tgid.0 == pid && range.start_ns <= range.end_ns));
    let threads: BTreeSet<Tid> = trace.ranges.iter().map(|range| range.tid).collect();
    assert_eq!(threads.len(), THREADS);
    threads.iter().for_each(|tid| assert_rounds(trace, *tid));
    // ranges that the program ends in another thread end after everything that their own thread does
    let last = trace.calls.iter().filter(|call| threads.contains(&call.tid)).map(|call| call.start_ns).max();
    assert!(trace.ranges.iter().filter(|it| &*it.name == "batch").any(|it| Some(it.end_ns) > last));
}

/// Executions count in the innermost range of the thread that submitted them.
#[bpf_test]
fn gpu_time_is_grouped_by_range() {
    let outcome = run();
    let (_, table) = outcome.finished.stderr.split_once("\nNVTX range ").unwrap();
    let row = |name: &str| {
        let found = table.lines().find_map(|line| line.trim_start().strip_prefix(name));
        let cells: Vec<_> =
            found.unwrap_or_else(|| panic!("no {name}: {table}")).split_whitespace().collect();
        [0, 1].map(|at| cells[at].parse::<usize>().unwrap())
    };
    let all = THREADS * ROUNDS;
    assert_eq!(row("step "), [all, all], "one launch is in the inner range");
    assert_eq!(row("vorwärts "), [all, all]);
    assert_eq!(row("backward "), [all, 0]);
}
