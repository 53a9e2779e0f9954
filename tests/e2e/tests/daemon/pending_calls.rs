//! The metric of calls that do not return for long.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

const PENDING: &str = "gpuprobe_call_pending_seconds";
/// The program waits for a stream half a second after it waits for the device.
const LATER: f64 = 0.5;

/// A program with its own libraries, which runs until its first line, and a daemon that watches it.
struct Watched {
    daemon: Daemon,
    program: Talk,
    pid: u32,
    _folder: tempfile::TempDir,
}

impl Watched {
    /// Starts threads that wait for as long as `delays` says.
    fn hangs(options: &[&str], threads: &str, delays: &str) -> Self {
        let files = ["libcuda.so.1", "libcudart.so.12", "hangs"];
        Self::start(options, &files, delays, |folder| vec![shown(folder.join("hangs")), threads.to_owned()])
    }

    /// The daemon gets the path of the first of the files.
    fn start(options: &[&str], files: &[&str], delays: &str, command: impl Fn(&Path) -> Vec<String>) -> Self {
        let folder = fixtures::folder();
        fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), files);
        let library = shown(folder.path().join(files[0]));
        let daemon = Daemon::with(&[options, &["-p", &library]].concat());
        let delays = format!("STANDIN_DELAY={delays}");
        let mut program = Talk::start(Command::new("env").arg(delays).args(command(folder.path())));
        let pid = pid_of(&program.json());
        Self { daemon, program, pid, _folder: folder }
    }

    /// The ages of its pending calls by function.
    fn pending(&self, metrics: &Metrics) -> BTreeMap<String, f64> {
        let own = |labels: &BTreeMap<String, String>| labels["pid"] == self.pid.to_string();
        let series = metrics.values(PENDING).filter(|(labels, _)| own(labels));
        series.map(|(labels, age)| (labels["function"].clone(), age.parse().unwrap())).collect()
    }

    /// Waits until the oldest call is of this function, and returns its age.
    fn until_pending(&self, function: &str) -> f64 {
        let metrics = self.daemon.until(PATIENCE, &format!("{function} is pending"), |metrics| {
            self.pending(metrics).contains_key(function)
        });
        let found = self.pending(&metrics);
        assert_eq!(found.len(), 1, "one series per process: {found:?}");
        found[function]
    }

    fn until_none(&self) {
        self.daemon.until(PATIENCE, "nothing is pending", |metrics| self.pending(metrics).is_empty());
    }
}

#[bpf_test(tiers(session, multi))]
fn a_call_that_does_not_return_is_pending_until_it_returns(tier: &str) {
    let delays = "cuStreamSynchronize:6000000";
    let mut watched = Watched::hangs(&["--attach", tier], "2", delays);
    assert!(watched.pending(&watched.daemon.scrape()).is_empty(), "nothing was called yet");
    let asked = Instant::now();
    watched.program.go_on();
    watched.program.json();
    let first = watched.until_pending("cuStreamSynchronize");
    assert!(first >= 1.0, "{first} s is too young to be shown");
    sleep(Duration::from_secs(1));
    let second = watched.until_pending("cuStreamSynchronize");
    // the metrics are read five times per second
    assert!(second >= first + 0.8, "{second} s after {first} s");
    assert!(second < asked.elapsed().as_secs_f64() - LATER, "{second} s");
    assert!(watched.program.json()["calls"]["cudaStreamSynchronize"] == 1);
    watched.until_none();
}

#[bpf_test]
fn of_eight_threads_the_oldest_call_is_shown() {
    let delays = "cuCtxSynchronize:6000000,cuStreamSynchronize:12000000";
    let mut watched = Watched::hangs(&[], "8", delays);
    watched.program.go_on();
    watched.program.json();
    let oldest = watched.until_pending("cuCtxSynchronize");
    assert!(oldest >= 1.0, "{oldest} s is too young to be shown");
    // when it has returned, those that began later are the oldest
    let next = watched.until_pending("cuStreamSynchronize");
    assert!(next >= 6.0 - LATER - 0.2, "{next} s");
    assert_eq!(watched.program.json()["calls"]["cudaStreamSynchronize"], 7);
    watched.until_none();
}

fn hooks_of(folder: &Path) -> String {
    let file = folder.join("hooks.toml");
    fs::write(&file, "[[hook]]\nlibrary = \"hangs\"\nfunction = \"left_by_jump\"\n").unwrap();
    shown(file)
}

/// The thread makes no other call, so nothing has noticed that it is not in the call any more.
#[bpf_test]
fn a_call_that_was_left_by_longjmp_is_not_pending() {
    let folder = fixtures::folder();
    let hooks = hooks_of(folder.path());
    let mut watched = Watched::hangs(&["--hooks", &hooks], "2", "cuCtxSynchronize:6000000");
    watched.program.go_on();
    watched.program.json();
    watched.until_pending("cuCtxSynchronize");
    watched.program.json();
    watched.program.go_on();
    assert_eq!(watched.program.json()["jumped"], 1);
    watched.daemon.until(PATIENCE, "the hooked function has returned once", |metrics| {
        metrics.by("gpuprobe_calls_total", watched.pid, "function").get("left_by_jump") == Some(&1)
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        let found = watched.pending(&watched.daemon.scrape());
        assert!(!found.contains_key("left_by_jump"), "{found:?}");
        sleep(Duration::from_millis(100));
    }
}

/// Ranks wait for each other in functions of NCCL that make and end communicators.
#[bpf_test]
fn a_communicator_that_does_not_end_is_pending() {
    let program = "import ctypes, os, sys\nnccl = ctypes.CDLL(sys.argv[1])\nprint('{\"pid\":%d}' % os.getpid(), flush=True)\n\
                   sys.stdin.readline()\nnccl.ncclCommDestroy(None)\nprint('{}', flush=True)\nsys.stdin.readline()";
    let command = |folder: &Path| {
        let library = shown(folder.join("libnccl.so.2"));
        ["python3", "-c", program, &library].map(str::to_owned).to_vec()
    };
    let mut watched = Watched::start(&[], &["libnccl.so.2"], "ncclCommDestroy:6000000", command);
    watched.program.go_on();
    assert!(watched.until_pending("ncclCommDestroy") >= 1.0);
    watched.program.json();
    watched.until_none();
}
