//! Processes that run already, with the agent loaded. More recordings of one process:
//!
//!     GPUPROBE_RECORDINGS=1000 cargo test --workspace --test gpu_time running:: -- --nocapture

use std::thread::sleep;
use std::time::Duration;

use gpuprobe_e2e::cupti_ledger::{assert_submissions, named_at_another_time};
use gpuprobe_e2e::process::{PATIENCE, until};
use gpuprobe_e2e::{Recording, bpf_test};
use gpuprobe_event::ExecutionKind;
use gpuprobe_event::agent::{Collection, GraphRecords};
use nix::sys::signal::Signal;

use crate::work::{Work, assert_recorded, collections, lost, options, record};

#[bpf_test(tiers)]
fn a_process_is_recorded_from_the_moment_it_is_asked_until_it_exits(tier: &str) {
    let work = Work::new(&["--threads", "1", "--operations", "500", "--wait"]);
    let (mut program, trace) = (work.start(), work.at("trace.jsonl"));
    let mut recorder = record(&program, &options(tier, "--gpu-time"), &trace);
    work.until_collecting(true);
    until(PATIENCE, "its functions are probed", || {
        recorder.stderr().contains("gpuprobe: tracing").then_some(())
    });
    work.finish(&mut program);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    let trace = Recording::read(&trace);
    trace.assert_ended();
    assert_eq!(collections(&trace), [Collection::Collecting]);
    assert_eq!(trace.agent_states[0].graphs, GraphRecords::NodesOfRunning);
    assert_eq!(work.ledger().assert_equal(&trace), 450 + 50 * 4);
    assert_eq!(assert_submissions(&trace), 0, "calls without executions");
}

#[bpf_test(tiers)]
fn only_what_is_submitted_while_it_is_recorded_is_collected(tier: &str) {
    let work = Work::new(&["--threads", "1", "--pause", "500", "--until-line"]);
    let (mut program, trace) = (work.start(), work.at("trace.jsonl"));
    sleep(Duration::from_millis(300));
    assert_eq!((work.ledger().records.len(), work.ledger().changes.len()), (0, 0), "nothing is attached");
    let mut recorder = record(&program, &options(tier, "--gpu-time"), &trace);
    work.until_collecting(true);
    sleep(Duration::from_secs(1));
    recorder.signal(Signal::SIGINT);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    work.until_collecting(false);
    let collected = work.ledger().records.len();
    sleep(Duration::from_millis(300));
    work.finish(&mut program);
    assert_eq!(work.ledger().records.len(), collected, "after gpuprobe has ended");

    let mut trace = Recording::read(&trace);
    assert!(trace.executions.iter().all(|it| it.kind != ExecutionKind::Graph), "they existed before");
    assert!(assert_recorded(&work.ledger(), &trace) > 100, "hardly anything was collected");
    // the agent may begin a moment before the functions are probed
    let probed_ns = trace.calls.iter().map(|call| call.start_ns).min().unwrap();
    trace.executions.retain(|it| it.start_ns > probed_ns);
    assert_submissions(&trace);
}

#[bpf_test]
fn a_process_that_was_recorded_many_times_is_recorded_exactly() {
    let rounds: u64 = std::env::var("GPUPROBE_RECORDINGS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let work = Work::new(&["--threads", "2", "--pause", "1000", "--until-line"]);
    let mut program = work.start();
    for round in 0..rounds {
        // some end before the agent has noticed
        let duration = format!("{}ms", 20 + round * 37 % 200);
        let options = ["--duration", &duration, "-e", "cuLaunchKernel", "--gpu-time"];
        let mut recorder = record(&program, &options, &work.at(&format!("{round}.jsonl")));
        assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    }
    work.until_collecting(false);
    let earlier = work.ledger().records.len();
    let last = work.at("last.jsonl");
    let mut recorder = record(&program, &["--duration", "1s", "--gpu-time"], &last);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    work.until_collecting(false);
    work.finish(&mut program);

    let ledger = work.ledger();
    assert!(assert_recorded(&ledger.since(earlier), &Recording::read(&last)) > 100);
    let collected = (0..rounds).map(|round| {
        let trace = Recording::read(&work.at(&format!("{round}.jsonl")));
        trace.assert_ended();
        ledger.assert_contains(&trace);
        trace.executions.len()
    });
    assert!(collected.sum::<usize>() > 0, "the rounds collected nothing");
}

/// gpuprobe is stopped while the program makes more executions than fit into the ring.
#[bpf_test(alone)]
fn what_does_not_fit_into_the_ring_is_counted() {
    let work = Work::new(&["--threads", "1", "--operations", "300000", "--wait"]);
    let (mut program, trace) = (work.start(), work.at("trace.jsonl"));
    let options = ["--gpu-time=nodes", "--buffer", "128"];
    let mut recorder = record(&program, &options, &trace);
    work.until_collecting(true);
    until(PATIENCE, "its functions are probed", || {
        recorder.stderr().contains("gpuprobe: tracing").then_some(())
    });
    recorder.stop();
    work.finish(&mut program);
    recorder.signal(Signal::SIGCONT);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    let trace = Recording::read(&trace);
    let (ledger, batches) = (work.ledger(), lost(&trace, "lost_agent_batch"));
    let missing = ledger.assert_contains(&trace);
    println!("{missing} of {} executions are missing, {batches} batches", ledger.records.len());
    assert!(missing > 0 && batches > 0, "nothing was lost, so this tests nothing: make the burst larger");
    assert_eq!(lost(&trace, "ring_full"), 0, "calls were lost too: make the buffer larger");
    let named = trace.executions.iter().filter(|it| it.submission.is_some()).count();
    assert_eq!(named, trace.executions.len(), "what is there has its calls");
    assert_eq!(named_at_another_time(&ledger, &trace), 0, "wrong calls");
}
