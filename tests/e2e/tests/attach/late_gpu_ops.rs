//! Launches and copies of a program that looked up its CUDA kernels and pinned memory before it was observed: kernels
//! have the names that a recording of the whole program has, and host memory whose kind cannot be known is `unknown`.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::{Counts, counts_of, pid_of};
use gpuprobe_e2e::tracing::{Private, waiting};
use gpuprobe_e2e::{Run, Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// Time for a fresh snapshot on a slow machine.
const FRESH: Duration = Duration::from_secs(20);
/// On perf, attaching waits in the Linux kernel until the probes of exited daemons are removed.
const PROBED_WITHIN: Duration = Duration::from_secs(180);

const LAUNCHES: &str = "gpuprobe_kernel_launches_total";
const HOST: &str = "gpuprobe_copy_host_bytes_total";

/// What is known about the host memory of a program.
#[derive(Clone, Copy, Debug)]
enum Observed {
    FromStart,
    Late,
}

/// The bytes that the program copied, by what gpuprobe can know of the host memory.
fn host_memory(ledger: &Value, observed: Observed) -> Counts {
    let mut sums = Counts::new();
    for (memory, bytes) in counts_of(&ledger["copied"]) {
        let shown = match (memory.as_str(), observed) {
            ("pinned after", _) | ("pinned before", Observed::FromStart) => "pinned",
            ("pageable", Observed::FromStart) => "pageable",
            _ => "unknown",
        };
        *sums.entry(shown.to_owned()).or_default() += bytes;
    }
    sums
}

/// Lets the program launch and copy, and compares the figures of the daemon.
fn assert_figures(daemon: &Daemon, program: &mut Talk, launches: &BTreeMap<String, u64>, observed: Observed) {
    program.go_on();
    let ledger = program.json();
    let pid = pid_of(&ledger);
    daemon.until_equal(FRESH, |metrics, found| {
        found.compare("launches", &metrics.by(LAUNCHES, pid, "kernel"), launches);
        let copied = metrics.by(HOST, pid, "memory").into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        found.compare("copies", &copied, &host_memory(&ledger, observed));
    });
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

fn all_launches() -> BTreeMap<String, u64> {
    let launches = [
        ("driver_scale(float*, int)", 2),
        ("driver_plain", 3),
        ("plain_kernel", 5),
        ("mangled_kernel(float*, int)", 7),
    ];
    launches.map(|(name, n)| (name.to_owned(), n)).into()
}

fn options(tier: &str) -> [&str; 4] {
    ["--attach", tier, "--cudatrace", "--bandwidth-util"]
}

fn is_probed(metrics: &Metrics, private: &Private) -> bool {
    let library = shown(private.folder.path().join("libcuda.so.1"));
    metrics
        .samples("gpuprobe_probes")
        .any(|(l, n)| l["library"] == library && l["state"] == "attached" && n > 0)
}

#[bpf_test(tiers, alone)]
fn a_daemon_that_starts_after_a_program_names_its_cuda_kernels_and_guesses_no_host_memory(tier: &str) {
    let private = Private::new("prepared", Cuda::Cuda12);
    let (mut program, _) = waiting(&private.program, &[], &["--wait"]);
    let daemon = Daemon::with(&options(tier));
    assert!(is_probed(&daemon.scrape(), &private), "{tier}");
    assert_figures(&daemon, &mut program, &all_launches(), Observed::Late);
}

// on perf, where a daemon needs half a minute for its functions, one of these tests is enough
#[bpf_test(tiers(session, multi), alone)]
fn a_program_that_starts_before_its_library_is_probed_is_late_too(tier: &str) {
    let private = Private::new("prepared", Cuda::Cuda12);
    let daemon = Daemon::with(&options(tier));
    let (mut program, _) = waiting(&private.program, &[], &["--wait"]);
    daemon.until(PROBED_WITHIN, "the library is probed", |m| is_probed(m, &private));
    assert_figures(&daemon, &mut program, &all_launches(), Observed::Late);
}

#[bpf_test(tiers(session, multi), alone)]
fn the_host_memory_of_a_program_that_starts_after_its_library_is_probed_is_known(tier: &str) {
    let private = Private::new("prepared", Cuda::Cuda12);
    let library = shown(private.folder.path().join("libcuda.so.1"));
    let daemon = Daemon::with(&[&options(tier)[..], &["-p", &library]].concat());
    let (mut program, _) = waiting(&private.program, &[], &["--wait"]);
    assert_figures(&daemon, &mut program, &all_launches(), Observed::FromStart);
}

/// Without symbols, the host functions of this program cannot be named: the stand-in driver is launched with them. The
/// names in its texts prove where the handles of the driver have theirs.
#[bpf_test(tiers(session, multi), alone)]
fn a_stripped_program_has_the_names_that_its_texts_prove_and_no_others(tier: &str) {
    let private = Private::new("prepared", Cuda::Cuda12);
    private.strip();
    let (mut program, _) = waiting(&private.program, &[], &["--wait"]);
    let daemon = Daemon::with(&options(tier));
    let mut launches = all_launches();
    let hidden = ["plain_kernel", "mangled_kernel(float*, int)"].map(|name| launches.remove(name).unwrap());
    launches.insert("unknown".to_owned(), hidden.iter().sum());
    assert_figures(&daemon, &mut program, &launches, Observed::Late);
}

#[bpf_test(tiers(session, multi), together)]
fn a_recording_of_the_same_program_has_the_same_names_and_knows_its_host_memory(tier: &str) {
    let built = fixtures::standins(Cuda::Cuda12);
    let outcome = Run::new(built.workload("prepared")).options(&["--attach", tier]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let ledger = outcome.finished.json().pop().unwrap();
    let gpu_ops = outcome.trace.work();
    let launches: BTreeMap<_, _> =
        gpu_ops.kernels.iter().map(|k| (k.kernel.clone(), k.totals.launches)).collect();
    assert_eq!(launches, counts_of(&ledger["launches"]), "in the summary");
    assert_eq!(launches, all_launches());
    let mut copied = Counts::new();
    for copy in &gpu_ops.copies {
        *copied.entry(copy.host.as_str().to_owned()).or_default() += copy.bytes;
    }
    assert_eq!(copied, host_memory(&ledger, Observed::FromStart), "in the summary");
}

/// A demo that a daemon meets while it runs, which takes it some ten seconds: every launch that is counted has a name.
#[bpf_test(tiers(session, multi), alone)]
fn a_daemon_names_the_cuda_kernels_of_a_demo_that_runs_already(tier: &str) {
    let private = Private::new("demo", Cuda::Cuda12);
    let mut command = Command::new("env");
    let mut demo = Talk::start(command.arg("STANDIN_DELAY=cuStreamSynchronize:150000").arg(&private.program));
    let pid = demo.pid();
    let daemon = Daemon::with(&options(tier));
    assert!(!demo.has_exited(), "{tier}: the daemon came too late");
    assert_eq!(demo.end(), 0, "{}", demo.stderr());
    let counted = |m: &Metrics| m.by("gpuprobe_calls_total", pid, "function").get("cuLaunchKernel").copied();
    let launched = |m: &Metrics| m.by(LAUNCHES, pid, "kernel");
    let metrics = daemon.until(FRESH, "its launches by kernel", |m| {
        counted(m).is_some_and(|calls| calls > 0 && calls == launched(m).values().sum::<u64>())
    });
    let names: Vec<_> = launched(&metrics).into_keys().collect();
    assert_eq!(names, ["matmul_tile", "reduce_sum", "vector_add"], "{tier}");
}
