//! The host's GPU of each allocation, for any set of GPUs that a process sees and any order of them.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::gpu_listing::{GPUS, driver_folder, pci, uuid};
use gpuprobe_e2e::memory_ledger::{LIVE_ALLOCATIONS, LIVE_BYTES};
use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures, tiers};
use gpuprobe_standin::Cuda;

/// Five snapshots per second, on a busy machine.
const FRESH: Duration = Duration::from_secs(20);

const BY_BUS: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
/// The CUDA driver numbers the third GPU first.
const BY_SPEED: (&str, &str) = ("STANDIN_FASTEST", "2");

/// The stand-ins, and a daemon that watches them on a host with these GPUs.
fn watched(tier: &str) -> (tempfile::TempDir, Daemon) {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1", "gpus"]);
    let (driver, library) = (driver_folder(folder.path()), shown(folder.path().join("libcuda.so.1")));
    let options = ["--memleak", "--attach", tier, "--driver-folder", &driver, "-p", &library];
    let daemon = Daemon::with(&options);
    (folder, daemon)
}

/// By the labels `gpu` and `numbering`.
type ByGpu = BTreeMap<(String, Option<String>), u64>;

fn by_gpu(metrics: &Metrics, name: &str, pid: u32) -> ByGpu {
    let pid = pid.to_string();
    let mut values = ByGpu::new();
    for (labels, n) in metrics.samples(name).filter(|(l, _)| l["pid"] == pid && l["kind"] == "device") {
        let gpu = (labels["gpu"].clone(), labels.get("numbering").cloned());
        assert_eq!(values.insert(gpu, n), None, "a series twice: {labels:?}");
    }
    values
}

/// The numbering that the metrics must use.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Numbers {
    OfHost,
    OfProcess,
}

/// An environment, the GPUs that are visible in it, and the numbering of the metrics.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [u8], Numbers);

/// Runs the workload, which must see these GPUs, and compares the metrics of the daemon.
fn assert_case(
    (folder, daemon): &(tempfile::TempDir, Daemon),
    environment: &[(&str, &str)],
    words: &[&str],
    seen: &[u8],
    numbers: Numbers,
) {
    println!("{environment:?} {words:?}");
    let mut command = Command::new(folder.path().join("gpus"));
    for name in ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "STANDIN_FASTEST"] {
        command.env_remove(name);
    }
    let mut workload = Talk::start(command.envs(environment.iter().copied()).args(words));
    let printed = workload.json();
    let pid = pid_of(&printed);
    let gpus: Vec<u64> = printed["gpus"].as_array().unwrap().iter().map(number).collect();
    assert_eq!(gpus, seen.iter().map(|gpu| u64::from(*gpu)).collect::<Vec<_>>(), "the stand-in");
    let expected = |bytes: fn(u64) -> u64| -> ByGpu {
        let row = |(own, gpu): (usize, &u64)| match numbers {
            Numbers::OfHost => ((gpu.to_string(), None), bytes(*gpu)),
            Numbers::OfProcess => ((own.to_string(), Some("process".to_owned())), bytes(*gpu)),
        };
        gpus.iter().enumerate().map(row).collect()
    };
    let (bytes, allocations) = (expected(|gpu| 1_000_000 * (gpu + 1)), expected(|_| 1));
    daemon.until(FRESH, &format!("{bytes:?}"), |m| {
        by_gpu(m, LIVE_BYTES, pid) == bytes && by_gpu(m, LIVE_ALLOCATIONS, pid) == allocations
    });
    workload.go_on();
    assert_eq!(workload.end(), 0, "{}", workload.stderr());
    daemon.until(FRESH, "its gauges are removed", |m| by_gpu(m, LIVE_BYTES, pid).is_empty());
}

#[bpf_test(tiers, alone)]
fn memory_is_assigned_to_host_gpus_by_what_the_cuda_driver_returns(tier: &str) {
    // On perf a daemon may take half a minute to attach to everything else that runs, and the code tested here is the
    // same: perf is tested only where it is the best tier.
    if tier == "perf" && tiers::best() != "perf" {
        return;
    }
    let watched = watched(tier);
    for ask in ["uuid", "pci"] {
        assert_case(&watched, &[BY_SPEED], &[ask], &[2, 0, 1, 3], Numbers::OfHost);
        let chosen = [BY_SPEED, ("CUDA_VISIBLE_DEVICES", "3,1")];
        assert_case(&watched, &chosen, &[ask], &[3, 0], Numbers::OfHost);
    }
    // a program that changes its own choice after its start
    let begun = [BY_BUS, ("CUDA_VISIBLE_DEVICES", "0,1")];
    assert_case(&watched, &begun, &["uuid", "3,2"], &[3, 2], Numbers::OfHost);
}

#[bpf_test(alone)]
fn memory_is_assigned_to_gpus_by_the_environment_or_by_the_numbers_of_the_process() {
    let watched = watched(tiers::best());
    let by_names = format!("GPU-13,{}", uuid(0));
    let some = |list| ("CUDA_VISIBLE_DEVICES", list);
    let cases: [Case<'_>; 8] = [
        (&[BY_BUS], &[0, 1, 2, 3], Numbers::OfHost),
        (&[BY_BUS, BY_SPEED, some("3,1")], &[3, 1], Numbers::OfHost),
        (&[BY_BUS, some("1,9,0")], &[1], Numbers::OfHost),
        (&[BY_BUS, some("2,GPU-11")], &[2], Numbers::OfHost),
        (&[BY_SPEED, some(&by_names)], &[2, 0], Numbers::OfHost),
        (&[some("GPU-14,GPU-99,GPU-11")], &[3], Numbers::OfHost),
        // the fastest GPU is not known
        (&[BY_SPEED], &[2, 0, 1, 3], Numbers::OfProcess),
        (&[BY_SPEED, some("3,1")], &[3, 0], Numbers::OfProcess),
    ];
    for (environment, seen, numbers) in cases {
        assert_case(&watched, environment, &["nothing"], seen, numbers);
    }
    // a process that has changed its choice: its environment is not what the CUDA driver saw
    let begun = [BY_BUS, some("0,1")];
    assert_case(&watched, &begun, &["nothing", "3,2"], &[3, 2], Numbers::OfProcess);
    let infos = watched.1.scrape();
    let listed: Vec<_> = infos.samples("gpuprobe_gpu_info").collect();
    let info = |gpu: u8| {
        let labels = [("gpu", gpu.to_string()), ("pci", pci(gpu)), ("uuid", uuid(gpu))];
        (labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(), 1)
    };
    assert_eq!(listed, (0..GPUS).map(info).collect::<Vec<_>>());
}
