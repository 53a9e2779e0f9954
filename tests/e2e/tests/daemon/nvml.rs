//! What NVML reports about GPUs, in metrics and on the display, next to what probes saw; and a stalled NVML delays
//! nothing.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::gpu_listing::{driver_folder, list, uuid};
use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Talk, bpf_test, fixtures, tiers};
use gpuprobe_standin::{Cuda, Library};
use nix::sys::signal::Signal;
use serde_json::json;

/// The maximum time of a scrape on a busy machine; NVML stalls for far longer.
const SOON: Duration = Duration::from_secs(5);
const STALLED: &str = "block nvmlDeviceGetPowerUsage 300\n";
/// NVML's first GPU is partitioned; the compute instances of its second GPU instance share memory.
const INSTANCES: &str =
    "mig 0 7 0 1g.10gb 1073741824\nmig 0 3 0 1c.2g.20gb 4096\nmig 0 3 1 1c.2g.20gb 4096\n";

/// A host with one GPU more than NVML sees, listed before the others, so that its numbers are not NVML's.
struct Host {
    folder: tempfile::TempDir,
    daemon: Daemon,
}

impl Host {
    fn start() -> Self {
        let folder = fixtures::folder();
        let built = fixtures::standins(Cuda::Cuda12);
        fixtures::copies(&built, folder.path(), &["libcuda.so.1", "gpus"]);
        let driver = driver_folder(folder.path());
        list(folder.path(), "0000:00:00.0", "GPU-99999999-9999-9999-9999-999999999999", 0);
        fs::write(folder.path().join("nvml"), INSTANCES).unwrap();
        let (nvml, library) =
            (shown(built.library(Library::Nvml)), shown(folder.path().join("libcuda.so.1")));
        let tier = tiers::best();
        let options = ["--memleak", "--attach", tier, "--driver-folder", &driver, "--nvml", &nvml];
        let always = ["daemon", "--metrics-addr", "127.0.0.1:0", "--refresh", "0.2", "--display-interval=1"];
        let mut command = gpuprobe(&[&always[..], &options, &["-p", &library]].concat());
        let daemon = Daemon::of(command.env("STANDIN_NVML", folder.path().join("nvml")));
        Self { folder, daemon }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("nvml")
    }

    /// Makes NVML report this from now on.
    fn set(&self, lines: &str) {
        let mut file = OpenOptions::new().append(true).open(self.file()).unwrap();
        file.write_all(lines.as_bytes()).unwrap();
    }

    /// A program with 1,000,000 bytes on the first GPU that it sees, 2,000,000 on the second, and so on.
    fn program(&self) -> (Talk, u32) {
        let mut command = Command::new(self.folder.path().join("gpus"));
        for name in ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "STANDIN_FASTEST"] {
            command.env_remove(name);
        }
        let mut program = Talk::start(command.arg("uuid"));
        let pid = pid_of(&program.json());
        (program, pid)
    }
}

/// The lines of metrics whose names have this prefix, without some others.
fn lines(metrics: &Metrics, beginning: &str, without: &[&str]) -> BTreeSet<String> {
    let fits =
        |line: &&str| line.starts_with(beginning) && !without.iter().any(|name| line.starts_with(name));
    metrics.text.lines().filter(fits).map(str::to_owned).collect()
}

/// Readings of GPUs, without the lists of processes and what the NVIDIA kernel module reports.
fn readings(metrics: &Metrics) -> BTreeSet<String> {
    lines(metrics, "gpuprobe_gpu_", &["gpuprobe_gpu_process_", "gpuprobe_gpu_info"])
}

/// A line of metrics of one of the stand-in's GPUs, from its name, its own labels and its value.
fn line(gpu: u8, text: &str) -> String {
    let (name, rest) = text.split_once(' ').unwrap();
    let (own, value) = rest.rsplit_once(' ').unwrap_or(("", rest));
    let own: String = own
        .split(',')
        .filter_map(|label| label.split_once('='))
        .map(|(label, value)| format!(",{label}=\"{value}\""))
        .collect();
    let labels = format!("gpu=\"{}\",uuid=\"{}\",name=\"Stand-in GPU {gpu}\"{own}", gpu + 1, uuid(gpu));
    format!("gpuprobe_gpu_{name}{{{labels}}} {value}")
}

/// The readings of the stand-in's first GPU, which supports everything, and of its second, which supports little.
fn expected() -> BTreeSet<String> {
    let throttled = |reason: &str, n: u8| format!("throttled reason={reason} {n}");
    let reasons = [
        ("applications_clocks_setting", 0),
        ("display_clock_setting", 0),
        ("gpu_idle", 0),
        ("hw_power_brake_slowdown", 0),
        ("hw_slowdown", 0),
        ("hw_thermal_slowdown", 1),
        ("sw_power_cap", 1),
        ("sw_thermal_slowdown", 0),
        ("sync_boost", 0),
    ];
    let mut first: Vec<String> = reasons.map(|(reason, n)| throttled(reason, n)).into();
    first.extend(FIRST.map(str::to_owned));
    let second = SECOND.iter().map(|text| line(1, text));
    first.iter().map(|text| line(0, text)).chain(second).collect()
}

const FIRST: [&str; 50] = [
    "utilization_ratio 0.42",
    "memory_utilization_ratio 0.07",
    "memory_used_bytes 2147483648",
    "memory_free_bytes 82678120448",
    "memory_reserved_bytes 1073741824",
    "memory_total_bytes 85899345920",
    "temperature_celsius 45",
    "memory_temperature_celsius 52",
    "power_watts 123.456",
    "power_limit_watts 700.000",
    "energy_joules_total 987654.321",
    "clock_hertz clock=graphics 1500000000",
    "clock_hertz clock=sm 1510000000",
    "clock_hertz clock=memory 1520000000",
    "clock_hertz clock=video 1530000000",
    "pcie_bytes_per_second direction=rx 4096000",
    "pcie_bytes_per_second direction=tx 2048000",
    "pcie_link_generation 5",
    "pcie_link_width 16",
    "pcie_replays_total 7",
    "ecc_errors_total severity=corrected 12",
    "ecc_errors_total severity=uncorrected 1",
    "ecc_lifetime_errors_total severity=corrected 112",
    "ecc_lifetime_errors_total severity=uncorrected 101",
    "fan_ratio 0.30",
    "performance_state 0",
    "video_utilization_ratio engine=encoder 0.35",
    "video_utilization_ratio engine=decoder 0.12",
    "video_utilization_ratio engine=jpeg 0.04",
    "video_utilization_ratio engine=optical_flow 0.00",
    "encoder_sessions 2",
    "encoder_frames_per_second 60",
    "encoder_latency_seconds 0.001500",
    "remapped_rows_total severity=corrected 3",
    "remapped_rows_total severity=uncorrected 2",
    "row_remap_pending 1",
    "row_remap_failed 0",
    "retired_pages_total severity=corrected 2",
    "retired_pages_total severity=uncorrected 0",
    "page_retirement_pending 1",
    "nvlink_up nvlink=0 1",
    "nvlink_up nvlink=1 0",
    "nvlink_speed_bytes_per_second nvlink=0 26562000000",
    "nvlink_bytes_total nvlink=0,direction=rx 4194304",
    "nvlink_bytes_total nvlink=0,direction=tx 2097152",
    "nvlink_errors_total nvlink=0,error=replay 5",
    "nvlink_errors_total nvlink=0,error=recovery 6",
    "nvlink_errors_total nvlink=0,error=crc 7",
    "mig_enabled 1",
    "mig_enabled_after_reset 1",
];
const SECOND: [&str; 11] = [
    "utilization_ratio 0.00",
    "memory_utilization_ratio 0.00",
    "memory_used_bytes 4294967296",
    "memory_free_bytes 12884901888",
    "memory_total_bytes 17179869184",
    "temperature_celsius 61",
    "clock_hertz clock=graphics 300000000",
    "clock_hertz clock=memory 320000000",
    "pcie_link_generation 1",
    "pcie_link_width 8",
    "performance_state 8",
];

/// What GPM reports, which is computed between two readings.
const ACTIVITY: [&str; 2] = ["gpuprobe_gpu_activity_ratio", "gpuprobe_gpu_traffic_bytes_per_second"];

fn assert_activity(host: &Host, first: &BTreeSet<String>) {
    assert!(
        first
            .iter()
            .all(|line| line.contains("gpu=\"1\"") && line.ends_with(" 0") | line.ends_with("0.000000"))
    );
    // NVML's numbers: multiprocessors, tensor cores, memory, PCIe to the host, and received by NVLink
    host.set("gpm 0 2 86.4\ngpm 0 5 83\ngpm 0 10 15.125\ngpm 0 20 2048\ngpm 0 60 1.5\ngpm 1 2 50\n");
    let wanted = [
        "activity_ratio part=sm 0.864000",
        "activity_ratio part=tensor 0.830000",
        "activity_ratio part=dram 0.151250",
        "activity_ratio part=fp64 0.000000",
        "traffic_bytes_per_second link=pcie,direction=tx 2147483648",
        "traffic_bytes_per_second link=pcie,direction=rx 0",
        "traffic_bytes_per_second link=nvlink,direction=rx 1572864",
    ];
    host.daemon.until(PATIENCE, "the activity of the first GPU", |metrics| {
        let lines = readings(metrics);
        wanted.iter().all(|text| lines.contains(&line(0, text)))
            && lines.iter().filter(|line| ACTIVITY.iter().any(|name| line.starts_with(name))).count() == 15
    });
}

/// The instances of the first GPU.
fn assert_instances(host: &Host, metrics: &Metrics) {
    let of = |metrics: &Metrics| lines(metrics, "gpuprobe_mig_", &["gpuprobe_mig_activity_ratio"]);
    let instance = |(gpu_instance, compute_instance, profile, used): (u32, u32, &str, u64)| {
        let uuid = format!("MIG-00000000-0000-0000-0000-{gpu_instance:08}{compute_instance:04}");
        let labels = format!(
            "gpu=\"1\",gpu_instance=\"{gpu_instance}\",compute_instance=\"{compute_instance}\",profile=\"{profile}\",\
             mig_uuid=\"{uuid}\""
        );
        let total = 10_u64 << 30;
        let values = [
            ("multiprocessors", 16),
            ("memory_used_bytes", used),
            ("memory_free_bytes", total - used),
            ("memory_total_bytes", total),
        ];
        values.map(|(name, value)| format!("gpuprobe_mig_{name}{{{labels}}} {value}"))
    };
    let instances =
        [(7, 0, "1g.10gb", 1 << 30), (3, 0, "1c.2g.20gb", 4096), (3, 1, "1c.2g.20gb", 4096)].map(instance);
    assert_eq!(of(metrics), instances.into_iter().flatten().collect::<BTreeSet<_>>());
    host.set("gpm-mig 0 7 2 50\ngpm-mig 0 3 5 12.5\n");
    let share = |instance: u32, part: &str, value: &str| {
        format!(
            "gpuprobe_mig_activity_ratio{{gpu=\"1\",gpu_instance=\"{instance}\",part=\"{part}\"}} {value}"
        )
    };
    let wanted = [
        share(7, "sm", "0.500000"),
        share(7, "tensor", "0.000000"),
        share(3, "sm", "0.000000"),
        share(3, "tensor", "0.125000"),
    ];
    host.daemon.until(PATIENCE, "the activity of each GPU instance", |metrics| {
        let lines = lines(metrics, "gpuprobe_mig_activity_ratio", &[]);
        wanted.iter().all(|line| lines.contains(line)) && lines.len() == 24
    });
}

#[bpf_test(alone)]
fn gpus_and_processes_are_as_nvml_reports_and_a_stalled_nvml_delays_nothing() {
    let mut host = Host::start();
    let metrics = host.daemon.until(PATIENCE, "NVML is up", |m| m.text.contains("\ngpuprobe_nvml_up 1\n"));
    let (activity, others): (BTreeSet<_>, BTreeSet<_>) =
        readings(&metrics).into_iter().partition(|line| ACTIVITY.iter().any(|name| line.starts_with(name)));
    assert_eq!(others, expected());
    assert_instances(&host, &metrics);
    assert_activity(&host, &activity);
    assert_processes(&mut host);
    assert_errors(&host);
    assert_not_stalled(&mut host);
}

/// The figures of processes, and the memory that no call explains.
fn assert_processes(host: &mut Host) {
    let (mut program, pid) = host.program();
    let (own, missing) = (std::process::id(), 1 << 30);
    // probes saw 1,000,000 bytes on the first GPU and 2,000,000 on the second; some processes are in two lists
    host.set(&format!(
        "process 0 compute {pid} 5000000\nprocess 0 graphics {pid} 5000000\nprocess 1 compute {pid} 1500000\n\
         process 0 mps {own} 777\nprocess 1 graphics {own} -1\nprocess 0 compute {missing} 9\n\
         busy 0 {pid} 60 20 0 5\n"
    ));
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    let program_is = |rest: &str| format!("pid=\"{pid}\",process=\"gpus\"{rest}");
    let own_is = |rest: &str| format!("pid=\"{own}\",process=\"{}\"{rest}", name.trim_end());
    let expected: BTreeSet<String> = [
        format!("gpu_process_memory_bytes{{{}}} 5000000", program_is(",gpu=\"1\"")),
        format!("gpu_process_memory_bytes{{{}}} 1500000", program_is(",gpu=\"2\"")),
        format!("gpu_process_memory_bytes{{{}}} 777", own_is(",gpu=\"1\"")),
        format!("gpu_process_utilization_ratio{{{}}} 0.60", program_is(",gpu=\"1\",engine=\"sm\"")),
        format!("gpu_process_utilization_ratio{{{}}} 0.20", program_is(",gpu=\"1\",engine=\"memory\"")),
        format!("gpu_process_utilization_ratio{{{}}} 0.00", program_is(",gpu=\"1\",engine=\"encoder\"")),
        format!("gpu_process_utilization_ratio{{{}}} 0.05", program_is(",gpu=\"1\",engine=\"decoder\"")),
        format!("memory_unexplained_bytes{{{}}} 4000000", program_is(",gpu=\"1\"")),
        format!("memory_unexplained_bytes{{{}}} 0", program_is(",gpu=\"2\"")),
        format!("memory_unexplained_bytes{{{}}} 777", own_is(",gpu=\"1\"")),
        format!("memory_seen_above_nvml_bytes{{{}}} 0", program_is(",gpu=\"1\"")),
        format!("memory_seen_above_nvml_bytes{{{}}} 500000", program_is(",gpu=\"2\"")),
        format!("memory_seen_above_nvml_bytes{{{}}} 0", own_is(",gpu=\"1\"")),
    ]
    .into();
    let reported = |metrics: &Metrics| -> BTreeSet<String> {
        let names = ["gpuprobe_gpu_process_", "gpuprobe_memory_unexplained_", "gpuprobe_memory_seen_above_"];
        let lines = names.iter().flat_map(|name| lines(metrics, name, &[]));
        // the tests themselves may run in a container
        lines.map(|line| without_container(line.trim_start_matches("gpuprobe_"))).collect()
    };
    host.daemon
        .until_equal(PATIENCE, |metrics, found| found.compare("processes", &reported(metrics), &expected));
    assert_displayed(&mut host.daemon, pid);
    assert_memory_reports(host, pid);
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
    // NVML continues to report it
    let is_removed = |m: &Metrics| !reported(m).iter().any(|line| line.contains(&format!("pid=\"{pid}\"")));
    let metrics = host.daemon.until(PATIENCE, "the gauges of a process end with it", is_removed);
    assert_eq!(reported(&metrics).len(), 3, "{}", metrics.text);
}

fn without_container(line: &str) -> String {
    let Some((before, rest)) = line.split_once(",container_id=\"") else { return line.to_owned() };
    format!("{before}{}", rest.split_once('"').map_or("", |(_, rest)| rest))
}

fn assert_displayed(daemon: &mut Daemon, pid: u32) {
    let gpu = "GPU 1 (Stand-in GPU 0): busy 42%, memory 2.0 GiB of 80.0 GiB, 45 C, 123.5 of 700.0 W, sm 1510 MHz, \
               memory 1520 MHz, throttled by sw_power_cap and hw_thermal_slowdown";
    let user = ": 4.8 MiB, 976.6 KiB seen by calls, 3.8 MiB unexplained, busy 60%";
    let process = format!("\tprocess {pid}");
    let mut shown = Vec::new();
    until(PATIENCE, "the section of GPUs", || {
        shown.extend(daemon.talk.printed());
        let headed = shown.iter().any(|line| line == gpu);
        let used = |line: &&String| line.starts_with(&process) && line.ends_with(user);
        (headed && shown.iter().any(|line| used(&line))).then_some(())
    });
}

/// For `gpuprobe memory`, which started after the program, no live memory is explained by calls.
fn assert_memory_reports(host: &Host, pid: u32) {
    let nvml = shown(fixtures::standins(Cuda::Cuda12).library(Library::Nvml));
    let (driver, watched) = (shown(host.folder.path().join("driver")), pid.to_string());
    let words = ["memory", "-d", &watched, "--watch", "--interval", "0.2", "--json"];
    let mut command = gpuprobe(&[&words[..], &["--nvml", &nvml, "--driver-folder", &driver]].concat());
    let mut memory = Talk::start(command.env("STANDIN_NVML", host.file()));
    let on = |gpu: u8, bytes: u64| json!({"pid": pid, "process": "gpus", "gpu": gpu, "memory_bytes": bytes, "seen_bytes": 0, "unexplained_bytes": bytes});
    let expected = json!([on(1, 5_000_000), on(2, 1_500_000)]);
    until(PATIENCE, "what is not explained", || (memory.json()["gpu_memory"] == expected).then_some(()));
    memory.signal(Signal::SIGINT);
    assert_eq!(memory.end(), 0, "{}", memory.stderr());
}

fn assert_errors(host: &Host) {
    let errors = |m: &Metrics| lines(m, "gpuprobe_xid_errors_total", &[]);
    assert_eq!(errors(&host.daemon.scrape()), BTreeSet::new());
    host.set("xid 0 79\nxid 0 48\nxid 0 79\n");
    let reported = |xid: u32, n: u32| format!("gpuprobe_xid_errors_total{{gpu=\"1\",xid=\"{xid}\"}} {n}");
    let expected: BTreeSet<String> = [reported(48, 1), reported(79, 2)].into();
    host.daemon.until(PATIENCE, "its errors", |m| errors(m) == expected);
    // the other one does not support them
    let said = host.daemon.talk.stderr();
    assert_eq!(said.lines().filter(|l| l.contains("errors (XIDs) of NVML's GPU 1")).count(), 1, "{said}");
}

/// An NVML call that does not return delays neither scrapes nor counting, nor the exit.
fn assert_not_stalled(host: &mut Host) {
    host.set(STALLED);
    let begun = host.file().with_extension("blocked");
    until(PATIENCE, "NVML stalls", || begun.exists().then_some(()));
    let (mut program, pid) = host.program();
    let counted = |m: &Metrics| m.by("gpuprobe_calls_total", pid, "function").contains_key("cuMemAlloc_v2");
    let mut slowest = Duration::ZERO;
    until(PATIENCE, "what a program does meanwhile", || {
        let start = Instant::now();
        let metrics = host.daemon.scrape();
        slowest = slowest.max(start.elapsed());
        counted(&metrics).then_some(())
    });
    assert!(slowest < SOON, "a scrape took {slowest:?}");
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
    let start = Instant::now();
    host.daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(host.daemon.talk.end(), 0, "{}", host.daemon.talk.stderr());
    // on perf removing the probes takes longer
    if tiers::best() != "perf" {
        assert!(start.elapsed() < SOON, "it took {:?} to end", start.elapsed());
    }
}

#[bpf_test]
fn a_host_without_nvml_is_reported_once_and_has_everything_else() {
    let built = fixtures::standins(Cuda::Cuda12);
    let nowhere = "/nowhere/libnvidia-ml.so.1";
    let daemon = Daemon::with(&["--memleak", "-v", "--nvml", nowhere, "-p", &shown(&built.libcuda)]);
    let said = || daemon.talk.stderr().lines().filter(|l| l.contains("no NVML")).map(str::to_owned).collect();
    let said: Vec<String> = until(PATIENCE, "a message", || Some(said()).filter(|s: &Vec<_>| !s.is_empty()));
    assert!(said.len() == 1 && said[0].contains(nowhere), "{said:?}");
    let metrics = daemon.scrape();
    assert!(metrics.text.contains("\ngpuprobe_nvml_up 0\n"), "{}", metrics.text);
    assert_eq!(readings(&metrics), BTreeSet::new());
    assert_eq!(lines(&metrics, "gpuprobe_mig_", &[]), BTreeSet::new());
}

#[test]
fn doctor_reports_the_version_of_nvml() {
    let nvml = |folder: &Path| {
        let said = finish(gpuprobe(&["doctor"]).env("LD_LIBRARY_PATH", folder)).stdout;
        let line = said.lines().find_map(|line| line.strip_prefix("NVML ")).map(str::trim);
        line.unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let built = fixtures::standins(Cuda::Cuda12);
    assert_eq!(nvml(&built.dir), "13.0.0-standin");
}
