//! NVIDIA's own runtime library, from PyPI, without any CUDA driver: every call except the two version queries fails
//! with 35, and arguments, results and counts are exact.

use std::fs;
use std::process::Command;

use gpuprobe_e2e::arguments::assert_equal;
use gpuprobe_e2e::notes::attached;
use gpuprobe_e2e::process::{finish, shown};
use gpuprobe_e2e::real_runtime::{CUDA_12, CUDA_13, fetched};
use gpuprobe_e2e::recording::Counts;
use gpuprobe_e2e::{Run, Tracing, bpf_test, fixtures};
use gpuprobe_event::Api;
use gpuprobe_standin::{Cuda, ExportList, Library};
use tempfile::TempDir;

const NO_DRIVER: i64 = 35;

/// A folder with the workload and the real library only, so that no stand-in is found there.
fn with_workload(package: &str, soname: &str, cuda: Cuda) -> Option<TempDir> {
    let library = fetched(package, soname)?;
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(cuda), folder.path(), &["args"]);
    fs::copy(&library, folder.path().join(soname)).unwrap();
    Some(folder)
}

fn assert_real(package: &str, cuda: Cuda) {
    let runtime = Library::Runtime(cuda);
    let soname = runtime.soname();
    let Some(folder) = with_workload(package, soname, cuda) else { return };
    let run = Run::new(folder.path().join("args")).args(&["--no-driver"]).options(&["-v", "-e", "cuda*"]);
    let outcome = run.env("LD_LIBRARY_PATH", folder.path()).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let printed = outcome.finished.json();
    let compared = assert_equal(&outcome.trace, &printed, cuda.major());
    assert!(compared >= 50, "{compared}");
    assert_eq!(outcome.trace.calls.len(), compared, "nothing else was called");

    let mut others = Counts::new();
    for call in &outcome.trace.calls {
        assert_eq!(call.api, Api::Runtime);
        match call.status {
            Some(NO_DRIVER) => assert_eq!(call.error.as_deref(), Some("cudaErrorInsufficientDriver")),
            other => *others.entry(format!("{} {other:?}", call.name)).or_default() += 1,
        }
    }
    let versions = ["cudaDriverGetVersion Some(0)", "cudaRuntimeGetVersion Some(0)"];
    assert_eq!(others.keys().collect::<Vec<_>>(), versions);
    let (functions, _) = attached(&outcome.finished.stderr, &folder.path().join(soname));
    // launches also need the functions that give CUDA kernels their names
    let wanted = |name: &str| {
        name.starts_with("cuda") || ["__cudaRegisterFunction", "__cudaGetKernel"].contains(&name)
    };
    let exports = ExportList::of(runtime).names.iter().filter(|n| wanted(n)).count();
    assert_eq!(functions, exports, "functions attached");
}

#[bpf_test]
fn the_real_runtime_of_cuda_12_is_traced_exactly() {
    assert_real(CUDA_12, Cuda::Cuda12);
}

#[bpf_test]
fn failures_of_the_real_runtime_are_shown_as_they_happen() {
    let (cuda, soname) = (Cuda::Cuda12, Library::Runtime(Cuda::Cuda12).soname());
    let Some(folder) = with_workload(CUDA_12, soname, cuda) else { return };
    let library = shown(folder.path().join(soname));
    let traced = |options: &[&str]| {
        let trace = Tracing::start(&[&["-p", &library, "-e", "cuda*"], options].concat());
        let mut program = Command::new(folder.path().join("args"));
        let printed = finish(program.arg("--no-driver").env("LD_LIBRARY_PATH", folder.path())).json();
        (trace.stop(), printed)
    };
    let (traced_json, printed) = traced(&["--json"]);
    let trace = traced_json.recording();
    trace.assert_whole();
    let compared = assert_equal(&trace, &printed, cuda.major());
    assert!(compared >= 50, "{compared}");
    let (failed, _) = traced(&["--errors-only", "-t"]);
    let named = format!(" = cudaErrorInsufficientDriver ({NO_DRIVER}: ");
    failed.assert_lines(compared - 2);
    assert!(failed.stdout.lines().all(|line| line.contains(&named)), "{}", failed.stdout);
}

#[bpf_test]
fn the_real_runtime_of_cuda_13_is_traced_exactly() {
    assert_real(CUDA_13, Cuda::Cuda13);
}
