//! Recordings of one process that clients of the endpoint and SIGUSR1 ask the daemon for.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use gpuprobe_e2e::linux::children_of;
use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Recording, Talk, bpf_test, fixtures};
use gpuprobe_event::trace::End;
use gpuprobe_event::{Api, catalogue};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The bcrypt hash of `secret`, made by another program.
const SECRET: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
const CALLS: &str = "gpuprobe_calls_total";
const MADE: &str = "gpuprobe_recordings_total{result=\"made\"}";
const FAILED: &str = "gpuprobe_recordings_total{result=\"failed\"}";

/// A daemon with a password that records into a directory, and programs for it.
struct Host {
    folder: tempfile::TempDir,
    directory: PathBuf,
    daemon: Daemon,
}

impl Host {
    fn new(options: &[&str]) -> Self {
        Self::prepared(options, |_| Vec::new())
    }

    /// `prepare` is called with the folder before the daemon starts, and returns more options.
    fn prepared(options: &[&str], prepare: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let folder = fixtures::folder();
        let built = fixtures::standins(Cuda::Cuda12);
        fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
        let web_config = folder.path().join("web.yml");
        fs::write(&web_config, format!("basic_auth_users:\n  ann: {SECRET}\n")).unwrap();
        let directory = folder.path().join("recordings");
        let more = prepare(folder.path());
        let (web_config, recordings) = (shown(web_config), shown(&directory));
        let library = shown(folder.path().join("libcuda.so.1"));
        let own = ["--web-config", &web_config, "--record-dir", &recordings, "-p", &library];
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let daemon = Daemon::displaying(0, &[&own, options, &more].concat());
        Self { folder, directory, daemon }
    }

    fn program(&self, calls: &str) -> (Talk, u32) {
        program(self.folder.path(), calls)
    }

    /// Status and body of the answer to a request with the password.
    fn ask(&self, args: &[&str], path: &str) -> (u16, String) {
        curl(&[&["-u", "ann:secret"], args].concat(), &format!("http://{}{path}", self.daemon.address()))
    }

    fn post(&self, request: &Value) -> (u16, String) {
        let (header, body) = ("Content-Type: application/json", request.to_string());
        self.ask(&["-H", header, "-d", &body], "/api/record")
    }

    /// Starts a recording. Returns its path.
    fn record(&self, request: &Value) -> PathBuf {
        let (status, text) = self.post(request);
        assert_eq!(status, 202, "{text}{}", self.daemon.talk.stderr());
        let begun: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(begun["has_begun"], true, "{text}");
        self.directory.join(begun["file"].as_str().unwrap())
    }

    fn recordings(&self) -> Value {
        let (status, text) = self.ask(&[], "/api/recordings");
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn metrics(&self) -> Metrics {
        Metrics { text: self.ask(&[], "/metrics").1 }
    }

    fn until_said(&self, text: &str) {
        until(PATIENCE, text, || self.daemon.talk.stderr().contains(text).then_some(()));
    }

    fn until_counted(&self, condition: impl Fn(&Metrics) -> bool) {
        until(PATIENCE, "the metrics of recordings", || condition(&self.metrics()).then_some(()));
    }

    fn until_recorded(&self, recording: &Path) {
        until(PATIENCE, "the recording is complete", || recording.exists().then_some(()));
        assert_eq!(fs::metadata(recording).unwrap().mode() & 0o777, 0o600);
    }
}

/// A program that waits for a line, makes half of its calls, prints its ledger, and makes the others.
fn program(folder: &Path, calls: &str) -> (Talk, u32) {
    let mut command = Command::new(folder.join("ledger"));
    // the CUDA runtime would load it with the first call: calls that are open when it gets its probes are lost, and counted
    command.env("LD_PRELOAD", folder.join("libcuda.so.1"));
    let words = ["--wait", "--pauses", "1", "--threads", "4", "--calls", calls];
    let mut talk = Talk::start(command.args(words));
    let pid = pid_of(&talk.json());
    (talk, pid)
}

/// Status and body; the status is 0 if there was no answer.
fn curl(args: &[&str], url: &str) -> (u16, String) {
    let reported = ["-sS", "--max-time", "30", "-w", "\n%{http_code}"];
    let finished = finish(Command::new("curl").args(reported).args(args).arg(url));
    let (body, status) = finished.stdout.rsplit_once('\n').unwrap_or_else(|| panic!("{}", finished.stderr));
    (status.parse().unwrap(), body.to_owned())
}

/// The value of a sample, by its name with its labels.
fn value(metrics: &Metrics, sample: &str) -> u64 {
    let mut values = metrics.text.lines().filter_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    values.next().unwrap_or_else(|| panic!("no {sample}")).parse().unwrap()
}

/// Checks that nothing is missing but the calls before the recording.
fn assert_complete(trace: &Recording) -> &End {
    let end = trace.assert_ended();
    assert!(end.lost.keys().all(|cause| cause == "late_attach"), "{:?}", end.lost);
    assert_eq!(end.skipped, Vec::<String>::new());
    end
}

/// Waits until the calls that the daemon has counted equal the ledger of a program.
fn assert_counted(host: &Host, ledger: &Value) {
    let pid = pid_of(ledger);
    let mut expected = counts_of(&ledger["driver_calls"]);
    expected.retain(|name, _| !catalogue().lookup(Api::Driver, None, name).unwrap().hot);
    let start = Instant::now();
    loop {
        // not all classes are counted
        let counted = host.metrics().by(CALLS, pid, "function");
        if !counted.is_empty() && counted.iter().all(|(name, calls)| expected.get(name) == Some(calls)) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the daemon's calls of {pid}: {counted:?}, not {expected:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[bpf_test(tiers(session, multi), alone)]
fn one_process_is_recorded_on_request_and_all_counts_are_exact(tier: &str) {
    let host = Host::new(&["--attach", tier]);
    let ((mut program, pid), (mut other, _)) = (host.program("8000"), host.program("8000"));
    let path = host.record(&json!({ "pid": pid, "seconds": 8, "functions": ["*"] }));
    let (status, busy) = host.post(&json!({ "pid": pid }));
    let busy: Value = serde_json::from_str(&busy).unwrap();
    assert_eq!((status, busy["current"]["file"].as_str()), (409, path.file_name().unwrap().to_str()));
    assert!(!path.exists(), "its name says that it is complete");
    program.go_on();
    other.go_on();
    let (half, half_of_other) = (program.json(), other.json());
    assert_counted(&host, &half);
    assert_counted(&host, &half_of_other);
    host.until_recorded(&path);
    // what comes later is not in it
    let (whole, whole_of_other) = (program.finish(), other.finish());
    assert_eq!((whole.0, whole_of_other.0), (0, 0));

    let trace = Recording::read(&path);
    let end = assert_complete(&trace);
    assert!(end.seconds >= 8.0, "{end:?}");
    assert!(trace.calls.iter().all(|call| call.tgid.0 == pid), "calls of another process");
    assert_eq!(trace.counts(pid, Api::Runtime), counts_of(&half["calls"]));
    assert_counted(&host, &whole.1);
    assert_counted(&host, &whole_of_other.1);
    let report = finish(&mut gpuprobe(&["report", &shown(&path)]));
    let calls = format!("Total CUDA API calls: {}", number(&half["total_calls"]));
    assert!(report.status == 0 && report.stdout.contains(&calls), "{}{}", report.stdout, report.stderr);
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("gpuprobe_20") && name.ends_with(&format!("_ledger_{pid}.jsonl.zst")), "{name}");
    let bytes = fs::metadata(&path).unwrap().len();
    host.until_counted(|metrics| {
        value(metrics, MADE) == 1
            && value(metrics, FAILED) == 0
            && value(metrics, "gpuprobe_recordings_stored_bytes") == bytes
    });
    let list = host.recordings();
    assert_eq!(list["recordings"], json!([{ "file": name, "bytes": bytes }]));
}

#[bpf_test(alone)]
fn a_signal_records_the_process_that_calls_most() {
    // other programs on this host may use CUDA
    let mut programs = Vec::new();
    let host = Host::prepared(&["--record-time", "20s"], |folder| {
        programs.extend(["20000", "400"].map(|calls| program(folder, calls)));
        programs.iter().map(|(_, pid)| format!("--pid={pid}")).collect()
    });
    let mut programs = programs.into_iter();
    let ((mut busy, pid), (mut idle, _)) = programs.next().zip(programs.next()).unwrap();
    let daemon_signal = |text: &str| {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(host.daemon.talk.pid().cast_signed()),
            Signal::SIGUSR1,
        )
        .unwrap();
        host.until_said(text);
    };
    daemon_signal("gpuprobe: not recorded: no running process has called CUDA");
    busy.go_on();
    idle.go_on();
    let (half, half_of_idle) = (busy.json(), idle.json());
    assert_counted(&host, &half);
    assert_counted(&host, &half_of_idle);
    daemon_signal(&format!("gpuprobe: recording process {pid} (ledger) for 20 s: "));
    daemon_signal("gpuprobe: not recorded: another recording is being made: ");
    let (whole, whole_of_idle) = (busy.finish(), idle.finish());
    host.until_said("gpuprobe: recorded ");
    let said = host.daemon.talk.stderr();
    assert!(said.contains(" s, the process exited: "), "{said}");
    let files = host.recordings();
    let path = host.directory.join(files["recordings"][0]["file"].as_str().unwrap());
    assert!(said.contains(&shown(&path)), "{said}");
    let trace = Recording::read(&path);
    assert_complete(&trace);
    assert!(trace.calls.iter().all(|call| call.tgid.0 == pid), "calls of another process");
    // the functions that `record` records by default, with the calls after the half
    let (before, after) = (counts_of(&half["driver_calls"]), counts_of(&whole.1["driver_calls"]));
    let recorded = trace.counts(pid, Api::Driver);
    assert!(recorded.contains_key("cuMemAlloc_v2"), "{recorded:?}");
    for (name, calls) in recorded {
        assert_eq!(calls, after[&name] - before.get(&name).unwrap_or(&0), "{name}");
    }
    assert_counted(&host, &whole.1);
    assert_counted(&host, &whole_of_idle.1);
}

#[bpf_test(alone)]
fn a_signal_without_a_directory_is_explained_and_ends_nothing() {
    let mut daemon = Daemon::displaying(0, &[]);
    daemon.talk.signal(Signal::SIGUSR1);
    until(PATIENCE, "the line", || daemon.talk.stderr().contains("--record-dir").then_some(()));
    assert!(daemon.scrape().text.contains("gpuprobe_build_info") && !daemon.talk.has_exited());
    let (status, text) = curl(&["-X", "POST"], &format!("http://{}/api/record", daemon.address()));
    assert!(status == 404 && text.contains("--record-dir"), "{status} {text}");
    assert_eq!(children_of(daemon.talk.pid()).len(), 2, "no recorder is started");
}

#[bpf_test(alone)]
fn the_oldest_recordings_are_deleted_and_other_files_stay() {
    let old = |second: u32| format!("gpuprobe_20200101T00000{second}.000Z_h_p_1.jsonl.zst");
    let partial = ".partial_gpuprobe_20200101T000009.000Z_h_p_1.jsonl.zst";
    let host = Host::prepared(&["--record-dir-size", "1M"], |folder| {
        let directory = folder.join("recordings");
        fs::create_dir(&directory).unwrap();
        let write = |name: &str, bytes| fs::write(directory.join(name), vec![0; bytes]).unwrap();
        write("notes", 2 << 20);
        (1..=3).for_each(|second| write(&old(second), 400_000));
        write(partial, 10);
        Vec::new()
    });
    let directory = &host.directory;
    let has = |name: &str| directory.join(name).exists();
    assert!(
        has("gpuprobe_20200101T000009.000Z_h_p_1_incomplete.jsonl.zst") && !has(partial),
        "left by another"
    );
    assert!(!has(&old(1)) && has(&old(2)) && has(&old(3)), "at the start");
    let (mut program, pid) = host.program("400000");
    let (status, text) = host.post(&json!({ "pid": pid, "seconds": 30, "functions": ["*"] }));
    assert_eq!(status, 202, "{text}");
    let begun: Value = serde_json::from_str(&text).unwrap();
    program.go_on();
    // a path follows, or what was lost
    host.until_said(" s, it reached the size limit");
    let path = directory.join(begun["file"].as_str().unwrap());
    assert!(!has(&old(2)) && path.exists());
    assert_eq!(fs::metadata(directory.join("notes")).unwrap().len(), 2 << 20);
    let recorded = Recording::read(&path);
    recorded.assert_ended();
    let size = fs::metadata(&path).unwrap().len();
    assert!((400_000..1 << 20).contains(&size), "{size}");
    host.until_counted(|metrics| {
        value(metrics, MADE) == 1 && value(metrics, "gpuprobe_recordings_deleted_total") >= 2
    });
    program.json();
    assert_counted(&host, &program.finish().1);
}

#[bpf_test(alone)]
fn a_recording_is_completed_when_the_daemon_ends() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut host = Host::new(&[]);
        let (mut program, pid) = host.program("4000");
        let path = host.record(&json!({ "pid": pid, "seconds": 60, "functions": ["*"] }));
        program.go_on();
        let half = program.json();
        host.daemon.talk.signal(signal);
        let status = host.daemon.talk.end();
        host.until_recorded(&path);
        if signal == Signal::SIGTERM {
            let said = host.daemon.talk.stderr();
            assert!(status == 0 && said.contains(", gpuprobe ended: "), "{status} {said}");
        }
        let trace = Recording::read(&path);
        assert_complete(&trace);
        assert_eq!(trace.counts(pid, Api::Runtime), counts_of(&half["calls"]));
        assert_eq!(program.finish().0, 0);
    }
}

#[bpf_test(alone)]
fn requests_that_cannot_be_done_are_refused() {
    let host = Host::new(&["--record-time-limit", "20s"]);
    let (_program, pid) = host.program("400");
    let url = format!("http://{}/api/record", host.daemon.address());
    let json_type = ["-H", "Content-Type: application/json", "-d", "{}"];
    assert_eq!(curl(&json_type, &url).0, 401);
    assert_eq!(curl(&[&["-u", "ann:wrong"][..], &json_type].concat(), &url).0, 401);
    for (request, expected, word) in [
        (json!({ "pid": 4_000_000_000_u32 }), 404, "there is no process 4000000000"),
        (json!({ "pid": -1 }), 400, "pid"),
        (json!({ "pid": pid, "seconds": 21 }), 400, "--record-time-limit"),
        (json!({ "pid": pid, "functions": ["cuMemAlok"] }), 400, "cuMemAlok"),
        // the parent of the kernel's threads
        (json!({ "pid": 2 }), 404, "thread of the Linux kernel"),
    ] {
        let (status, text) = host.post(&request);
        assert!(status == expected && text.contains(word), "{request}: {status} {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    }
    assert_eq!(host.ask(&["-d", "pid=1"], "/api/record").0, 415, "what a form sends");
    let foreign = ["-H", "Origin: http://evil.example"];
    assert_eq!(host.ask(&[&foreign[..], &json_type].concat(), "/api/record").0, 403);
    assert_eq!(host.ask(&[], "/api/record").0, 405);
    assert_eq!(host.recordings()["recordings"], json!([]));
    let second = gpuprobe(&["daemon", "--metrics-addr", "127.0.0.1:0"])
        .arg("--record-dir")
        .arg(&host.directory)
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && said.contains("another gpuprobe daemon records into"), "{said}");
    // no password
    let open = Daemon::displaying(0, &["--record-dir", &shown(host.folder.path().join("open"))]);
    let (status, text) = curl(&json_type, &format!("http://{}/api/record", open.address()));
    assert!(status == 403 && text.contains("--web-config"), "{status} {text}");
}
