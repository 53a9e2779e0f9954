//! GPU errors (XIDs) from before gpuprobe was started, from the kernel log. The tests write to the log themselves.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Command;

use gpuprobe_e2e::gpu_listing::{list as list_gpu, uuid};
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, Talk, finish, gpuprobe, shown, until};
use gpuprobe_e2e::sampled::{library, list};
use gpuprobe_e2e::{bpf_test, fixtures};
use gpuprobe_standin::Library;
use serde_json::{Value, json};

/// A GPU that is not on the host.
const GONE: &str = "0000:e8:00";

/// Writes an error to the kernel log. A message without the end of its line might be continued, and is not shown yet.
fn log(gpu: &str, error: &str) {
    let mut log = OpenOptions::new().write(true).open("/dev/kmsg").unwrap();
    log.write_all(format!("<3>NVRM: Xid (PCI:{gpu}): {error}\n").as_bytes()).unwrap();
}

/// A process on the only GPU of a host, which the kernel log has errors of.
struct Host {
    folder: tempfile::TempDir,
    process: Talk,
    /// The address of the GPU.
    pci: String,
}

impl Host {
    fn start() -> Self {
        let folder = fixtures::folder();
        let process = Talk::start(Command::new("cat").env("LD_PRELOAD", library(Library::Driver)));
        let pid = process.pid();
        // messages stay in the log, so no other test must have a GPU there
        let pci = format!("{pid:04x}:e7:00");
        list_gpu(folder.path(), &format!("{pci}.0"), &uuid(0), 0);
        fs::write(folder.path().join("nvml"), format!("process 0 compute {pid} 777\n")).unwrap();
        log(&pci, &format!("31, pid={pid}, name=cat, Ch 00000008"));
        log(&pci, &format!("31, pid='{pid}', name=cat, Ch 00000009"));
        log(&pci, "79, GPU has fallen off the bus.");
        log(&pci, "43, pid=1, name=init, Ch 00000008");
        log(GONE, "48, pid='<unknown>', name=<unknown>, An error of another GPU");
        log(GONE, &format!("13, pid={pid}, name=cat, Graphics Exception on a GPU that is gone"));
        Self { folder, process, pci }
    }

    /// gpuprobe with these arguments on this host.
    fn gpuprobe(&self, args: &[&str]) -> Command {
        let (driver, nvml) = (shown(self.folder.path().join("driver")), shown(library(Library::Nvml)));
        let of_host = ["--driver-folder", &driver, "--nvml", &nvml, "-d", &self.process.pid().to_string()];
        let mut command = gpuprobe(&[args, &of_host].concat());
        command.env("STANDIN_NVML", self.folder.path().join("nvml"));
        command
    }
}

/// The errors without their ages and meanings, and whether all are of the last minutes.
fn errors(report: &Value) -> (Vec<Value>, bool) {
    let [process] = list(&report["processes"]) else { panic!("{report}") };
    let mut xids = list(&process["xids"]).to_vec();
    xids.sort_by_key(|xid| xid["xid"].as_u64());
    let is_recent = |xid: &Value| xid["age_seconds"].as_f64().is_some_and(|age| (0.0..300.0).contains(&age));
    let are_recent = xids.iter().all(is_recent);
    let kept = ["gpu", "pci", "xid", "count", "named"];
    let without = |xid: &Value| kept.map(|name| xid[name].clone()).into_iter().collect();
    (xids.iter().map(without).collect(), are_recent)
}

fn expected(host: &Host) -> (Vec<Value>, bool) {
    let here = format!("{}.0", host.pci);
    let gone = json!([null, format!("{GONE}.0"), 13, 1, true]);
    (vec![gone, json!([0, here, 31, 2, true]), json!([0, here, 79, 1, false])], true)
}

#[bpf_test(needs(kernel_log))]
fn errors_of_a_process_and_of_its_gpu_are_shown_with_their_age() {
    let host = Host::start();
    let json = finish(&mut host.gpuprobe(&["stacks", "--json"]));
    let report = json.json().remove(0);
    assert_eq!(errors(&report), expected(&host), "{report}");
    assert_eq!(report["xids_problem"], Value::Null);
    let text = finish(&mut host.gpuprobe(&["stacks"])).stdout;
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("  XID ")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    let twice = lines.iter().find(|line| line.starts_with("  XID 31 on GPU 0: ")).unwrap();
    assert!(twice.contains(" (2 times, last ") && twice.ends_with(" ago)"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("  XID 13 on GPU 0000:e8:00.0: ")), "{text}");
}

#[bpf_test(needs(kernel_log))]
fn the_daemon_reads_the_log_after_it_gave_up_its_privileges() {
    let host = Host::start();
    let options = ["daemon", "--stacks", "--metrics-addr", "127.0.0.1:0", "--refresh", "0.2"];
    let daemon = Daemon::of(&mut host.gpuprobe(&options));
    for _ in 0..2 {
        // its first reading of NVML may be missing at first
        let report = until(PATIENCE, "the errors", || {
            Some(daemon.json("/api/stacks")).filter(|report| errors(report).0.len() == 3)
        });
        assert_eq!(errors(&report), expected(&host), "{report}");
        assert_eq!(report["xids_problem"], Value::Null);
    }
}

#[bpf_test(needs(kernel_log, program("setpriv")))]
fn a_log_that_may_not_be_read_is_mentioned_in_the_json_only() {
    let host = Host::start();
    let denied = |options: &[&str]| {
        let command = host.gpuprobe(&[&["stacks", "--samples", "1"], options].concat());
        let mut without = Command::new("setpriv");
        let bounding = ["--bounding-set", "-syslog,-sys_admin", "--inh-caps", "-syslog,-sys_admin"];
        without.args(bounding).arg(command.get_program()).args(command.get_args());
        let finished = finish(without.env("STANDIN_NVML", host.folder.path().join("nvml")));
        assert_eq!((finished.status, &*finished.stderr), (0, ""));
        finished
    };
    let is_restricted = fs::read_to_string("/proc/sys/kernel/dmesg_restrict").unwrap().trim() == "1";
    let report = denied(&["--json"]).json().remove(0);
    let problem = report["xids_problem"].as_str();
    assert_eq!(problem.is_some_and(|why| why.contains("cannot be read")), is_restricted, "{report}");
    assert_eq!(errors(&report).0.is_empty(), is_restricted);
    assert!(!denied(&[]).stdout.contains("kernel log"));
}
