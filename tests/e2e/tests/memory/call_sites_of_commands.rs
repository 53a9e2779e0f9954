//! Call sites of the allocations of a command: in its trace, and in `gpuprobe memory`, which reports the leaking
//! ones.

use std::collections::BTreeSet;

use gpuprobe_e2e::process::{finish, gpuprobe};
use gpuprobe_e2e::site_ledger::{self, Figures, SUSPECT, SiteLedger};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures, tiers};
use gpuprobe_event::LossCause;
use gpuprobe_standin::Cuda;

/// The functions that allocate and free in the programs, for tiers on which every function is expensive.
const FUNCTIONS: [&str; 11] = [
    "cudaMalloc",
    "cudaFree",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemRetainAllocationHandle",
];

/// Runs one of the programs under `gpuprobe run`. Returns the outcome and its ledger.
fn run(tier: &str, name: &str, file: &str, args: &[&str]) -> (Outcome, SiteLedger) {
    println!("{name}, {tier}");
    let run = Run::new(fixtures::standins(Cuda::Cuda12).workload(name));
    let outcome = run.options(&tiers::options(tier, &FUNCTIONS)).args(args).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let ledger = SiteLedger::of(&outcome.printed(), file);
    (outcome, ledger)
}

#[bpf_test(tiers, alone)]
fn the_sums_of_a_trace_by_call_site_are_those_of_the_program(tier: &str) {
    // the program that uses only the CUDA driver runs on one tier, to save time
    let names: &[&str] = if tier == tiers::best() { &["leaks", "leaks_driver"] } else { &["leaks"] };
    for name in names {
        let (outcome, ledger) = run(tier, name, "leaks.cpp", &["--rounds", "200", "--threads", "4"]);
        outcome.trace.assert_whole();
        assert_eq!(site_ledger::traced(&outcome.trace, &ledger), ledger.by_name(|f| *f));
    }
}

/// Each stack allocates blocks of its own size, so the size identifies the stack. New stacks come faster than they
/// can be stored: lost ones are counted.
#[bpf_test(alone)]
fn ten_thousand_stacks_are_as_many_call_sites_or_counted_as_lost() {
    let args = ["--rounds", "3", "--threads", "1"];
    let (outcome, ledger) = run(tiers::best(), "leaks_many", "leaks_many.cpp", &args);
    let end = outcome.trace.assert_ended();
    let (mut pairs, mut without_site) = (BTreeSet::new(), 0);
    for call in outcome.trace.of(ledger.pid) {
        match (call.effect.size(), call.effect.site()) {
            (Some(size), Some(site)) => drop(pairs.insert((site, size))),
            (Some(_), None) => without_site += 1,
            _ => {}
        }
    }
    println!("{} sites, {without_site} allocations without one: {:?}", pairs.len(), end.lost);
    let causes = [LossCause::SitesFull, LossCause::LostStack];
    let lost: u64 = causes.iter().filter_map(|cause| end.lost.get(cause.as_str())).sum();
    // on a slow machine the ring fills up, and some of the calls whose stacks were lost are lost themselves
    let calls_lost = end.lost.get(LossCause::RingFull.as_str()).copied().unwrap_or(0);
    assert!(
        (without_site..=without_site + calls_lost).contains(&lost),
        "{without_site} without a call site, {:?}",
        end.lost
    );
    let sites: BTreeSet<_> = pairs.iter().map(|(site, _)| site).collect();
    let sizes: BTreeSet<_> = pairs.iter().map(|(_, size)| size).collect();
    assert_eq!(
        (sites.len(), sizes.len()),
        (pairs.len(), pairs.len()),
        "each call site has one stack, and each stack one call site"
    );
    assert!(pairs.len() > 5000 && pairs.len() <= 10_000, "{}", pairs.len());
}

#[bpf_test(alone)]
fn the_two_leaking_call_sites_are_named_and_ranked_and_no_others() {
    let program = fixtures::standins(Cuda::Cuda12).workload("leaks");
    let mut memory = gpuprobe(&["memory", "--json", "--"]);
    let finished = finish(memory.arg(program).args(["--rounds", "700", "--pace", "20"]));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    let printed = finished.json();
    let ledger = printed.iter().find(|line| line["ledger"] == "end");
    let ledger = SiteLedger::of(ledger.unwrap_or_else(|| panic!("{}", finished.stdout)), "leaks.cpp");
    let report = printed.iter().rev().find(|line| line["processes"].is_array());
    let report = report.unwrap_or_else(|| panic!("{}", finished.stdout));
    site_ledger::assert_complete(report);
    let (reported, other) = site_ledger::reported(report, ledger.pid);
    assert_eq!(other, Figures::default());
    let name = |frame: &str| {
        let site = ledger.sites.iter().find(|site| site.is_shown_as(frame));
        site.unwrap_or_else(|| panic!("{frame} is in no ledger")).name.clone()
    };
    let accused: Vec<_> =
        reported.iter().filter(|site| site.verdict == SUSPECT).map(|site| name(&site.name)).collect();
    assert_eq!(accused, ["gradients", "events"], "the one that grows faster comes first: {reported:#?}");
    let all: BTreeSet<_> = reported.iter().map(|site| name(&site.name)).collect();
    assert_eq!(all.len(), ledger.sites.len(), "every call site is reported: {reported:#?}");
}
