//! ioctls to the NVIDIA kernel module, compared with those that the stand-ins make.

use std::collections::BTreeMap;
use std::process::Command;

use gpuprobe_analysis::{Layer, Summary, SummaryReport};
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, finish, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::tracing::Private;
use gpuprobe_e2e::{Recording, Run, bpf_test, devices, fixtures, tiers};
use gpuprobe_event::{Api, Call, DeviceTime, Event};
use gpuprobe_standin::Cuda;
use serde_json::Value;
use tempfile::TempDir;

const ALLOC: &str = "cuMemAlloc_v2";
const FREE: &str = "cuMemFree_v2";
/// The functions whose calls make ioctls.
const IOCTL_FUNCTIONS: (&str, &str) = ("STANDIN_IOCTL", "cuMemAlloc_v2,cuMemFree_v2:bad");
const COMMANDS: [&str; 3] = [
    "NV_ESC_RM_ALLOC(NV01_MEMORY_LOCAL_USER)",
    "NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_INFO_V2)",
    "NV_ESC_RM_FREE",
];
/// With an unreadable argument, and an unknown request.
const UNKNOWN_COMMANDS: [&str; 2] = ["NV_ESC_RM_CONTROL", "0xdeadbeef"];
/// Time that each allocation spends in user space.
const ABOVE_NS: u64 = 200_000;
const LEDGER_ARGS: [&str; 6] = ["--threads", "2", "--calls", "120", "--seed", "7"];

fn called(ledger: &Value, function: &str) -> u64 {
    number(&ledger["driver_calls"][function])
}

/// The ioctls made in a call, in order.
fn below<'a>(trace: &'a Recording, call: &Call) -> Vec<&'a Call> {
    let mut inside: Vec<_> =
        trace.calls.iter().filter(|c| c.parent == Some(call.id) && c.is_in_linux()).collect();
    inside.sort_by_key(|c| c.start_ns);
    inside
}

fn time_of(calls: &[&Call]) -> DeviceTime {
    DeviceTime { calls: calls.len() as u64, ns: calls.iter().filter_map(|c| c.duration_ns()).sum() }
}

fn ns_of(call: &Call) -> u64 {
    call.driver.unwrap_or_default().ns
}

/// Checks that every call of a function made these ioctls and has their duration.
fn assert_ioctls(trace: &Recording, ledger: &Value, function: &str, commands: &[&str]) {
    let calls: Vec<_> = trace.of(pid_of(ledger)).filter(|c| c.name == function).collect();
    assert_eq!(calls.len() as u64, called(ledger, function), "{function}");
    for call in calls {
        let inside = below(trace, call);
        assert_eq!(call.driver, Some(time_of(&inside)), "{call:?}");
        let ioctls = inside.iter().filter(|c| c.name == "ioctl");
        let names: Vec<_> =
            ioctls.clone().filter_map(|c| c.effect.device_syscall()?.command.as_deref()).collect();
        assert_eq!(names, commands, "{call:?}");
        for ioctl in ioctls {
            let (device, error) = (
                ioctl.effect.device_syscall().and_then(|asked| asked.device.as_deref()),
                ioctl.error.as_deref(),
            );
            assert_eq!(
                (device, error, ioctl.tid),
                (Some("nvidiactl"), Some("ENOTTY"), call.tid),
                "{ioctl:?}"
            );
            assert!(ioctl.start_ns >= call.start_ns);
        }
    }
}

fn layer<'a>(report: &'a SummaryReport, function: &str) -> &'a Layer {
    report.driver.layers.iter().find(|layer| layer.name == function).unwrap_or_else(|| panic!("{report:?}"))
}

/// Checks that a replayed trace has the same figures by function and by command.
fn assert_layers(trace: &Recording, ledger: &Value) {
    let mut summary = Summary::default();
    trace.calls.iter().for_each(|call| summary.feed(&Event::Call(Box::new(call.clone()))));
    let report = summary.report();
    let (allocs, frees) = (called(ledger, ALLOC), called(ledger, FREE));
    assert_eq!(report.driver.calls_of("ioctl").calls, 3 * allocs + 2 * frees);
    let of_kernel = trace.calls.iter().filter(|call| call.is_in_linux()).count() as u64;
    assert_eq!(report.calls, trace.calls.len() as u64 - of_kernel);
    assert!(report.slowest.iter().all(|call| call.api != Api::Kernel), "{:?}", report.slowest);
    assert!(report.errors.iter().all(|error| error.api != Api::Kernel), "{:?}", report.errors);
    let alloc = layer(&report, ALLOC);
    assert_eq!((alloc.calls, alloc.entered), (allocs, allocs));
    assert!(alloc.user_ns() >= allocs * ABOVE_NS, "{alloc:?}");
    let by_id = trace.by_id();
    let reported = by_id.values().filter(|call| call.name == ALLOC).filter_map(|call| call.driver);
    assert_eq!(alloc.driver.ns, reported.map(|driver| driver.ns).sum::<u64>());
    for command in COMMANDS {
        let row = report.driver.commands.iter().find(|row| row.command == command).unwrap();
        assert_eq!((row.calls, row.failures, row.device.as_deref()), (allocs, allocs, Some("nvidiactl")));
    }
}

// the other tests of this module make ioctls too
#[bpf_test(tiers, alone)]
fn every_ioctl_is_in_the_call_that_makes_it(tier: &str) {
    devices::make();
    let built = fixtures::standins(Cuda::Cuda12);
    let mut options = tiers::options(tier, &[ALLOC, FREE, "cudaMalloc"]);
    options.push("--driver");
    let run = Run::new(built.workload("ledger")).options(&options).args(&LEDGER_ARGS);
    let outcome =
        run.env(IOCTL_FUNCTIONS.0, IOCTL_FUNCTIONS.1).env("STANDIN_DELAY", "cuMemAlloc_v2:200").outcome();
    assert_eq!(outcome.finished.status, 0, "{tier}: {}", outcome.finished.stderr);
    let (trace, ledger) = (&outcome.trace, outcome.printed());
    trace.assert_whole();
    assert!(called(&ledger, ALLOC) > 5 && called(&ledger, FREE) > 5, "{ledger}");
    assert_ioctls(trace, &ledger, ALLOC, &COMMANDS);
    assert_ioctls(trace, &ledger, FREE, &UNKNOWN_COMMANDS);
    for outer in trace.calls.iter().filter(|c| c.name == "cudaMalloc" && c.duration_ns().is_some()) {
        let inner = trace.calls.iter().find(|c| c.parent == Some(outer.id) && c.name == ALLOC);
        assert!(inner.is_none_or(|inner| ns_of(outer) >= ns_of(inner)), "{outer:?}");
    }
    assert_layers(trace, &ledger);
    assert!(outcome.finished.stderr.contains("KERNEL SPACE (nvidia.ko):"), "{}", outcome.finished.stderr);
}

// the other tests of this module make ioctls too
#[bpf_test(alone)]
fn a_line_of_trace_ends_with_the_ioctls_of_the_call() {
    devices::make();
    let private = Private::new("driver_only", Cuda::Cuda12);
    let environment = format!("{}={}", IOCTL_FUNCTIONS.0, IOCTL_FUNCTIONS.1);
    let (traced, _) = private.traced(&["--driver", "-e", "cuMemAlloc*"], &[&environment]);
    assert_eq!(traced.status, 0, "{}", traced.stderr);
    let lines: Vec<_> = traced.stdout.lines().filter(|line| line.contains(" cuMemAlloc_v2(")).collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(" [driver 3 calls ")), "{lines:?}");
    assert!(!traced.stdout.contains(COMMANDS[0]), "{}", traced.stdout);
    let (nested, _) = private.traced(&["--driver", "--nested", "-e", "cuMemAlloc*"], &[&environment]);
    for command in COMMANDS {
        let ioctl = format!("  ioctl(nvidiactl, {command}");
        assert_eq!(
            nested.stdout.lines().filter(|line| line.contains(&ioctl)).count(),
            2,
            "{}",
            nested.stdout
        );
    }
}

/// Stand-ins and devices that no other test uses, and a daemon that counts their ioctls.
fn watched(options: &[&str]) -> (TempDir, Daemon) {
    devices::make();
    let (folder, built) = (fixtures::folder(), fixtures::standins(Cuda::Cuda12));
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
    let library = shown(folder.path().join("libcuda.so.1"));
    let daemon = Daemon::with(&[&["--driver", "-p", &library], options].concat());
    (folder, daemon)
}

/// The ledger of a program whose calls of these functions make ioctls.
fn ledger_with_ioctls(folder: &TempDir, functions: &str) -> Value {
    let mut program = Command::new("env");
    program
        .arg(format!("{}={functions}", IOCTL_FUNCTIONS.0))
        .arg(folder.path().join("ledger"))
        .args(LEDGER_ARGS);
    let finished = finish(&mut program);
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    finished.json().remove(0)
}

// the other tests of this module make ioctls too
#[bpf_test(alone)]
fn a_daemon_counts_ioctls() {
    let (folder, daemon) = watched(&[]);
    let ledger = ledger_with_ioctls(&folder, IOCTL_FUNCTIONS.1);
    let (pid, allocs, frees) = (pid_of(&ledger), called(&ledger, ALLOC), called(&ledger, FREE));
    let asked = COMMANDS.map(|c| (c.to_owned(), allocs)).into_iter();
    let asked: BTreeMap<_, _> = asked.chain(UNKNOWN_COMMANDS.map(|c| (c.to_owned(), frees))).collect();
    let metrics = daemon.until_equal(PATIENCE, |metrics, found| {
        for name in ["gpuprobe_driver_ioctls_total", "gpuprobe_driver_ioctl_errors_total"] {
            found.compare(name, &metrics.by(name, pid, "command"), &asked);
        }
        let mut entered = metrics.by("gpuprobe_calls_in_driver_total", pid, "function");
        // the first call opens the device
        entered.retain(|name, _| [ALLOC, FREE].contains(&name.as_str()));
        let ledger = BTreeMap::from([(ALLOC.to_owned(), allocs), (FREE.to_owned(), frees)]);
        found.compare("calls in the driver", &entered, &ledger);
    });
    let devices = metrics.by("gpuprobe_driver_ioctls_total", pid, "device");
    assert_eq!(devices.keys().collect::<Vec<_>>(), ["nvidiactl"], "{devices:?}");
    let seconds = metrics.values("gpuprobe_call_driver_seconds_total").count();
    assert!(seconds >= 2, "{seconds}");
    assert_eq!(metrics.lost("counters_full"), 0);
}

#[bpf_test(alone)]
fn made_up_ioctl_commands_leave_room_for_real_ones() {
    const UNKNOWN: u64 = 2_000;
    const MOST: u64 = 512;
    let (folder, daemon) = watched(&["--max-counters", "1200"]);
    let script = format!(
        "import fcntl, os\ndevice = os.open('/dev/nvidiactl', os.O_RDWR)\nfor request in range({UNKNOWN}):\n \
         try: fcntl.ioctl(device, request)\n except OSError: pass\nprint('{{\"pid\":%d}}' % os.getpid())"
    );
    let made_up = finish(Command::new("python3").args(["-c", &script])).json().remove(0);
    let ledger = ledger_with_ioctls(&folder, ALLOC);
    let asked =
        COMMANDS.map(|c| (c.to_owned(), called(&ledger, ALLOC))).into_iter().collect::<BTreeMap<_, _>>();
    let metrics = daemon.until_equal(PATIENCE, |metrics, found| {
        let name = "gpuprobe_driver_ioctls_total";
        found.compare(name, &metrics.by(name, pid_of(&ledger), "command"), &asked);
        let counted = metrics.by(name, pid_of(&made_up), "command").values().sum::<u64>();
        found.compare("of those that were made up", &counted, &MOST);
    });
    assert_eq!(metrics.lost("counters_full"), UNKNOWN - MOST);
}
