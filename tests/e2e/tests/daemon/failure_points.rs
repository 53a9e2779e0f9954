//! Failures of CUDA runtime functions whose calls have no probes, counted by instructions that only failing calls run.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::compile::{run, source};
use gpuprobe_e2e::linux::ProgramRuns;
use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::real_runtime::{CUDA_12, CUDA_13, fetched};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::{Cuda, Library};
use tempfile::TempDir;

use crate::failures::failures;

/// The BPF program of failure points.
const PROGRAM: &str = "failure_multi";

fn daemon(tier: &str, folder: &Path, runtime: &str, options: &[&str]) -> Daemon {
    let [driver, runtime] = ["libcuda.so.1", runtime].map(|name| shown(folder.join(name)));
    Daemon::with(&[&["-v", "--attach", tier, "-p", &driver, "-p", &runtime], options].concat())
}

/// Compares failures by function and error with those of a ledger.
fn compare(daemon: &Daemon, pid: u32, expected: &BTreeMap<(String, String), u64>) -> Metrics {
    daemon.until_equal(PATIENCE, |metrics, wrong| {
        wrong.compare("failures", &failures(metrics, pid), expected);
    })
}

fn named(function: &str, error: &str, times: u64) -> ((String, String), u64) {
    ((function.to_owned(), error.to_owned()), times)
}

/// A folder with the stand-in of the CUDA driver, the runtime of `recording_runtime.S`, and a program for both.
fn recording_runtime(source_of_program: &str) -> TempDir {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1"]);
    let cc = |arguments: &[&str], file: &str| {
        let mut cc = Command::new("cc");
        run(cc.args(arguments).arg(source(file)).args(["./libcuda.so.1"]).current_dir(folder.path()));
    };
    let runtime = ["-shared", "-Wl,-soname,libcudart.so.12", "-Wl,-rpath,$ORIGIN", "-o", "libcudart.so.12"];
    cc(&runtime, "recording_runtime.S");
    let program = ["-pthread", "-Wl,-rpath,$ORIGIN", "-o", "program", "./libcudart.so.12"];
    cc(
        &["-O1", "-L.", "-Wl,--no-as-needed"].iter().chain(&program).copied().collect::<Vec<_>>(),
        source_of_program,
    );
    folder
}

#[bpf_test(tiers(session, multi), alone)]
fn failures_in_the_runtime_are_counted_and_calls_that_succeed_run_no_probe(tier: &str) {
    let folder = recording_runtime("recorded_failures.c");
    let daemon = daemon(tier, folder.path(), "libcudart.so.12", &[]);
    let mut program = Talk::start(&mut Command::new(folder.path().join("program")));
    let pid = pid_of(&program.json());
    let runs = ProgramRuns::of(PROGRAM);
    program.go_on();
    assert_eq!(number(&program.json()["wrong"]), 0);
    if let Some(runs) = &runs {
        assert_eq!(runs.count(), 0, "calls that succeed");
    }
    program.go_on();
    let printed = program.json();
    assert_eq!(number(&printed["wrong"]), 0, "{printed}");
    let rounds = number(&printed["rounds"]);
    let invalid = "cudaErrorInvalidValue";
    let expected = BTreeMap::from([
        named("cudaMalloc", invalid, rounds),
        named("cudaMemcpy", invalid, rounds),
        named("cudaMemsetAsync", invalid, rounds),
        named("cudaFree", invalid, 2 * rounds),
        named("cuMemFree_v2", "CUDA_ERROR_INVALID_VALUE", 3 * rounds),
    ]);
    compare(&daemon, pid, &expected);
    if let Some(runs) = &runs {
        assert_eq!(runs.count(), 7 * rounds, "calls of the runtime that fail");
    }
    let said = daemon.talk.stderr();
    assert!(said.contains("and 9 failure points in "), "{said}");
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

#[bpf_test(tiers(session, multi), alone)]
fn failures_are_counted_once_also_while_functions_are_sampled(tier: &str) {
    const FAILS: u64 = 10;
    let folder = recording_runtime("many_copies.c");
    let daemon = daemon(tier, folder.path(), "libcudart.so.12", &["--budget", "0.2%"]);
    let mut command = Command::new("env");
    command
        .arg(format!("STANDIN_FAIL=cuMemcpyHtoD_v2:719:{FAILS}"))
        .arg(folder.path().join("program"))
        .arg("8");
    let mut program = Talk::start(&mut command);
    let pid = pid_of(&program.json());
    program.go_on();
    let printed = program.json();
    let (copies, failed) = (number(&printed["copies"]), number(&printed["failed"]));
    assert_eq!(failed, copies / FAILS, "{printed}");
    let metrics = daemon.until(PATIENCE, "a function is sampled", |metrics| {
        metrics.text.contains("gpuprobe_calls_estimated_total{")
    });
    let found = failures(&metrics, pid);
    let (function, error) = ("cuMemcpyHtoD_v2", "CUDA_ERROR_LAUNCH_FAILED");
    let names: Vec<_> = found.keys().map(|(function, error)| (function.as_str(), error.as_str())).collect();
    assert_eq!(names, [(function, error)]);
    let calls = metrics.by("gpuprobe_calls_total", pid, "function")[function];
    let errors = found[&(function.to_owned(), error.to_owned())];
    let ratio = errors as f64 * FAILS as f64 / calls as f64;
    assert!((0.9..1.1).contains(&ratio), "{errors} of {calls} calls failed: {printed}");
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

/// Calls of inner functions, by what they are called with. The first fail in the runtime, the second in the CUDA
/// driver, the third succeed.
const IN_RUNTIME: [&str; 8] = [
    "cudaMalloc",
    "cudaMalloc3D",
    "cudaMallocArray",
    "cudaMallocAsync",
    "cudaMallocFromPoolAsync",
    "cudaMallocManaged",
    "cudaMallocMipmappedArray",
    "cudaMallocPitch",
];
const IN_DRIVER: [(&str, &str, &str); 3] = [
    ("cudaMallocAsync", "cuMemAllocAsync", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("cudaMallocFromPoolAsync", "cuMemAllocFromPoolAsync", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("cudaFreeAsync", "cuMemFreeAsync", "CUDA_ERROR_INVALID_VALUE"),
];
const SUCCESSFUL: [&str; 3] = ["cudaFreeAsync", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol"];

/// The inner functions of NVIDIA's runtime on the stand-in of the CUDA driver.
fn assert_real(package: &str, cuda: Cuda, tier: &str) {
    let soname = Library::Runtime(cuda).soname();
    let Some(library) = fetched(package, soname) else { return };
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(cuda), folder.path(), &["libcuda.so.1"]);
    fs::copy(&library, folder.path().join(soname)).unwrap();
    let program = folder.path().join("inner_calls");
    run(Command::new("cc").args(["-O1", "-ldl", "-o"]).arg(&program).arg(source("inner_calls.c")));
    let daemon = daemon(tier, folder.path(), soname, &[]);
    let numbers = 1..;
    let in_runtime =
        IN_RUNTIME.iter().zip(numbers).map(|(name, times): (_, u64)| format!("{name}:null:{times}"));
    let in_driver =
        IN_DRIVER.iter().zip(20..).map(|((name, ..), times): (_, u64)| format!("{name}:zeros:{times}"));
    let successful = SUCCESSFUL.iter().map(|name| format!("{name}:null:100"));
    let mut command = Command::new("env");
    command.arg(format!("LD_LIBRARY_PATH={}", folder.path().display())).arg(&program);
    command.arg(folder.path().join(soname)).args(in_runtime.chain(in_driver).chain(successful));
    let mut calls = Talk::start(&mut command);
    let pid = pid_of(&calls.json());
    let runs = ProgramRuns::of(PROGRAM);
    calls.go_on();
    let printed = calls.json();
    let (mut expected, mut failed) = (BTreeMap::new(), 0);
    for call in printed.as_array().unwrap() {
        let text = |field: &str| call[field].as_str().unwrap();
        let (function, times) = (text("function"), number(&call["times"]));
        match (IN_DRIVER.iter().find(|(name, ..)| *name == function), text("with")) {
            _ if call["status"] == 0 => assert!(SUCCESSFUL.contains(&function), "{call}"),
            (Some((_, driver, error)), "zeros") => expected.extend([named(driver, error, times)]),
            _ => expected.extend([named(function, "cudaErrorInvalidValue", times)]),
        }
        failed += if call["status"] == 0 { 0 } else { times };
    }
    assert_eq!(expected.len(), IN_RUNTIME.len() + IN_DRIVER.len(), "{printed}");
    compare(&daemon, pid, &expected);
    if let Some(runs) = &runs {
        assert_eq!(runs.count(), failed, "calls that fail");
    }
    calls.go_on();
    assert_eq!(calls.end(), 0, "{}", calls.stderr());
}

#[bpf_test(tiers(session, multi), alone)]
fn failures_in_the_real_runtime_of_cuda_12_are_counted_exactly(tier: &str) {
    assert_real(CUDA_12, Cuda::Cuda12, tier);
}

#[bpf_test(tiers(session, multi), alone)]
fn failures_in_the_real_runtime_of_cuda_13_are_counted_exactly(tier: &str) {
    assert_real(CUDA_13, Cuda::Cuda13, tier);
}
