//! Every figure has two implementations: the tables of the kernel side, and the replay of events. Here both are made of the
//! same calls, by `run --verify`, and compared figure by figure.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::{BTreeMap, BTreeSet};

use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::{Recording, Run, alone, compile, needs, places, tiers};
use gpuprobe_event::Total;
use gpuprobe_standin::Cuda;

/// What the comparison must have seen in some program, with figures that are not zero.
const QUANTITIES: [&str; 31] = [
    "allocated",
    "allocated by call site",
    "bytes moved",
    "calls",
    "copied bytes",
    "copies",
    "errors",
    "errors by name",
    "failed",
    "failed launches by kernel",
    "freed",
    "freed by call site",
    "freed by context",
    "gaps",
    "graphs",
    "latency",
    "latency of launches by kernel",
    "launched threads by kernel",
    "launches by kernel",
    "launches by stream",
    "lengths of gaps",
    "live",
    "longest gaps",
    "peak",
    "shared memory by kernel",
    "sizes of copies",
    "sizes of dimensions by kernel",
    "streams by kernel",
    "time in calls",
    "time in copies",
    "time in gaps",
];

/// Programs that do what they do by themselves.
const PROGRAMS: [(&str, &[&str]); 14] = [
    ("ledger", &["--calls", "1000", "--threads", "1"]),
    ("torture", &["--operations", "800", "--threads", "2"]),
    ("args", &[]),
    ("capture", &[]),
    ("copies", &[]),
    ("copies_runtime", &[]),
    ("driver_args", &[]),
    ("forker", &[]),
    ("gaps", &[]),
    ("longjmp", &[]),
    ("lookups", &[]),
    ("recursion", &[]),
    ("static_runtime", &[]),
    ("vmm", &[]),
];

/// Rules of what memory is held, of contexts and of physical memory: the program waits for a line after each step.
const RULES: [&str; 9] =
    ["reuse", "cross", "unmap", "retain", "primary", "reset", "context", "devices", "refused"];

/// On the slowest tier, where each function takes long to let go of, those that have most kinds of figures between them.
const ON_PERF: [&str; 2] = ["copies_runtime", "vmm"];

/// The quantities of a comparison with how many figures each had.
fn compared(stderr: &str) -> BTreeMap<String, u64> {
    let (_, table) = stderr.split_once("verified (").unwrap_or_else(|| panic!("not verified: {stderr}"));
    let row = |line: &str| {
        let line = line.strip_suffix(" figures  equal")?;
        let (quantity, figures) = line.trim().rsplit_once(' ')?;
        Some((quantity.trim().to_owned(), figures.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

/// A command with its name, compared on a tier; on `perf` only the functions that it was seen to call.
fn verify(name: &str, command: &[&str], tier: &str, called: &BTreeSet<String>) -> (Recording, Vec<String>) {
    let functions: Vec<_> = called.iter().map(String::as_str).collect();
    let options = [&tiers::options(tier, &functions)[..], &["--verify"]].concat();
    let outcome = Run::new(command[0]).args(&command[1..]).options(&options).outcome();
    let stderr = &outcome.finished.stderr;
    assert_eq!(outcome.finished.status, 0, "{name} on {tier}: {stderr}");
    let compared = compared(stderr);
    println!("{name} on {tier}: {} figures", compared.values().sum::<u64>());
    assert!(!stderr.contains(" differ\n"), "{name} on {tier}: {stderr}");
    let seen = compared.into_iter().filter(|(_, figures)| *figures > 0).map(|(quantity, _)| quantity);
    (outcome.trace, seen.collect())
}

#[test]
fn every_figure_of_a_recording_is_what_the_kernel_counted() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let standins = places::standins(Cuda::Cuda12);
    let rules = shown(standins.workload("rules"));
    let mut commands: Vec<(&str, Vec<String>)> = Vec::new();
    for (name, args) in PROGRAMS {
        let words = args.iter().map(|arg| (*arg).to_owned());
        commands.push((name, [shown(standins.workload(name))].into_iter().chain(words).collect()));
    }
    // four threads that launch on each other's streams, for all but the gaps
    let ledger = shown(standins.workload("ledger"));
    let many = ["--calls", "1000", "--threads", "4"].map(str::to_owned);
    commands.push(("four threads", [ledger].into_iter().chain(many).collect()));
    for rule in RULES {
        let script = format!("yes | head -n 100 | {rules} {rule}");
        commands.push((rule, vec!["sh".to_owned(), "-c".to_owned(), script]));
    }
    let mut seen = BTreeSet::new();
    for (name, command) in &commands {
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        let mut called = BTreeSet::new();
        for tier in tiers::here().iter().filter(|tier| **tier != "perf" || ON_PERF.contains(name)) {
            let (trace, quantities) = verify(name, &words, tier, &called);
            called = trace.calls.iter().map(|call| call.name.clone().into_owned()).collect();
            seen.extend(quantities);
        }
    }
    let missing: Vec<_> = QUANTITIES.iter().filter(|quantity| !seen.contains(**quantity)).collect();
    assert!(missing.is_empty(), "no program has figures of {missing:?}; there are {seen:?}");
}

/// A driver that gives out one address again and again, frees whatever it is told to, and fails where a size is 0.
const FORGETFUL: &str = r#"
#include <stddef.h>
int cuMemAlloc_v2(void **pointer, size_t size)
{
	*pointer = (void *)0x700000000000;
	return size ? 0 : 2;
}
int cuMemFree_v2(void *pointer) { return (void)pointer, 0; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { return (void)to, (void)from, size ? 0 : 1; }
int cuInit(unsigned int flags)
{
	void *pointer;

	/* inside a call that allocates nothing */
	return cuMemAlloc_v2(&pointer, flags) ? 0 : 1;
}
"#;

const USES_IT: &str = r#"
#include <stddef.h>
int cuInit(unsigned int);
int cuMemAlloc_v2(void **, size_t);
int cuMemFree_v2(void *);
int cuMemcpyHtoD_v2(void *, const void *, size_t);
int main(void)
{
	void *memory;

	cuInit(0);
	cuMemAlloc_v2(&memory, 1000);
	/* the free of the first is missed */
	cuMemAlloc_v2(&memory, 500);
	cuMemcpyHtoD_v2(memory, &memory, 8);
	cuMemcpyHtoD_v2(memory, &memory, 0);
	cuMemFree_v2(&memory);
	cuMemFree_v2(memory);
	return 0;
}
"#;

#[test]
fn what_is_replaced_unknown_or_failed_is_counted_by_both_as_what_it_is() {
    if !needs::bpf() {
        return;
    }
    let folder = places::folder();
    let program = shown(compile::with_driver(folder.path(), FORGETFUL, USES_IT));
    for tier in tiers::here() {
        let all = BTreeSet::from(["*".to_owned()]);
        let (trace, quantities) = verify("forgetful", &[&program], tier, &all);
        for quantity in ["failed", "failed copies", "replaced", "unknown frees"] {
            assert!(
                quantities.iter().any(|seen| seen == quantity),
                "{tier}: {quantity} not in {quantities:?}"
            );
        }
        let memory = trace.assert_ended().memory.clone().unwrap();
        let total = |count, bytes| Total { count, bytes };
        assert_eq!((memory.allocated, memory.replaced), (total(2, 1500), total(1, 1000)), "{tier}");
        assert_eq!((memory.freed, memory.unknown_frees), (total(1, 500), 1), "{tier}");
        assert_eq!((memory.failed_allocations, memory.peak_bytes), (1, 1000), "{tier}");
        assert_eq!((memory.live, memory.freed_by_exit), (vec![], vec![]), "{tier}");
    }
}
