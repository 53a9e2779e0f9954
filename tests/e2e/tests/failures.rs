//! Failures by function and error, counted where they came from: in the driver, or in the runtime before it was reached.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, alone, needs, places, tiers};
use gpuprobe_standin::Cuda;

/// Failures of one process, by function and error.
fn failures(metrics: &Metrics, pid: u32) -> BTreeMap<(String, String), u64> {
    let ours = metrics.samples("gpuprobe_errors_total").filter(|(l, _)| l["pid"] == pid.to_string());
    ours.map(|(labels, n)| ((labels["function"].clone(), labels["error"].clone()), n)).collect()
}

#[test]
fn a_failure_is_counted_once_by_name_where_it_came_from() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    for tier in tiers::here() {
        let folder = places::folder();
        let built = places::standins(Cuda::Cuda12);
        places::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
        let [driver, runtime] =
            ["libcuda.so.1", "libcudart.so.12"].map(|name| shown(folder.path().join(name)));
        let daemon = Daemon::with(&["--attach", tier, "-p", &driver, "-p", &runtime]);
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
        // probes of the runtime would take longest to be taken out where each is taken out alone
        if *tier != "perf" {
            expected.extend([named("cudaMalloc", "cudaErrorInvalidValue", "cudaMalloc", "1")]);
        }
        assert!(expected.values().all(|n| *n > 0), "{printed}");
        let metrics = daemon.until_equal(PATIENCE, |metrics, wrong| {
            wrong.compare(&format!("failures by {tier}"), &failures(metrics, pid), &expected);
        });
        assert_eq!(metrics.lost("counters_full"), 0);
        assert_eq!(ledger.finish().0, 0, "{}", ledger.stderr());
    }
}
