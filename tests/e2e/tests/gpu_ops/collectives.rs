//! Collectives of NCCL by communicator and rank, compared with the ledger of each rank.

use std::collections::BTreeMap;
use std::time::Duration;

use gpuprobe_analysis::{Collectives, CommunicatorRank};
use gpuprobe_e2e::process::{Talk, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{Counts, counts_of, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

fn run(args: &[&str]) -> Outcome {
    let standins = fixtures::standins(Cuda::Cuda12);
    let outcome = Run::new(standins.workload("collectives")).args(args).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    outcome
}

/// The calls of a rank by function.
fn calls(rank: &CommunicatorRank) -> Counts {
    let all = rank.functions.iter().chain(&rank.point_to_point);
    all.map(|(function, n)| ((*function).to_owned(), *n)).collect()
}

/// Compares every rank with its ledger. Returns the pids by rank.
fn assert_exact(outcome: &Outcome, collectives: &Collectives) -> BTreeMap<u32, u32> {
    let [communicator] = &collectives.communicators[..] else { panic!("{collectives:?}") };
    assert!(communicator.is_complete && collectives.others == 0 && !collectives.is_incomplete);
    let mut ledgers = outcome.finished.json();
    ledgers.sort_by_key(|ledger| number(&ledger["rank"]));
    assert_eq!(communicator.ranks.len(), ledgers.len());
    assert_eq!(communicator.size.map(|size| size as usize), Some(ledgers.len()));
    for (rank, ledger) in communicator.ranks.iter().zip(&ledgers) {
        let of_ledger = (Some(number(&ledger["rank"])), pid_of(ledger), number(&ledger["collectives"]));
        assert_eq!((rank.rank.map(u64::from), rank.pid.0, rank.collectives), of_ledger);
        assert_eq!(calls(rank), counts_of(&ledger["calls"]));
    }
    ledgers.iter().map(|ledger| (u32::try_from(number(&ledger["rank"])).unwrap(), pid_of(ledger))).collect()
}

/// The printed summary in one line.
fn printed(outcome: &Outcome) -> String {
    outcome.finished.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[bpf_test]
fn the_rank_that_is_one_collective_behind_is_named() {
    let outcome = run(&["8", "42", "skip", "3", "41"]);
    let collectives = outcome.trace.summary().collectives;
    let pids = assert_exact(&outcome, &collectives);
    let sentence = format!(
        "communicator of 8 ranks: 7 ranks made 42 collectives, rank 3 (pid {}) made 41; \
         the next would be ncclAllReduce of 1,024 float32",
        pids[&3]
    );
    let printed = printed(&outcome);
    assert!(printed.contains(&sentence), "{printed}");
    assert_eq!(printed.matches("communicator of 8 ranks: ").count(), 1, "{printed}");
}

#[bpf_test]
fn the_rank_that_differs_is_named_with_both_collectives() {
    let odd = [
        ("other", "ncclAllReduce of 1,024 float32 where 7 ranks have ncclAllGather of 1,024 int8"),
        ("size", "ncclAllGather of 1,025 int8 where 7 ranks have ncclAllGather of 1,024 int8"),
        (
            "skip",
            "ncclBroadcast of 1,024 float32 where 7 ranks have ncclAllGather of 1,024 int8; \
             it made 39 collectives, the others 40",
        ),
    ];
    for (mode, difference) in odd {
        let outcome = run(&["8", "40", mode, "2", "18"]);
        let pids = assert_exact(&outcome, &outcome.trace.summary().collectives);
        let pid = pids[&2];
        let sentence =
            format!("communicator of 8 ranks: rank 2 (pid {pid}) differs at collective 19: {difference}");
        let printed = printed(&outcome);
        assert!(printed.contains(&sentence), "{printed}");
        assert_eq!(printed.matches("communicator of 8 ranks: ").count(), 1, "{printed}");
    }
}

#[bpf_test]
fn ranks_that_agree_are_counted_without_a_sentence() {
    for ranks in ["8", "all"] {
        let outcome = run(&[ranks, "40"]);
        let collectives = outcome.trace.summary().collectives;
        assert_exact(&outcome, &collectives);
        assert!(!collectives.communicators[0].comparison.finds_differences());
        let stderr = &outcome.finished.stderr;
        assert!(stderr.contains("\ncollectives ") && !stderr.contains("ranks: "), "{stderr}");
    }
}

#[bpf_test]
fn ranks_of_one_process_are_compared() {
    let outcome = run(&["all", "40", "skip", "1", "39"]);
    let pids = assert_exact(&outcome, &outcome.trace.summary().collectives);
    let sentence = format!("3 ranks made 40 collectives, rank 1 (pid {}) made 39", pids[&1]);
    assert!(printed(&outcome).contains(&sentence), "{}", printed(&outcome));
}

#[bpf_test]
fn a_report_has_the_collectives_of_the_run_in_every_form() {
    let folder = fixtures::folder();
    let (trace, page) = (folder.path().join("t.jsonl"), folder.path().join("t.html"));
    let program = fixtures::standins(Cuda::Cuda12).workload("collectives");
    let outcome = Run::new(program).args(&["8", "20", "other", "5", "7"]).outcome_in(&trace);
    let pids = assert_exact(&outcome, &outcome.trace.summary().collectives);
    for (rank, function) in [(4, "ncclCommInitRank"), (5, "ncclCommInitRankScalable")] {
        assert_eq!(outcome.trace.counts(pids[&rank], Api::Nccl)[function], 1, "both ways to pass an id");
    }
    let text = finish(&mut gpuprobe(&["report", &shown(&trace)])).stdout;
    let json = finish(&mut gpuprobe(&["report", "--json", &shown(&trace)])).json().remove(0);
    assert_eq!(finish(&mut gpuprobe(&["report", &shown(&trace), "--html", &shown(&page)])).status, 0);
    let page = std::fs::read_to_string(page).unwrap();
    let sentence = format!("rank 5 (pid {}) differs at collective 8: ", pids[&5]);
    assert!(text.contains(&sentence) && page.contains(&sentence), "{text}");
    let communicator = &json["summary"]["collectives"]["communicators"][0];
    assert!(communicator["id"].as_str().is_some_and(|id| id.starts_with("0x")), "{communicator}");
    assert_eq!(communicator["comparison"]["differing"][0]["pid"], pids[&5]);
    let hashes = communicator["ranks"].as_array().unwrap().iter().map(|rank| &rank["sequence_hash"]);
    let mut hashes: Vec<_> = hashes.map(|hash| hash.as_str().unwrap()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 2, "seven ranks agree");
}

#[bpf_test]
fn differing_ranks_are_named_at_quit_while_the_job_waits() {
    let folder = fixtures::folder();
    let program = fixtures::standins(Cuda::Cuda12).workload("collectives");
    let run = Run::new(program).args(&["8", "42", "skip", "3", "41"]);
    let run = run.env("STANDIN_DELAY", "ncclCommFinalize:5000000");
    let mut job = Talk::start(&mut run.command(&folder.path().join("t.jsonl")));
    let ledgers: Vec<_> = (0..8).map(|_| job.json()).collect();
    let behind = ledgers.iter().find(|ledger| number(&ledger["rank"]) == 3).unwrap();
    job.signal(Signal::SIGQUIT);
    let sentence = format!("7 ranks made 42 collectives, rank 3 (pid {}) made 41; ", pid_of(behind));
    until(Duration::from_secs(4), "the sentence", || job.stderr().contains(&sentence).then_some(()));
    assert!(!job.stderr().contains("=== TRACE SUMMARY ==="), "{}", job.stderr());
    assert_eq!(job.end(), 0, "{}", job.stderr());
}
