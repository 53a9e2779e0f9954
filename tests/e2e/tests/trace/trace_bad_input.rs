//! Wrong input to `gpuprobe trace`: one line that names it, and the right status.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use gpuprobe_e2e::process::{PATIENCE, Talk, finish, gpuprobe, shown, until};
use gpuprobe_e2e::tracing::{Private, waiting};
use gpuprobe_e2e::{Finished, Tracing, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

fn said(args: &[&str]) -> Finished {
    finish(&mut gpuprobe(&[&["trace"], args].concat()))
}

fn assert_reported(finished: &Finished, says: &[&str]) {
    let stderr = &finished.stderr;
    assert_eq!((finished.status, stderr.lines().count(), &*finished.stdout), (1, 1, ""), "{stderr}");
    assert!(stderr.starts_with("gpuprobe: "), "{stderr}");
    assert!(says.iter().all(|words| stderr.contains(words)), "{says:?} in: {stderr}");
}

#[test]
fn conflicting_flags_and_invalid_values_are_refused() {
    for args in [
        &["-r", "--errors-only"][..],
        &["-r", "--min-duration", "1ms"],
        &["-r", "--pending", "1"],
        &["--phases", "--errors-only"],
        &["--children"],
        &["--min-duration", "5x"],
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
fn globs_without_a_match_get_a_suggestion() {
    assert_reported(&said(&["-e", "cudaMaloc"]), &["cudaMaloc", "cudaMalloc"]);
    assert_reported(&said(&["-e", "cudaFree", "-e", "cudaMaloc"]), &["`cudaMaloc`", "cudaMalloc,"]);
    assert_reported(&said(&["-e", "["]), &["`[` is not a valid glob"]);
    assert_reported(&said(&["-e", "*", "-e", "!*"]), &["no function matches"]);
}

#[bpf_test]
fn files_without_cuda_are_named() {
    let folder = fixtures::folder();
    let text = folder.path().join("libcuda.so.1");
    fs::write(&text, "no library").unwrap();
    let missing = shown(folder.path().join("missing"));
    assert_reported(&said(&["-p", "/bin/true"]), &["/bin/true has no CUDA functions", "give a libcuda"]);
    assert_reported(&said(&["-p", &shown(&text)]), &[&shown(&text)]);
    assert_reported(&said(&["-p", &missing]), &["cannot open", &missing]);
    assert_reported(&said(&["-p", &shown(folder.path())]), &[&shown(folder.path())]);
    let driver = shown(fixtures::standins(Cuda::Cuda12).libcuda);
    assert_reported(
        &said(&["-p", &driver, "-e", "cudaMalloc"]),
        &["none of the requested functions", &driver],
    );
}

#[bpf_test]
fn missing_processes_are_named() {
    let mut ended = Talk::start(&mut Command::new("true"));
    let pid = ended.pid().to_string();
    assert_eq!(ended.end(), 0);
    for pid in [&*pid, "4194305", "0"] {
        assert_reported(&said(&["-d", pid]), &[pid, "process"]);
        let driver = shown(fixtures::standins(Cuda::Cuda12).libcuda);
        assert_reported(&said(&["-d", pid, "-p", &driver]), &[pid, "process"]);
    }
}

#[bpf_test]
fn a_process_without_cuda_is_waited_for_and_what_it_loads_later_is_traced() {
    let private = Private::new("driver_only", Cuda::Cuda12);
    let library = shown(private.folder.path().join("libcuda.so.1"));
    let script = format!(
        "import ctypes, os\nprint('{{\"ready\":true,\"pid\":' + str(os.getpid()) + '}}', flush=True)\ninput()\n\
         cuda = ctypes.CDLL({library:?})\nprint('{{}}', flush=True)\ninput()\ncuda.cuInit(7)\nprint('{{}}')"
    );
    let (mut program, pid) = waiting("python3".as_ref(), &[], &["-c", &script]);
    let trace = Tracing::start(&["-d", &pid, "-t", "-v"]);
    assert!(trace.messages().contains("no GPU library to probe yet"), "{}", trace.messages());
    program.go_on();
    program.json();
    let probed = format!("{library}: ");
    until(PATIENCE, "it is probed", || trace.messages().contains(&probed).then_some(()));
    assert_eq!(program.finish().0, 0);
    let traced = trace.end();
    assert_eq!(traced.stdout.lines().count(), 1, "{}", traced.stderr);
    assert!(traced.stdout.contains(" cuInit(Flags=0x7) = CUDA_SUCCESS <"), "{}", traced.stdout);
    // calls between the two are missed, and that is reported
    assert!(traced.stderr.contains("gpuprobe: lost 1 late_attach: "), "{}", traced.stderr);
}

#[bpf_test]
fn a_process_whose_files_cannot_be_opened_is_reported() {
    // a library that exists only in its mount namespace, which may not be entered
    let (folder, built) = (fixtures::folder(), fixtures::standins(Cuda::Cuda12));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (copy, inside) = (folder.path().join("gpuprobe"), folder.path().join("inside"));
    fs::copy(fixtures::gpuprobe(), &copy).unwrap();
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
    // older Linux kernels do not even show the mappings
    let why =
        [&*format!("gpuprobe: not probed: {inside}/libcuda.so.1: cannot be opened: "), "CAP_SYS_PTRACE"];
    assert!(why.iter().any(|words| finished.stderr.contains(words)), "{}", finished.stderr);
    assert!(!finished.stderr.contains("panicked") && finished.stdout.is_empty(), "{}", finished.stderr);
    assert_eq!(program.finish().0, 0);
}
