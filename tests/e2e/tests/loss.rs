//! Loss, forced by a ring buffer that is far too small: what arrived and what was counted as lost is what was made.

use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Run, alone, needs, places};
use gpuprobe_event::{Api, LossCause};
use gpuprobe_standin::Cuda;

const CALLS: u64 = 300_000;

#[test]
fn received_and_counted_as_lost_is_what_was_made() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let ledger = places::standins(Cuda::Cuda12).workload("ledger");
    let run = Run::new(ledger).options(&["--buffer", "1", "-e", "*"]);
    let outcome = run.args(&["--threads", "8", "--calls", &CALLS.to_string()]).outcome();
    let (printed, trace, stderr) = (outcome.printed(), &outcome.trace, &outcome.finished.stderr);
    assert_eq!(outcome.finished.status, 0, "{stderr}");
    let end = trace.assert_ended();

    let made = 2 * CALLS;
    assert_eq!(number(&printed["total_calls"]), CALLS);
    let lost = made - end.calls;
    println!("{} received, {lost} lost", end.calls);
    assert!(lost > 0, "nothing was lost, so this tests nothing: make the burst larger");
    assert_eq!(end.lost, [("ring_full".to_owned(), lost)].into(), "the end line");
    let losses: Vec<_> = trace.losses.iter().map(|l| (l.cause, l.count)).collect();
    assert_eq!(losses, [(LossCause::RingFull, lost)], "the loss line");
    assert!(stderr.contains(&format!("\n{lost} lost\n  {lost} ring_full: ")), "the summary: {stderr}");

    // no function is told more often than it was called
    let pid = pid_of(&printed);
    for (api, field) in [(Api::Runtime, "calls"), (Api::Driver, "driver_calls")] {
        let made = counts_of(&printed[field]);
        for (name, received) in trace.counts(pid, api) {
            assert!(made.get(&name).is_some_and(|made| received <= *made), "{name}: {received}");
        }
    }
}
