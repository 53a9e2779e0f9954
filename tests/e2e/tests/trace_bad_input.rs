//! What `gpuprobe trace` says to wrong input: one line that names the thing, and the right status.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use gpuprobe_e2e::process::{PATIENCE, Talk, finish, gpuprobe, shown, until};
use gpuprobe_e2e::tracing::{Private, waiting};
use gpuprobe_e2e::{Finished, Tracing, needs, places};
use gpuprobe_standin::Cuda;

fn said(args: &[&str]) -> Finished {
    finish(&mut gpuprobe(&[&["trace"], args].concat()))
}

fn assert_told(finished: &Finished, says: &[&str]) {
    let stderr = &finished.stderr;
    assert_eq!((finished.status, stderr.lines().count(), &*finished.stdout), (1, 1, ""), "{stderr}");
    assert!(stderr.starts_with("gpuprobe: "), "{stderr}");
    assert!(says.iter().all(|words| stderr.contains(words)), "{says:?} in: {stderr}");
}

#[test]
fn flags_that_exclude_each_other_and_values_that_are_none_are_refused() {
    for args in [
        &["-r", "--errors-only"][..],
        &["-r", "--min-duration", "1ms"],
        &["-r", "--pending", "1"],
        &["--phases", "--errors-only"],
        &["--children"],
        &["--min-duration", "5"],
        &["--min-duration", "0ms"],
        &["--duration", "0"],
        &["--duration", "nan"],
        &["--count", "0"],
        &["-d", "-1"],
        &["-d", "x"],
    ] {
        let finished = said(args);
        assert_eq!(finished.status, 2, "{args:?}: {}", finished.stderr);
        assert!(finished.stderr.starts_with("error: ") && !finished.stderr.contains("panicked"), "{args:?}");
    }
}

#[test]
fn globs_that_fit_nothing_name_what_is_near() {
    assert_told(&said(&["-e", "cudaMaloc"]), &["cudaMaloc", "cudaMalloc"]);
    assert_told(&said(&["-e", "cudaFree", "-e", "cudaMaloc"]), &["`cudaMaloc`", "cudaMalloc,"]);
    assert_told(&said(&["-e", "["]), &["`[` is not a valid glob"]);
    assert_told(&said(&["-e", "*", "-e", "!*"]), &["no function matches"]);
}

#[test]
fn files_without_cuda_are_named() {
    if !needs::bpf() {
        return;
    }
    let folder = places::folder();
    let text = folder.path().join("libcuda.so.1");
    fs::write(&text, "no library").unwrap();
    let missing = shown(folder.path().join("missing"));
    assert_told(&said(&["-p", "/bin/true"]), &["/bin/true has no CUDA functions", "give a libcuda"]);
    assert_told(&said(&["-p", &shown(&text)]), &[&shown(&text)]);
    assert_told(&said(&["-p", &missing]), &["cannot open", &missing]);
    assert_told(&said(&["-p", &shown(folder.path())]), &[&shown(folder.path())]);
    let driver = shown(places::standins(Cuda::Cuda12).libcuda);
    assert_told(&said(&["-p", &driver, "-e", "cudaMalloc"]), &["none of the requested functions", &driver]);
}

#[test]
fn processes_that_are_not_there_are_named() {
    if !needs::bpf() {
        return;
    }
    let mut ended = Talk::start(&mut Command::new("true"));
    let pid = ended.pid().to_string();
    assert_eq!(ended.end(), 0);
    for pid in [&*pid, "4194305", "0"] {
        assert_told(&said(&["-d", pid]), &[pid, "process"]);
        let driver = shown(places::standins(Cuda::Cuda12).libcuda);
        assert_told(&said(&["-d", pid, "-p", &driver]), &[pid, "process"]);
    }
}

#[test]
fn a_process_without_cuda_is_waited_for_and_what_it_loads_later_is_traced() {
    if !needs::bpf() {
        return;
    }
    let private = Private::new("driver_only", Cuda::Cuda12);
    let library = shown(private.folder.path().join("libcuda.so.1"));
    let script = format!(
        "import ctypes, os\nprint('{{\"ready\":true,\"pid\":' + str(os.getpid()) + '}}', flush=True)\ninput()\n\
         cuda = ctypes.CDLL({library:?})\nprint('{{}}', flush=True)\ninput()\ncuda.cuInit(7)\nprint('{{}}')"
    );
    let (mut program, pid) = waiting("python3".as_ref(), &[], &["-c", &script]);
    let trace = Tracing::start(&["-d", &pid, "-t", "-v"]);
    assert!(trace.told().contains("no CUDA library to probe yet"), "{}", trace.told());
    program.go_on();
    program.json();
    let probed = format!("{library}: ");
    until(PATIENCE, "it is probed", || trace.told().contains(&probed).then_some(()));
    assert_eq!(program.finish().0, 0);
    let traced = trace.end();
    assert_eq!(traced.stdout.lines().count(), 1, "{}", traced.stderr);
    assert!(traced.stdout.contains(" cuInit(Flags=0x7) = CUDA_SUCCESS <"), "{}", traced.stdout);
    // what it might have called between the two is missing, and that is told
    assert!(traced.stderr.contains("gpuprobe: lost 1 late_attach: "), "{}", traced.stderr);
}

#[test]
fn a_process_whose_files_cannot_be_opened_is_told() {
    if !needs::bpf() {
        return;
    }
    // a library that only its own mount namespace has, and no right to look into that
    let (folder, built) = (places::folder(), places::standins(Cuda::Cuda12));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (copy, inside) = (folder.path().join("gpuprobe"), folder.path().join("inside"));
    fs::copy(places::gpuprobe(), &copy).unwrap();
    fs::create_dir(&inside).unwrap();
    let [inside, from] = [&inside, &built.dir].map(shown);
    let script = format!(
        "mount -t tmpfs none {inside} || exit 99; cp {from}/paced {from}/libcuda.so.1 {inside} && exec {inside}/paced 5"
    );
    let (mut program, pid) = waiting("unshare".as_ref(), &[], &["-m", "sh", "-c", &script]);
    let mut command = Command::new("setpriv");
    let rights = ["--inh-caps=-all,+bpf,+perfmon", "--ambient-caps=-all,+bpf,+perfmon"];
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(rights).arg("--");
    let finished = finish(command.arg(&copy).args(["trace", "--duration", "0.2", "-d", &pid]));
    // older kernels do not even show what is mapped
    let why =
        [&*format!("gpuprobe: not probed: {inside}/libcuda.so.1: cannot be opened: "), "CAP_SYS_PTRACE"];
    assert!(why.iter().any(|words| finished.stderr.contains(words)), "{}", finished.stderr);
    assert!(!finished.stderr.contains("panicked") && finished.stdout.is_empty(), "{}", finished.stderr);
    assert_eq!(program.finish().0, 0);
}
