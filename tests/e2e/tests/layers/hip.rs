//! HIP, on a stand-in libamdhip64: the same programs as for CUDA, compiled with the names of HIP.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, Talk, bpf_test, fixtures, ledger, tiers};
use gpuprobe_event::{Api, Call, Class};
use serde_json::Value;

const LIBRARY: &str = "libamdhip64.so.7";
const FRESH: Duration = Duration::from_secs(20);
const LAUNCHES: &str = "gpuprobe_kernel_launches_total";
const IN_GRAPHS: &str = "gpuprobe_graph_kernels_derived_total";

/// Stand-ins that no other test uses.
fn folder(workload: &str) -> tempfile::TempDir {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::hip(), folder.path(), &[LIBRARY, "libcuda.so.1", workload]);
    folder
}

/// The ledger program under `gpuprobe run`, without a flag that names HIP.
fn recorded(options: &[&str], calls: &str, environment: Option<&str>) -> (Outcome, Value) {
    let folder = folder("ledger");
    let mut run = Run::new(folder.path().join("ledger")).options(options);
    if let Some(name) = environment {
        run = run.env(name, "1");
    }
    let outcome = run.args(&["--calls", calls, "--threads", "8"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let printed = outcome.printed();
    (outcome, printed)
}

#[bpf_test(tiers, together)]
fn the_ledger_of_hip_is_exact(tier: &str) {
    let few = [
        "hip*Malloc*",
        "hip*Free*",
        "hipMemcpy*",
        "hipMemset*",
        "hipLaunchKernel",
        "hipStream*",
        "hipEvent*",
    ];
    let others = ["hipDeviceGetDefaultMemPool", "hipDeviceSynchronize", "hipGet*", "hipRuntimeGetVersion"];
    let options = tiers::options(tier, &[&few[..], &others[..]].concat());
    let (outcome, printed) = recorded(&options, if tier == tiers::best() { "100000" } else { "20000" }, None);
    ledger::assert_equal_hip(&outcome.trace, &printed, false);
    ledger::assert_resolved(&outcome.trace, pid_of(&printed));
    let kernels: BTreeMap<_, _> =
        outcome.trace.work().kernels.iter().map(|k| (k.totals.launches, k.streams)).collect();
    assert_eq!(kernels.len(), 3, "kernels with launches: {kernels:?}");
}

#[bpf_test(together)]
fn hip_on_cuda_counts_each_effect_once() {
    let (outcome, printed) = recorded(&["-e", "*"], "20000", Some("STANDIN_HIP_ON_CUDA"));
    ledger::assert_equal_hip(&outcome.trace, &printed, true);
    // the summary counts by the effects of outermost calls
    let memory = outcome.trace.summary().memory;
    let allocated: u64 = sum_of(&printed, "allocated_bytes");
    assert_eq!(memory.allocated.bytes, allocated);
}

fn sum_of(ledger: &Value, field: &str) -> u64 {
    ledger["memory"].as_object().unwrap().values().map(|kind| number(&kind[field])).sum()
}

#[bpf_test(tiers(session, multi), together)]
fn every_family_of_memory_is_exact(tier: &str) {
    let folder = folder("torture");
    let run = Run::new(folder.path().join("torture")).options(&["--attach", tier]);
    // HIP has no contexts besides those of its devices
    let args = ["--operations", "50000", "--pauses", "0", "--without", "contexts,primary,fork"];
    let outcome = run.args(&args).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let ledger = outcome.printed();
    let mut kinds: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for call in &outcome.trace.calls {
        if let Some(made) = call.effect.allocation() {
            let row = kinds.entry(made.kind.as_str()).or_default();
            (row[0], row[1]) = (row[0] + 1, row[1] + made.bytes);
        }
        if let Some(freed) = call.effect.freed() {
            let row = kinds.entry(freed.kind.as_str()).or_default();
            (row[2], row[3]) = (row[2] + freed.allocations, row[3] + freed.bytes);
        }
    }
    for kind in ["device", "managed", "pinned", "pool", "vmm", "array"] {
        let fields = ["allocations", "allocated_bytes", "frees", "freed_bytes"];
        let printed = fields.map(|field| number(&ledger["memory"][kind][field]));
        assert!(printed[2] > 100, "{kind}: {printed:?}");
        assert_eq!(kinds.get(kind), Some(&printed), "{fields:?} of {kind}");
    }
}

/// A daemon that watches the stand-in, and the ledger of the program of launches, which waits.
fn launching(options: &[&str], mode: &str) -> (tempfile::TempDir, Daemon, Talk, Value) {
    let folder = folder("launches");
    let library = shown(folder.path().join(LIBRARY));
    let daemon = Daemon::displaying(0, &[options, &["-p", &library]].concat());
    let mut talk = Talk::start(Command::new(folder.path().join("launches")).args([mode, "--wait"]));
    let ledger = talk.json();
    (folder, daemon, talk, ledger)
}

fn assert_launches(options: &[&str], mode: &str) {
    let (_folder, daemon, mut talk, ledger) = launching(options, mode);
    let pid = pid_of(&ledger);
    let metrics = daemon.until_equal(FRESH, |metrics: &Metrics, found| {
        found.compare("launches", &metrics.by(LAUNCHES, pid, "kernel"), &counts_of(&ledger["launches"]));
        found.compare("in graphs", &metrics.by(IN_GRAPHS, pid, "kernel"), &counts_of(&ledger["in_graphs"]));
    });
    for cause in ["gpu_ops_full", "unread_gpu_op", "counters_full", "lost_name"] {
        assert_eq!(metrics.lost(cause), 0, "{cause}");
    }
    let disabled = Some(number(&ledger["disabled"])).filter(|n| *n > 0);
    assert_eq!(metrics.of("gpuprobe_graph_kernels_disabled_total", pid), disabled);
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
}

#[bpf_test(tiers, alone)]
fn every_launch_function_of_hip_is_counted_once_with_its_kernel(tier: &str) {
    assert_launches(&["--attach", tier, "--cudatrace"], "doors");
}

#[bpf_test(alone)]
fn graphs_of_hip_count_their_kernels() {
    assert_launches(&["--cudatrace"], "graphs");
}

#[bpf_test(together)]
fn a_grid_that_is_given_in_threads_is_shown_in_blocks() {
    let folder = folder("launches");
    let outcome = Run::new(folder.path().join("launches")).args(&["doors"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let launches = outcome.trace.calls.iter().filter(|c| c.class == Class::Launch && !c.failed());
    let odd: Vec<&Call> = launches
        .filter(|call| {
            let launch = call.effect.launch();
            let shape = launch.map(|l| (l.grid, l.block));
            shape != Some((Some([3, 2, 1]), Some([32, 4, 1]))) && call.name != "hipLaunchByPtr"
        })
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
    let seen = outcome.trace.calls.iter().any(|c| c.name == "hipExtModuleLaunchKernel" && c.api == Api::Hip);
    assert!(seen, "a launch whose grid is given in threads");
}

#[bpf_test(together)]
fn the_summary_needs_no_option_to_name_calls_and_kernels() {
    let folder = folder("ledger");
    let program = shown(folder.path().join("ledger"));
    let mut run = gpuprobe(&["run", "--", &program, "--calls", "2000"]);
    // the trace is written to the current folder
    let summary = finish(run.current_dir(folder.path()));
    assert_eq!(summary.status, 0, "{}", summary.stderr);
    let text = format!("{}{}", summary.stdout, summary.stderr);
    assert!(text.contains("hipMalloc") && text.contains("ledger_scale"), "{text}");
}
