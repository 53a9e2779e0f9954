//! Lost calls, forced by a ring buffer that is far too small: received and lost calls add up to the calls made.

use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Run, bpf_test, fixtures, tiers};
use gpuprobe_event::{Api, LossCause};
use gpuprobe_standin::Cuda;

const CALLS: u64 = 300_000;
/// Four functions that are half of the calls of the ledger.
const MEMORY: [&str; 4] = ["cudaMalloc", "cudaFree", "cuMemAlloc_v2", "cuMemFree_v2"];

#[bpf_test(tiers, alone)]
fn received_and_lost_calls_add_up_to_all_calls(tier: &str) {
    let mut options = vec!["--attach", tier, "--buffer", "1"];
    // all functions only on the best tier: reading so many calls takes longer than making them
    if tier == tiers::best() {
        options.extend(["-e", "*"]);
    } else {
        options.extend(MEMORY.iter().flat_map(|function| ["-e", function]));
    }
    assert_lost(tier, &options);
}

fn assert_lost(tier: &str, options: &[&str]) {
    let chosen = |name: &str| options.contains(&"*") || options.contains(&name);
    let ledger = fixtures::standins(Cuda::Cuda12).workload("ledger");
    let run = Run::new(ledger).options(options);
    let outcome = run.args(&["--threads", "8", "--calls", &CALLS.to_string()]).outcome();
    let (printed, trace, stderr) = (outcome.printed(), &outcome.trace, &outcome.finished.stderr);
    assert_eq!(outcome.finished.status, 0, "{stderr}");
    let end = trace.assert_ended();

    assert_eq!(number(&printed["total_calls"]), CALLS);
    let made_by = |field: &str| {
        let mut calls = counts_of(&printed[field]);
        calls.retain(|name, _| chosen(name));
        calls
    };
    let made: u64 = made_by("calls").values().chain(made_by("driver_calls").values()).sum();
    let lost = made - end.calls;
    println!("{tier}: {} received, {lost} lost", end.calls);
    assert!(lost > 0, "nothing was lost, so this tests nothing: make the burst larger");
    let mut reported = end.lost.clone();
    // stack records of new call sites use the same ring; they are not calls
    let stacks = [LossCause::LostStack, LossCause::ShortenedStack];
    let is_of_stack = |cause: LossCause| stacks.contains(&cause);
    let stacks: u64 = stacks.iter().filter_map(|cause| reported.remove(cause.as_str())).sum();
    assert_eq!(reported, [(LossCause::RingFull.as_str().to_owned(), lost)].into(), "the end line");
    let of_calls = trace.losses.iter().filter(|loss| !is_of_stack(loss.cause));
    let losses: Vec<_> = of_calls.map(|loss| (loss.cause, loss.count)).collect();
    assert_eq!(losses, [(LossCause::RingFull, lost)], "the loss line");
    for line in [format!("\n{} lost\n", lost + stacks), format!("\n  {lost} ring_full: ")] {
        assert!(stderr.contains(&line), "the summary: {stderr}");
    }

    // no function has more records than calls
    let pid = pid_of(&printed);
    for (api, field) in [(Api::Runtime, "calls"), (Api::Driver, "driver_calls")] {
        let made = made_by(field);
        for (name, received) in trace.counts(pid, api) {
            assert!(made.get(&name).is_some_and(|made| received <= *made), "{name}: {received}");
        }
    }
}
