//! Failures by function and error, counted where they occurred: in the CUDA driver, or in the runtime before it
//! called the CUDA driver. Those of the runtime's calls for memory are counted on request.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

/// Failures of one process, by function and error.
pub(crate) fn failures(metrics: &Metrics, pid: u32) -> BTreeMap<(String, String), u64> {
    let ours = metrics.samples("gpuprobe_errors_total").filter(|(l, _)| l["pid"] == pid.to_string());
    ours.map(|(labels, n)| ((labels["function"].clone(), labels["error"].clone()), n)).collect()
}

#[bpf_test(tiers, alone)]
fn a_failure_is_counted_once_by_name_where_it_occurred(tier: &str) {
    let folder = fixtures::folder();
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
    let [driver, runtime] = ["libcuda.so.1", "libcudart.so.12"].map(|name| shown(folder.path().join(name)));
    let options = ["--attach", tier, "-p", &driver, "-p", &runtime];
    let one_layer = Daemon::with(&options);
    let daemon = Daemon::with(&[&options[..], &["--runtime-failures"]].concat());
    let mut command = Command::new("env");
    command.arg("STANDIN_FAIL=cudaMalloc:1:10,cuMemAlloc_v2:2:7").arg(folder.path().join("ledger"));
    let mut ledger =
        Talk::start(command.args(["--wait", "--pauses", "1", "--threads", "2", "--calls", "6000"]));
    let pid = pid_of(&ledger.json());
    ledger.go_on();
    let printed = ledger.json();
    let named = |function: &str, error: &str, caller: &str, code: &str| {
        ((function.to_owned(), error.to_owned()), number(&printed["errors"][caller][code]))
    };
    let mut expected = BTreeMap::from([
        named("cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY", "cudaMalloc", "2"),
        // it frees some things twice
        named("cuMemFree_v2", "CUDA_ERROR_INVALID_VALUE", "cudaFree", "1"),
    ]);
    assert!(expected.values().all(|n| *n > 0), "{printed}");
    one_layer.until_equal(PATIENCE, |metrics, wrong| {
        wrong.compare(&format!("failures of the driver by {tier}"), &failures(metrics, pid), &expected);
    });
    // removing the probes of the runtime would take longest where each is removed separately
    if tier != "perf" {
        expected.extend([named("cudaMalloc", "cudaErrorInvalidValue", "cudaMalloc", "1")]);
    }
    assert!(expected.values().all(|n| *n > 0), "{printed}");
    let metrics = daemon.until_equal(PATIENCE, |metrics, wrong| {
        wrong.compare(&format!("failures by {tier}"), &failures(metrics, pid), &expected);
    });
    assert_eq!(metrics.lost("counters_full"), 0);
    assert_eq!(ledger.finish().0, 0, "{}", ledger.stderr());
}

/// A runtime whose calls all fail with different errors, and a program that calls it the given number of times.
const RUNTIME: &str = "int cudaMalloc(void **p, unsigned long n) { static int code; return ++code; }";
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int cudaMalloc(void **, unsigned long);
int main(int argc, char **argv)
{
	for (int i = atoi(argv[1]); i > 0; i--)
		cudaMalloc(0, 16);
	printf("{\"pid\": %d}\n", getpid());
	fflush(stdout);
	getchar();
	return 0;
}"#;

#[bpf_test(needs(tier("multi")), alone)]
fn a_process_with_too_many_kinds_of_failure_has_an_exact_sum_and_does_not_affect_others() {
    const KINDS: u64 = 64;
    let folder = fixtures::folder();
    let at = |name: &str| shown(folder.path().join(name));
    fs::write(at("runtime.c"), RUNTIME).unwrap();
    fs::write(at("program.c"), PROGRAM).unwrap();
    let library =
        ["-shared", "-fPIC", "-Wl,-soname,libcudart.so.12", "-o", &at("libcudart.so.12"), &at("runtime.c")];
    let program = [
        "-o",
        &at("program"),
        &at("program.c"),
        &at("libcudart.so.12"),
        "-Wl,-rpath",
        folder.path().to_str().unwrap(),
    ];
    for arguments in [&library[..], &program[..]] {
        assert!(Command::new("cc").args(arguments).status().unwrap().success());
    }
    let daemon = Daemon::with(&["--runtime-failures", "-p", &at("libcudart.so.12")]);
    let fails = |times: u64| {
        let mut talk = Talk::start(Command::new(at("program")).arg(times.to_string()));
        let pid = pid_of(&talk.json());
        (talk, pid)
    };
    let (mut many, mut few) = (fails(500), fails(3));
    let other = ("other".to_owned(), "other".to_owned());
    let sum = |metrics: &Metrics, pid| failures(metrics, pid).values().sum::<u64>();
    let compare = |metrics: &Metrics, wrong: &mut gpuprobe_e2e::metrics::Differences| {
        wrong.compare("all", &[sum(metrics, many.1), sum(metrics, few.1)], &[500, 3]);
        let others = |pid| failures(metrics, pid).get(&other).copied();
        wrong.compare("without a name", &[others(many.1), others(few.1)], &[Some(500 - KINDS), None]);
        wrong.compare("counted as lost", &metrics.lost("failures_full"), &(500 - KINDS));
    };
    daemon.until_equal(PATIENCE, compare);
    // the same after they have exited
    for talk in [&mut many.0, &mut few.0] {
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
    }
    daemon.until_equal(PATIENCE, |metrics, wrong| {
        wrong.compare("gauges", &metrics.by("gpuprobe_memory_live_bytes", many.1, "kind"), &BTreeMap::new());
        wrong.compare("all at the end", &[sum(metrics, many.1), sum(metrics, few.1)], &[500, 3]);
    });
}
