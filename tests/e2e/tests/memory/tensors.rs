//! Tensors of a framework's allocator: what `memory --tensors`, `run --tensors` and a daemon report equals the ledger
//! of a program with many threads. Device memory is the same with and without them.

use std::collections::BTreeMap;

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{Recording, number, pid_of};
use gpuprobe_e2e::site_ledger::{self, SiteLedger, Watching};
use gpuprobe_e2e::{Run, Talk, bpf_test, fixtures, tiers};
use gpuprobe_event::Space;
use gpuprobe_standin::Cuda;
use serde_json::Value;

const FILES: [&str; 5] = ["libcuda.so.1", "libcudart.so.12", "libc10.so", "libc10_cuda.so", "tensors"];
/// Enough for every function of the workload's allocator.
const FUNCTIONS: [&str; 4] = ["cudaMalloc", "cudaFree", "cuMemAlloc_v2", "cuMemFree_v2"];
const THREADS: &str = "16";

/// Stand-ins that no other test uses.
fn folder() -> tempfile::TempDir {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &FILES);
    folder
}

/// Calls this with what the program prints at every pause, and at the end, when everything is still live.
fn at_each_pause(program: &mut Talk, pauses: usize, mut look: impl FnMut(&Value, &SiteLedger)) {
    for _ in 0..=pauses {
        program.go_on();
        let printed = program.json();
        look(&printed, &SiteLedger::of(&printed, "tensors.cpp"));
    }
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

/// A figure of the ledger by GPU.
fn by_gpu(printed: &Value, field: &str) -> BTreeMap<String, u64> {
    let devices = printed["devices"].as_array().unwrap();
    devices.iter().enumerate().map(|(gpu, device)| (gpu.to_string(), number(&device[field]))).collect()
}

/// Compares the GPUs of a process in a report with the ledger, and its device memory with what is reserved.
fn assert_gpus(report: &Value, printed: &Value) {
    let of_process = |list: &Value| {
        let processes = list["processes"].as_array().unwrap();
        processes.iter().find(|process| process["pid"] == printed["pid"]).unwrap().clone()
    };
    let tensors = of_process(&report["tensors"]);
    let gpus = tensors["gpus"].as_array().unwrap();
    let reported = |field: &str| -> BTreeMap<String, u64> {
        gpus.iter().map(|gpu| (gpu["gpu"].to_string(), number(&gpu[field]))).collect()
    };
    for (ours, theirs) in [
        ("in_use_bytes", "in_use_bytes"),
        ("live_bytes", "in_use_bytes"),
        ("reserved_bytes", "reserved_bytes"),
        ("fragmented_bytes", "fragmented_bytes"),
        ("live_tensors", "live"),
    ] {
        assert_eq!(reported(ours), by_gpu(printed, theirs), "{ours}");
    }
    for field in ["unattributed_bytes", "unknown_frees"] {
        assert!(reported(field).values().all(|n| *n == 0), "{field}: {gpus:?}");
    }
    let reserved: u64 = by_gpu(printed, "reserved_bytes").values().sum();
    assert_eq!(number(&of_process(report)["live_bytes"]), reserved, "device memory is what is reserved");
}

// on perf, where each function takes a tenth of a second, a recording with few of them is enough
#[bpf_test(tiers(session, multi), alone)]
fn tensors_by_call_site_and_gpu_are_those_of_the_allocator(tier: &str) {
    let folder = folder();
    let args = ["--rounds", "300", "--threads", THREADS, "--pauses", "3"];
    let (mut program, pid) = site_ledger::waiting(&folder.path().join("tensors"), &args);
    let mut watching = Watching::start(&["--tensors", "--attach", tier, "-d", &pid.to_string()]);
    at_each_pause(&mut program, 3, |printed, ledger| {
        let report = watching.assert_equal_tensors(ledger);
        assert_gpus(&report, printed);
    });
}

#[bpf_test(tiers(session, multi), alone)]
fn the_metrics_of_a_daemon_are_those_of_the_allocator(tier: &str) {
    const SITE_LIVE_BYTES: &str = "gpuprobe_tensor_site_live_bytes";
    let folder = folder();
    let [driver, framework] = ["libcuda.so.1", "libc10.so"].map(|name| shown(folder.path().join(name)));
    let options = ["--tensors", "--memleak", "--attach", tier, "-p", &driver, "-p", &framework];
    let daemon = Daemon::with(&options);
    let args = ["--rounds", "200", "--threads", THREADS, "--pauses", "2"];
    let (mut program, pid) = site_ledger::waiting(&folder.path().join("tensors"), &args);
    at_each_pause(&mut program, 2, |printed, ledger| {
        daemon.until_equal(PATIENCE, |metrics, found| {
            for (metric, field) in [
                ("gpuprobe_tensor_live_bytes", "in_use_bytes"),
                ("gpuprobe_tensor_reserved_bytes", "reserved_bytes"),
                ("gpuprobe_tensor_fragmented_bytes", "fragmented_bytes"),
            ] {
                found.compare(metric, &metrics.by(metric, pid, "gpu"), &by_gpu(printed, field));
            }
            let reserved: u64 = by_gpu(printed, "reserved_bytes").values().sum();
            let device = metrics.by("gpuprobe_memory_live_bytes", pid, "kind").get("device").copied();
            found.compare("device memory", &device, &Some(reserved));
            let out_of_memory: u64 = by_gpu(printed, "out_of_memory").values().sum();
            found.compare(
                "out of memory",
                &metrics.of("gpuprobe_out_of_memory_total", pid),
                &Some(out_of_memory),
            );
            ledger.compare(found, metrics, SITE_LIVE_BYTES, |figures| figures.live_bytes);
            ledger.compare(found, metrics, "gpuprobe_tensor_site_live_tensors", |figures| figures.live);
        });
    });
    daemon.until(PATIENCE, "its gauges are removed", |m| m.by(SITE_LIVE_BYTES, pid, "site").is_empty());
}

#[bpf_test(tiers, alone)]
fn a_recording_has_the_tensors_at_the_end_and_device_memory_is_the_same_without(tier: &str) {
    for with_tensors in [true, false] {
        let more: &[&str] = if with_tensors { &["--tensors"] } else { &[] };
        let run = Run::new(fixtures::standins(Cuda::Cuda12).workload("tensors"));
        let options = [tiers::options(tier, &FUNCTIONS).as_slice(), more].concat();
        let outcome = run.options(&options).args(&["--rounds", "200", "--threads", THREADS]).outcome();
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        let (printed, end) = (outcome.printed(), outcome.trace.assert_whole());
        let live = &end.memory.as_ref().unwrap().freed_by_exit;
        let device = live.iter().find(|live| live.kind == Space::Device).map(|live| live.bytes);
        let reserved: u64 = by_gpu(&printed, "reserved_bytes").values().sum();
        assert_eq!(device, Some(reserved));
        let of = |figure: fn(&gpuprobe_event::TensorUse) -> u64| -> BTreeMap<String, u64> {
            end.tensors.gpus.iter().map(|of| (of.gpu.unwrap().to_string(), figure(of))).collect()
        };
        if !with_tensors {
            assert!(end.tensors.is_empty(), "{:?}", end.tensors);
            continue;
        }
        assert_eq!(of(|of| of.in_use_bytes), by_gpu(&printed, "in_use_bytes"));
        assert_eq!(of(|of| of.bytes), by_gpu(&printed, "in_use_bytes"));
        assert_eq!(of(|of| of.reserved_bytes.unwrap()), by_gpu(&printed, "reserved_bytes"));
        assert_eq!(of(|of| of.fragmented_bytes.unwrap()), by_gpu(&printed, "fragmented_bytes"));
        assert_eq!(of(|of| of.tensors), by_gpu(&printed, "live"));
        let ledger = SiteLedger::of(&printed, "tensors.cpp");
        let mut by_site: BTreeMap<String, u64> = BTreeMap::new();
        for site in &end.tensors.by_site.sites {
            *by_site.entry(ledger.shown_as(&site.call_site)).or_default() += site.bytes;
        }
        assert_eq!(by_site, ledger.by_name(|figures| figures.live_bytes));
        assert_out_of_memory(&outcome.trace, &printed);
    }
}

/// Every failed allocation of the program is an event with its line, its size and the lines that had the memory.
fn assert_out_of_memory(trace: &Recording, printed: &Value) {
    let mut by_gpu_found: BTreeMap<String, u64> = BTreeMap::new();
    for event in &trace.out_of_memory {
        *by_gpu_found.entry(event.gpu.unwrap().to_string()).or_default() += 1;
        assert_eq!(event.requested_bytes, 1 << 41);
        assert!(
            event.call_site.starts_with("Worker::fail") && event.call_site.contains("tensors.cpp:"),
            "{event:?}"
        );
        assert!((1..=10).contains(&event.largest.len()), "{event:?}");
        assert!(event.largest.is_sorted_by_key(|site| std::cmp::Reverse(site.bytes)), "{event:?}");
        assert!(event.in_use_bytes <= event.reserved_bytes, "{event:?}");
    }
    let mut expected = by_gpu(printed, "out_of_memory");
    expected.retain(|_, n| *n > 0);
    assert_eq!(by_gpu_found, expected);
}

/// Attached in the middle: the framework's own figures are right, and what is missing is known.
#[bpf_test(alone)]
fn tensors_from_before_the_attach_are_counted_as_such() {
    let folder = folder();
    let args = ["--rounds", "200", "--threads", "4", "--pauses", "1"];
    let (mut program, pid) = site_ledger::waiting(&folder.path().join("tensors"), &args);
    program.go_on();
    let before = program.json();
    let mut watching = Watching::start(&["--tensors", "--attach", tiers::best(), "-d", &pid.to_string()]);
    program.go_on();
    let printed = program.json();
    let frees: u64 =
        by_gpu(&printed, "frees").values().sum::<u64>() - by_gpu(&before, "frees").values().sum::<u64>();
    let report = watching.until("the figures of the framework", |report| {
        let processes = report["tensors"]["processes"].as_array().unwrap();
        let tensors = processes.iter().find(|process| process["pid"] == printed["pid"])?;
        let gpus = tensors["gpus"].as_array().unwrap();
        let sum = |field: &str| -> u64 { gpus.iter().map(|gpu| number(&gpu[field])).sum() };
        let in_use: u64 = by_gpu(&printed, "in_use_bytes").values().sum();
        (sum("in_use_bytes") == in_use)
            .then(|| (sum("live_bytes"), sum("unattributed_bytes"), sum("unknown_frees")))
    });
    let (live, unattributed, unknown_frees) = report;
    assert_eq!(live + unattributed, by_gpu(&printed, "in_use_bytes").values().sum::<u64>());
    assert!(
        unattributed > 0 && unknown_frees > 0 && unknown_frees < frees,
        "{live} {unattributed} {unknown_frees}"
    );
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

/// A program that calls the allocator through ctypes, which releases the GIL. The comment marks the line that leaks.
/// At the end it waits: the code of a module is freed when it has run, and then its name cannot be read any more.
const PYTHON: &str = "\
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
allocate = library._ZN7standin8allocateEmi
allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]
kept = []
def remember():
    kept.append(allocate(4096, 1))  # line 7
def train():
    for _ in range(100):
        remember()
train()
time.sleep(1)
";

#[bpf_test(alone)]
fn tensors_of_a_python_program_have_its_line() {
    let folder = folder();
    let program = folder.path().join("train.py");
    std::fs::write(&program, PYTHON).unwrap();
    let mut memory = gpuprobe(&["memory", "--tensors", "--json", "--", "python3"]);
    let finished = finish(memory.arg(&program).arg(folder.path().join("libc10_cuda.so")));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    let report = finished.json().pop().unwrap();
    let processes = report["tensors"]["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 1, "{report}");
    let (sites, other) = site_ledger::reported(&report["tensors"], pid_of(&processes[0]));
    let found: Vec<_> = sites.iter().map(|site| (site.name.as_str(), site.figures.live_bytes)).collect();
    assert_eq!(found, [("remember (train.py:7)", 100 * 4096)], "{other:?} {report}");
}
