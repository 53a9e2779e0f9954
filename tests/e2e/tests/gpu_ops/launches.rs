//! Launches and graphs in the metrics of a daemon and in a recording, compared with the ledgers of the programs.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, Talk, bpf_test, fixtures};
use gpuprobe_event::{Call, Class, Effect, GraphLaunch};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// Time for a fresh snapshot on a slow machine.
const FRESH: Duration = Duration::from_secs(20);

const LAUNCHES: &str = "gpuprobe_kernel_launches_total";
const GRAPHS: &str = "gpuprobe_graph_launches_total";
const DERIVED: &str = "gpuprobe_graph_kernels_derived_total";
const GAPS: &str = "gpuprobe_stream_gaps_total";

/// Stand-ins that no other test uses, and a daemon that watches them.
fn watched(options: &[&str], workload: &str) -> (tempfile::TempDir, Daemon, Command) {
    let folder = fixtures::folder();
    let files = ["libcuda.so.1", "libcudart.so.12", workload];
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &files);
    let library = shown(folder.path().join("libcuda.so.1"));
    let daemon = Daemon::displaying(0, &[options, &["-p", &library]].concat());
    let command = Command::new(folder.path().join(workload));
    (folder, daemon, command)
}

/// Waits until the launches by CUDA kernel equal the ledger. A name may come shortly after the first launch.
fn launches(daemon: &Daemon, ledger: &Value) -> (Metrics, BTreeMap<String, u64>) {
    let (pid, expected) = (pid_of(ledger), counts_of(&ledger["launches"]));
    let metrics = daemon.until_equal(FRESH, |metrics, found| {
        found.compare("launches", &metrics.by(LAUNCHES, pid, "kernel"), &expected);
        let in_graphs = counts_of(&ledger["in_graphs"]);
        found.compare("kernels in graphs", &metrics.by(DERIVED, pid, "kernel"), &in_graphs);
    });
    (metrics, expected)
}

fn assert_nothing_lost(metrics: &Metrics) {
    for cause in ["gpu_ops_full", "unread_gpu_op", "counters_full", "lost_name"] {
        assert_eq!(metrics.lost(cause), 0, "{cause}");
    }
}

/// Runs the workload in one of its modes, and compares while it is paused and after its exit.
fn assert_mode(options: &[&str], mode: &str) {
    let (_folder, daemon, mut command) = watched(options, "launches");
    let mut talk = Talk::start(command.args([mode, "--wait"]));
    let ledger = talk.json();
    let expected = counts_of(&ledger["launches"]);
    let (metrics, _) = launches(&daemon, &ledger);
    assert_graphs(&metrics, &ledger);
    assert_nothing_lost(&metrics);
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    let pid = pid_of(&ledger);
    // its gauges end with it; then its rows have been removed from the BPF tables
    let live = |m: &Metrics| m.by("gpuprobe_memory_live_bytes", pid, "kind").is_empty();
    let ended = daemon.until(FRESH, "the end", |m| live(m) && m.by(LAUNCHES, pid, "kernel") == expected);
    assert_graphs(&ended, &ledger);
}

fn assert_graphs(metrics: &Metrics, ledger: &Value) {
    let graphs = number(&ledger["graph_launches"]);
    let expected = |n: u64| (graphs > 0).then_some(n);
    let pid = pid_of(ledger);
    assert_eq!(metrics.of(GRAPHS, pid), expected(graphs), "launches of graphs");
    let in_graphs = metrics.by(DERIVED, pid, "kernel");
    assert_eq!(in_graphs, counts_of(&ledger["in_graphs"]), "kernels of graphs by name");
    assert_eq!(in_graphs.values().sum::<u64>(), number(&ledger["derived"]), "derived");
    let positive = |field: &str| Some(number(&ledger[field])).filter(|n| *n > 0);
    assert_eq!(metrics.of("gpuprobe_graph_kernels_disabled_total", pid), positive("disabled"));
    assert_eq!(metrics.of("gpuprobe_graph_conditional_nodes_total", pid), positive("conditional"));
    assert_eq!(metrics.of("gpuprobe_graph_launches_unknown_total", pid), expected(0));
}

#[bpf_test(tiers, alone)]
fn every_launch_function_is_counted_once_with_its_cuda_kernel(tier: &str) {
    assert_mode(&["--attach", tier, "--cudatrace"], "doors");
}

#[bpf_test(together)]
fn the_classic_example_is_two_thousand_launches_a_thousand_each() {
    let (_folder, daemon, mut command) = watched(&[], "launches");
    let mut talk = Talk::start(command.args(["classic", "--wait"]));
    let (_, kernels) = launches(&daemon, &talk.json());
    let expected = [("add(float*, float*, int)", 1000), ("scale(float*, int)", 1000)];
    assert_eq!(kernels, expected.map(|(name, n)| (name.to_owned(), n)).into());
    talk.go_on();
    assert_eq!(talk.end(), 0);
}

// on perf, where removing its probes takes a daemon half a minute, the other modes are enough
#[bpf_test(tiers(session, multi), alone)]
fn captured_launches_do_not_run_and_graph_launches_count_their_cuda_kernels(tier: &str) {
    assert_mode(&["--attach", tier, "--cudatrace"], "graphs");
}

#[bpf_test(together)]
fn gaps_begin_with_waits_or_launches_and_name_the_call_of_the_host() {
    let (folder, daemon, _) = watched(&[], "gaps");
    // set by a shell, because programs started here have a clean environment
    let script =
        format!("STANDIN_DELAY=cuMemcpyHtoD_v2:40000 exec {} --wait", shown(folder.path().join("gaps")));
    let mut talk = Talk::start(Command::new("/bin/sh").args(["-c", &script]));
    let ledger = talk.json();
    let pid = pid_of(&ledger);
    let expected = ["after_sync", "after_launch"].map(|kind| number(&ledger[kind]));
    let counts = |m: &Metrics| {
        let counts = m.by(GAPS, pid, "after");
        ["sync", "launch"].map(|kind| counts.get(kind).copied().unwrap_or(0))
    };
    let metrics = daemon.until(FRESH, "all gaps", |m| counts(m) == expected);
    let longest: BTreeMap<_, f64> = metrics
        .values("gpuprobe_stream_gap_longest_seconds")
        .filter(|(labels, _)| labels["pid"] == pid.to_string())
        .map(|(labels, value)| {
            ((labels["after"].clone(), labels["meanwhile"].clone()), value.parse().unwrap())
        })
        .collect();
    let of = |after: &str, meanwhile: &str| longest[&(after.to_owned(), meanwhile.to_owned())];
    assert!((0.030..10.0).contains(&of("sync", "none")), "{longest:?}");
    assert!((0.040..10.0).contains(&of("launch", "cuMemcpyHtoD_v2")), "{longest:?}");
    assert_eq!(longest.len(), 2, "{longest:?}");
    talk.go_on();
    assert_eq!(talk.end(), 0);
}

// a daemon watches the whole host, and other programs would use some of the room
#[bpf_test(alone)]
fn launches_that_do_not_fit_are_counted_as_lost() {
    let (_folder, daemon, mut command) = watched(&["--max-kernels", "8"], "launches");
    let mut talk = Talk::start(command.args(["doors", "--wait"]));
    let ledger = talk.json();
    let all: u64 = counts_of(&ledger["launches"]).values().sum();
    let pid = pid_of(&ledger);
    let sum = |m: &Metrics| m.by(LAUNCHES, pid, "kernel").values().sum::<u64>();
    // the launch that fails does not fit either
    let metrics = daemon.until(FRESH, "all launches", |m| sum(m) + m.lost("gpu_ops_full") > all);
    let (counted, lost) = (sum(&metrics), metrics.lost("gpu_ops_full"));
    assert_eq!(counted + lost, all + 1, "{counted} counted, {lost} lost");
    assert!(counted > 0 && lost > 10, "{counted} counted, {lost} lost");
    talk.go_on();
    assert_eq!(talk.end(), 0);
}

/// The outermost launches of a recording by CUDA kernel, and the number of captured ones.
fn reported(outcome: &Outcome, ledger: &Value) -> (BTreeMap<String, u64>, u64) {
    let (mut kernels, mut captured) = (BTreeMap::new(), 0);
    let outermost = |c: &&Call| c.class == Class::Launch && c.parent.is_none() && !c.failed();
    for call in outcome.trace.of(pid_of(ledger)).filter(outermost) {
        let launch = call.effect.launch().unwrap_or_else(|| panic!("no launch: {call:?}"));
        if launch.captured {
            captured += launch.kernels;
        } else {
            let name = launch.kernel.as_deref().unwrap_or("unknown");
            *kernels.entry(name.to_owned()).or_default() += launch.kernels;
        }
    }
    (kernels, captured)
}

/// Graph launches that ran, their CUDA kernels, and the CUDA kernels of captured graph launches.
fn graphs_reported(outcome: &Outcome, ledger: &Value) -> (u64, u64, u64) {
    let (mut launches, mut derived, mut captured) = (0, 0, 0);
    let outermost = |c: &&Call| c.class == Class::GraphLaunch && c.parent.is_none();
    for call in outcome.trace.of(pid_of(ledger)).filter(outermost) {
        let Effect::GraphLaunch(GraphLaunch { kernels: Some(kernels), captured: is_captured, .. }) =
            &call.effect
        else {
            panic!("not known: {call:?}")
        };
        if *is_captured {
            captured += *kernels;
        } else {
            (launches, derived) = (launches + 1, derived + *kernels);
        }
    }
    (launches, derived, captured)
}

fn recorded(options: &[&str], mode: &str) -> (Outcome, Value) {
    let built = fixtures::standins(Cuda::Cuda12);
    let outcome = Run::new(built.workload("launches")).options(options).args(&[mode]).outcome();
    let ledger = outcome.printed();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    (outcome, ledger)
}

#[bpf_test(tiers(session, multi), together)]
fn a_recording_has_launches_captured_launches_and_the_cuda_kernels_of_graphs(tier: &str) {
    for mode in ["doors", "graphs"] {
        println!("{mode}");
        let (outcome, ledger) = recorded(&["--attach", tier], mode);
        let expected = counts_of(&ledger["launches"]);
        let [graphs, derived, captured] =
            ["graph_launches", "derived", "captured"].map(|f| number(&ledger[f]));
        let (kernels, captured_alone) = reported(&outcome, &ledger);
        let (graphs_reported, derived_reported, captured_in_graphs) = graphs_reported(&outcome, &ledger);
        assert_eq!(kernels, expected, "by its lines");
        assert_eq!((graphs_reported, derived_reported), (graphs, derived), "by its lines");
        assert_eq!(captured_alone + captured_in_graphs, captured, "by its lines");

        let work = outcome.trace.work();
        let kernels = work.kernels.iter().filter(|k| k.totals.launches > 0);
        let kernels: BTreeMap<_, _> = kernels.map(|k| (k.kernel.clone(), k.totals.launches)).collect();
        assert_eq!(kernels, expected, "in its summary");
        let in_graphs = work.kernels.iter().filter(|k| k.in_graphs > 0);
        let in_graphs: BTreeMap<_, _> = in_graphs.map(|k| (k.kernel.clone(), k.in_graphs)).collect();
        assert_eq!(in_graphs, counts_of(&ledger["in_graphs"]), "kernels of graphs by name");
        let summed = work.graphs;
        assert_eq!((summed.launches, summed.derived, summed.captured), (graphs, derived, captured));
        let nodes = ["disabled", "conditional"].map(|f| number(&ledger[f]));
        assert_eq!([summed.disabled, summed.conditional], nodes);
        assert_eq!((summed.errors, summed.unknown), (0, 0));
    }
}

#[bpf_test(together)]
fn captured_launches_are_reported_with_few_probed_functions() {
    let (outcome, ledger) = recorded(&["--attach", "perf", "-e", "cuLaunchKernel*"], "graphs");
    let (kernels, captured) = reported(&outcome, &ledger);
    assert_eq!(kernels, counts_of(&ledger["launches"]));
    // except for the 17 of a graph whose launch was captured
    assert_eq!(captured, number(&ledger["captured"]) - 17);
    assert!(
        outcome.trace.calls.iter().all(|c| c.name.starts_with("cuLaunchKernel")),
        "other calls are not recorded"
    );
}

#[bpf_test(together)]
fn a_recording_has_its_gaps_and_the_calls_of_the_host_in_them() {
    let built = fixtures::standins(Cuda::Cuda12);
    let run = Run::new(built.workload("gaps")).env("STANDIN_DELAY", "cuMemcpyHtoD_v2:40000");
    let outcome = run.outcome();
    let ledger = outcome.printed();
    let gaps = outcome.trace.work().gaps;
    let counts = [gaps.after_sync.gaps, gaps.after_launch.gaps];
    assert_eq!(counts, ["after_sync", "after_launch"].map(|kind| number(&ledger[kind])));
    let longest: Vec<_> = gaps.longest.iter().map(|g| (g.kind.as_str(), g.meanwhile)).collect();
    let of = |gap| longest.iter().filter(|found| **found == gap).count();
    assert_eq!(of(("launch", Some("cuMemcpyHtoD_v2"))), 2, "{longest:?}");
    assert_eq!(of(("sync", None)), 3, "{longest:?}");
    assert!(gaps.longest.iter().all(|g| g.ns >= 30_000_000), "{gaps:?}");
}
