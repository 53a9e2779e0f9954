//! Every figure has two implementations: the BPF tables, and the replay of events. `run --verify` computes both from
//! the same calls and compares them figure by figure.

use std::collections::{BTreeMap, BTreeSet};

use gpuprobe_analysis::{FunctionSummary, SummaryReport};
use gpuprobe_e2e::process::{at_once, shown};
use gpuprobe_e2e::{Recording, Run, bpf_test, compile, fixtures, tiers};
use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS, LaunchTotals};
use gpuprobe_event::{Call, Total};
use gpuprobe_standin::Cuda;

/// The quantities that must be non-zero in some program.
const QUANTITIES: [&str; 32] = [
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
    "freed with context",
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
    "time in launches by kernel",
];

/// Programs that need no input.
const PROGRAMS: [(&str, &[&str]); 17] = [
    ("ledger", &["--calls", "1000", "--threads", "1"]),
    ("torture", &["--operations", "800", "--threads", "2"]),
    ("args", &[]),
    ("capture", &[]),
    ("copies", &[]),
    ("copies_runtime", &[]),
    ("driver_args", &[]),
    ("forker", &[]),
    ("gaps", &[]),
    ("launches", &["doors"]),
    ("launches", &["graphs"]),
    ("launches", &["classic"]),
    ("longjmp", &[]),
    ("lookups", &[]),
    ("recursion", &[]),
    ("static_runtime", &[]),
    ("vmm", &[]),
];

/// Rules of live memory, contexts and physical memory: the program waits for a line after each step.
const RULES: [&str; 9] =
    ["reuse", "cross", "unmap", "retain", "primary", "reset", "context", "devices", "refused"];

/// The BPF programs are the same on all tiers: on other tiers than the best only the programs with most kinds of figures,
/// and on perf, where a recording takes a quarter of a minute, one of them.
const ON_OTHER_TIERS: [&str; 6] = ["ledger", "torture", "capture", "copies", "launches", "vmm"];
const ON_PERF: [&str; 1] = ["ledger"];

/// Deterministic programs.
const IN_ORDER: [&str; 8] =
    ["capture", "copies", "copies_runtime", "driver_args", "gaps", "launches", "static_runtime", "vmm"];

/// The quantities of a comparison with the number of figures of each.
fn compared(stderr: &str) -> BTreeMap<String, u64> {
    let (_, table) = stderr.split_once("verified (").unwrap_or_else(|| panic!("not verified: {stderr}"));
    let row = |line: &str| {
        let line = line.strip_suffix(" figures  equal")?;
        let (quantity, figures) = line.trim().rsplit_once(' ')?;
        Some((quantity.trim().to_owned(), figures.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

/// The figures of a summary that do not depend on time.
fn counted(summary: &SummaryReport) -> Vec<String> {
    let function =
        |f: &FunctionSummary| format!("{} {}: {} {} {}", f.api, f.name, f.calls, f.errors, f.bytes);
    let mut all: Vec<_> = summary.functions.iter().map(function).collect();
    all.sort();
    all.push(format!("{:?}", summary.memory));
    for kernel in &summary.gpu_ops.kernels {
        let totals = LaunchTotals { total_ns: 0, latency: [0; LATENCY_BUCKETS], ..kernel.totals.clone() };
        all.push(format!("{} on {} streams: {totals:?}", kernel.kernel, kernel.streams));
    }
    all.push(format!("{:?}", summary.gpu_ops.graphs));
    let copies = summary.gpu_ops.copies.iter();
    all.extend(copies.map(|copies| format!("{:?}", CopyTotals { total_ns: 0, ..copies.clone() })));
    let gaps = &summary.gpu_ops.gaps;
    all.push(format!("gaps: {} {} {}", gaps.streams, gaps.after_sync.gaps, gaps.after_launch.gaps));
    all
}

/// Checks that a recording without `--verify`, whose BPF side keeps no tables of launches and copies, has the same
/// figures.
fn assert_recorded_alike(name: &str, command: &[&str], options: &[&str], verified: &Recording) {
    let ordinary = Run::new(command[0]).args(&command[1..]).options(options).outcome();
    assert_eq!(ordinary.finished.status, 0, "{name}: {}", ordinary.finished.stderr);
    assert_eq!(counted(&ordinary.trace.summary()), counted(&verified.summary()), "{name}");
}

/// Compares a command on a tier; on `perf` with the functions that are probed there by default.
fn verify(name: &str, command: &[&str], tier: &str) -> (Recording, Vec<String>) {
    verify_with(name, command, tier, &[])
}

fn verify_with(name: &str, command: &[&str], tier: &str, more: &[&str]) -> (Recording, Vec<String>) {
    let options = [&tiers::options(tier, &[])[..], &["--verify"], more].concat();
    let outcome = Run::new(command[0]).args(&command[1..]).options(&options).outcome();
    let stderr = &outcome.finished.stderr;
    assert_eq!(outcome.finished.status, 0, "{name} on {tier}: {stderr}");
    let compared = compared(stderr);
    println!("{name} on {tier}: {} figures", compared.values().sum::<u64>());
    assert!(!stderr.contains(" differ\n"), "{name} on {tier}: {stderr}");
    // from the file, without the figures of its last line
    let memory = outcome.trace.assert_ended().memory.clone();
    assert_eq!(
        outcome.trace.summary().memory,
        memory.map(|memory| *memory).unwrap_or_default(),
        "{name} on {tier}"
    );
    let seen = compared.into_iter().filter(|(_, figures)| *figures > 0).map(|(quantity, _)| quantity);
    (outcome.trace, seen.collect())
}

#[bpf_test(tiers, alone)]
fn every_figure_of_a_recording_is_what_the_tables_in_bpf_counted(tier: &str) {
    let standins = fixtures::standins(Cuda::Cuda12);
    let rules = shown(standins.workload("rules"));
    let mut commands: Vec<(&str, Vec<String>)> = Vec::new();
    for (name, args) in PROGRAMS {
        let words = args.iter().map(|arg| (*arg).to_owned());
        commands.push((name, [shown(standins.workload(name))].into_iter().chain(words).collect()));
    }
    // four threads that launch on each other's streams, for everything except the gaps
    let ledger = shown(standins.workload("ledger"));
    let many = ["--calls", "1000", "--threads", "4"].map(str::to_owned);
    commands.push(("four threads", [ledger].into_iter().chain(many).collect()));
    for rule in RULES {
        let script = format!("yes | head -n 100 | {rules} {rule}");
        commands.push((rule, vec!["sh".to_owned(), "-c".to_owned(), script]));
    }
    match tier {
        best if best == tiers::best() => {}
        "perf" => commands.retain(|(name, _)| ON_PERF.contains(name)),
        _ => commands.retain(|(name, _)| ON_OTHER_TIERS.contains(name)),
    }
    let seen = at_once(&commands, |(name, command)| {
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        let (trace, quantities) = verify(name, &words, tier);
        if tier == tiers::best() && IN_ORDER.contains(name) {
            assert_recorded_alike(name, &words, &tiers::options(tier, &[]), &trace);
        }
        quantities
    });
    if tier != tiers::best() {
        return;
    }
    let seen: BTreeSet<String> = seen.into_iter().flatten().collect();
    let missing: Vec<_> = QUANTITIES.iter().filter(|quantity| !seen.contains(**quantity)).collect();
    assert!(missing.is_empty(), "no program has figures of {missing:?}; there are {seen:?}");
}

/// A CUDA driver that returns the same address again and again, frees any address, and fails if a size is 0.
const REUSES_ADDRESS: &str = r#"
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

const REUSES_ADDRESS_PROGRAM: &str = r#"
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

#[bpf_test(tiers)]
fn replaced_unknown_and_failed_calls_are_counted_equally_by_both(tier: &str) {
    let folder = fixtures::folder();
    let program = shown(compile::with_driver(folder.path(), REUSES_ADDRESS, REUSES_ADDRESS_PROGRAM));
    let (trace, quantities) = verify_with("forgetful", &[&program], tier, &["-e", "*"]);
    for quantity in ["failed", "failed copies", "replaced", "unknown frees"] {
        assert!(quantities.iter().any(|seen| seen == quantity), "{tier}: {quantity} not in {quantities:?}");
    }
    let memory = trace.assert_ended().memory.clone().unwrap();
    let total = |count, bytes| Total { count, bytes };
    assert_eq!((memory.allocated, memory.replaced), (total(2, 1500), total(1, 1000)), "{tier}");
    assert_eq!((memory.freed, memory.unknown_frees), (total(1, 500), 1), "{tier}");
    assert_eq!((memory.failed_allocations, memory.peak_bytes), (1, 1000), "{tier}");
    assert_eq!((memory.live, memory.freed_by_exit), (vec![], vec![]), "{tier}");
}

/// A CUDA driver that fails copies and memsets of 0 bytes.
const CORNER_DRIVER: &str = r#"
#include <stddef.h>
#include <unistd.h>
static char memory[1 << 20];
int cuMemAlloc_v2(void **pointer, size_t size) { return (void)size, *pointer = memory, 0; }
int cuMemAllocManaged(void **pointer, size_t size, unsigned int flags)
{
	return (void)size, (void)flags, *pointer = memory, 0;
}
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size)
{
	usleep(1000);
	return (void)to, (void)from, size ? 0 : 1;
}
int cuMemsetD8_v2(void *to, unsigned char value, size_t size) { return (void)to, (void)value, size ? 0 : 1; }
int cuMemcpyBatchAsync(void **to, void **from, size_t *sizes, size_t count, void *attributes, size_t *which,
		       size_t kinds, size_t *failed, void *stream)
{
	return (void)to, (void)from, (void)sizes, (void)attributes, (void)which, (void)kinds, (void)failed,
	       (void)stream, count == 3;
}
int cuStreamSynchronize(void *stream)
{
	usleep(100);
	return (void)stream, 0;
}
int cuLaunchKernel(void *f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
		   unsigned int bz, unsigned int shared, void *stream, void **args, void **extra)
{
	return (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream,
	       (void)args, (void)extra, 0;
}
"#;

/// A runtime that rejects unknown kinds of copies, splits a copy of 70,100 bytes in two, and makes host-to-host
/// copies itself.
const CORNER_RUNTIME: &str = r#"
#include <stddef.h>
int cuMemcpyHtoD_v2(void *, const void *, size_t);
int cuMemsetD8_v2(void *, unsigned char, size_t);
int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
	if (kind > 4)
		return 21;
	if (!kind)
		return 0;
	if (size == 70100)
		return cuMemcpyHtoD_v2(to, from, 70000) | cuMemcpyHtoD_v2(to, from, 100);
	return cuMemcpyHtoD_v2(to, from, size);
}
int cudaMalloc(void **pointer, size_t size) { return (void)pointer, (void)size, 2; }
int cudaMemset(void *to, int value, size_t size) { return to ? cuMemsetD8_v2(to, value, size) : 1; }
"#;

const CORNER_PROGRAM: &str = r#"
#include <stddef.h>
#include <unistd.h>
int cuMemAlloc_v2(void **, size_t);
int cuMemAllocManaged(void **, size_t, unsigned int);
int cuMemcpyHtoD_v2(void *, const void *, size_t);
int cuMemcpyBatchAsync(void **, void **, size_t *, size_t, void *, size_t *, size_t, size_t *, void *);
int cuStreamSynchronize(void *);
int cuLaunchKernel(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		   unsigned int, void *, void **, void **);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemset(void *, int, size_t);

__attribute__((noinline)) int my_copy(void *to, void *from, size_t size)
{
	int error = cuMemcpyHtoD_v2(to, from, size);

	usleep(3000);
	return error;
}

__attribute__((noinline)) int my_wait(void *stream)
{
	int error = cuStreamSynchronize(stream);

	usleep(3000);
	return error;
}

int main(void)
{
	static char host[1 << 20];
	void *memory, *managed, *stream = (void *)16;

	cuMemAlloc_v2(&memory, 1 << 20);
	cudaMemcpy(memory, host, 64, 1);
	cudaMemcpy(memory, host, 64, 99);
	cudaMemcpy(host, host, 64, 0);
	cudaMemcpy(memory, host, 0, 1);
	cudaMemcpy(memory, host, 70100, 1);
	cudaMemset(memory, 0, 32);
	cudaMemset(memory, 0, 0);
	cudaMemset(NULL, 0, 32);
	my_copy(memory, host, 128);
	void *to[3] = {memory, memory, memory}, *from[3] = {host, host, host};
	size_t sizes[3] = {16, 1 << 19, 17}, failed;
	cuMemcpyBatchAsync(to, from, sizes, 2, NULL, NULL, 0, &failed, stream);
	cuMemcpyBatchAsync(to, from, sizes, 3, NULL, NULL, 0, &failed, stream);
	cuMemcpyBatchAsync(to, from, sizes, 0, NULL, NULL, 0, &failed, stream);
	for (int i = 0; i < 3; i++) {
		cuLaunchKernel((void *)1, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
		my_wait(stream);
		usleep(1000);
	}
	cuLaunchKernel((void *)1, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
	/* the same address once more, as another kind of memory */
	cuMemAllocManaged(&managed, 500, 1);
	return 0;
}
"#;

const CORNER_HOOKS: &str = r#"
[[hook]]
library  = "program"
function = "my_wait"
class    = "sync"
args     = ["stream:handle"]
returns  = "status"
stream   = "stream"

[[hook]]
library  = "program"
function = "my_copy"
class    = "memcpy"
args     = ["to:ptr", "from:ptr", "bytes:size"]
returns  = "status"
dst      = "to"
src      = "from"
size     = "bytes"
kind     = "H2D"
"#;

#[bpf_test(tiers)]
fn copies_are_those_that_reached_the_cuda_driver(tier: &str) {
    let folder = fixtures::folder();
    let libraries = [("libcuda.so.1", CORNER_DRIVER), ("libcudart.so.12", CORNER_RUNTIME)];
    let program = shown(compile::with_libraries(folder.path(), &libraries, CORNER_PROGRAM));
    let hooks = shown(folder.path().join("hooks.toml"));
    std::fs::write(&hooks, CORNER_HOOKS).unwrap();
    let (trace, _) = verify_with("corners", &[&program], tier, &["-e", "*", "--hooks", &hooks]);
    let summary = trace.summary();
    let alone = |call: &&Call| call.effect.transfer().is_some_and(|transfer| transfer.without_driver);
    let alone: Vec<_> = trace.calls.iter().filter(alone).map(|call| (&*call.name, call.status)).collect();
    let expected = [("cudaMemcpy", Some(21)), ("cudaMemcpy", Some(0)), ("cudaMemset", Some(1))];
    assert_eq!(alone, expected, "{tier}");
    let row = |direction, is_async| {
        let is_it = |c: &&CopyTotals| {
            (c.direction, c.is_async, c.host) == (direction, is_async, HostMemory::Pageable)
        };
        let found =
            summary.gpu_ops.copies.iter().find(is_it).unwrap_or_else(|| panic!("{tier}: {summary:?}"));
        let sizes: Vec<_> = found.sizes.iter().enumerate().filter(|(_, n)| **n > 0).collect();
        (found.copies, found.errors, found.bytes, format!("{sizes:?}"), found.total_ns)
    };
    let (copies, errors, bytes, sizes, ns) = row(CopyDirection::HostToDevice, false);
    // 64, two parts of 70,100, and 128; copies that did not reach the CUDA driver do not count
    assert_eq!((copies, errors, bytes), (4, 1, 64 + 70_100 + 128), "{tier}");
    assert_eq!(sizes, "[(6, 2), (7, 1), (16, 1)]", "{tier}");
    // three of the CUDA driver, and one of the hook
    assert!(ns >= 7_000_000, "{tier}: {ns}");
    let (copies, errors, bytes, sizes, _) = row(CopyDirection::HostToDevice, true);
    assert_eq!((copies, errors, bytes), (2, 1, 16 + (1 << 19)), "{tier}: a failed batch is one failure");
    assert_eq!(sizes, "[(4, 1), (19, 1)]", "{tier}");
    let fills = summary.gpu_ops.copies.iter().find(|c| c.direction == CopyDirection::Fill).unwrap();
    assert_eq!((fills.copies, fills.errors, fills.bytes), (1, 1, 32), "{tier}");
    let shortest = summary.gpu_ops.gaps.longest.iter().map(|gap| gap.ns).min();
    assert!(shortest < Some(3_000_000), "{tier}: a wait ends with the hook: {:?}", summary.gpu_ops.gaps);
    let live: Vec<_> = summary.memory.freed_by_exit.iter().map(|of| (of.kind, of.bytes)).collect();
    assert_eq!(live, [(gpuprobe_event::Space::Managed, 500)], "{tier}");
}
