//! Two million launches by sixteen threads, and a large graph: all counts are exact, within the limit of series.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

const FRESH: Duration = Duration::from_secs(30);
const LAUNCHES: &str = "gpuprobe_kernel_launches_total";
const DERIVED: &str = "gpuprobe_graph_kernels_derived_total";
/// CUDA kernels with series of their own.
const TOP: usize = 20;
const ALL: u64 = 2_000_000;

#[bpf_test(tiers, alone)]
fn millions_of_launches_and_of_graph_kernels_are_exact(tier: &str) {
    let folder = fixtures::folder();
    let files = ["libcuda.so.1", "libcudart.so.12", "launches"];
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &files);
    let library = shown(folder.path().join("libcuda.so.1"));
    let daemon = Daemon::displaying(0, &["--attach", tier, "--cudatrace", "-p", &library]);
    let mut command = Command::new(folder.path().join("launches"));
    let mut talk = Talk::start(command.args(["counted", "16", &ALL.to_string(), "--wait"]));
    let ledger = talk.json();
    let pid = pid_of(&ledger);
    let sum = |m: &Metrics| m.by(LAUNCHES, pid, "kernel").values().sum::<u64>();
    // a name may come shortly after the first launch
    let named = |m: &Metrics| !m.by(LAUNCHES, pid, "kernel").contains_key("unknown");
    let derived = |m: &Metrics| m.by(DERIVED, pid, "kernel").values().sum::<u64>();
    let metrics = daemon.until(FRESH, "all launches", |m| sum(m) >= ALL && named(m) && derived(m) >= 40_000);
    assert_eq!(sum(&metrics), ALL);
    assert_top(metrics.by(LAUNCHES, pid, "kernel"), counts_of(&ledger["launches"]));
    assert_eq!(metrics.of("gpuprobe_graph_launches_total", pid), Some(40));
    let in_graphs = metrics.by(DERIVED, pid, "kernel");
    assert_eq!(in_graphs.values().sum::<u64>(), 40_000, "{in_graphs:?}");
    assert!(
        in_graphs.keys().all(|kernel| kernel == "other" || kernel.starts_with("counted_")),
        "{in_graphs:?}"
    );
    assert_eq!(number(&ledger["captured"]), 1000);
    assert_eq!(metrics.lost("gpu_ops_full"), 0);
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
}

/// CUDA kernels get their series at some moment; earlier launches are in `other`. Nothing is counted twice: the sum
/// is compared with the ledger, too.
fn assert_top(mut got: BTreeMap<String, u64>, ledger: BTreeMap<String, u64>) {
    assert_eq!(ledger.len(), 50);
    assert!((TOP + 1..=50).contains(&got.len()), "{got:?}");
    assert!(got.remove("other").is_some());
    for (kernel, n) in &got {
        assert!(ledger.get(kernel).is_some_and(|all| n <= all), "{kernel}: {n}");
    }
}
