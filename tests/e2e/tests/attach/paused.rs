//! Processes are paused while their libraries are probed. Their parents do not notice: shells with job control, `su`,
//! another gpuprobe, other roots, other pid namespaces, a busy machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{Recording, counts_of, inner_counts, pid_of};
use gpuprobe_e2e::{Outcome, Run, Talk, bpf_test, fixtures, needs};
use gpuprobe_event::{Api, ProcessChange, Tgid};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// Far longer than a pause takes, far shorter than a process that stays paused.
const SOON: Duration = Duration::from_secs(10);

fn driver_only() -> PathBuf {
    fixtures::standins(Cuda::Cuda12).workload("driver_only")
}

fn run(program: &str, args: &[&str]) -> Outcome {
    Run::new(program).options(&["-e", "*"]).args(args).outcome()
}

/// Compares the calls of the process with the printed ones, and checks that no other process made any.
fn assert_calls(trace: &Recording, pid: u32, printed: &Value) {
    assert_eq!(trace.counts(pid, Api::Driver), counts_of(&printed["calls"]), "driver calls of {pid}");
    assert_eq!(trace.calls.len(), trace.of(pid).count(), "no other process makes calls");
}

#[bpf_test(needs(program("su")))]
fn su_sees_its_command_end_and_not_that_it_was_paused() {
    let outcome = run("su", &["nobody", "-s", "/bin/sh", "-c", "exit 4"]);
    assert_eq!(outcome.finished.status, 4, "{}", outcome.finished.stderr);
    assert!(outcome.finished.took < SOON, "{:?}", outcome.finished.took);
    assert_eq!(outcome.trace.assert_whole().exit_status, Some(4));
}

#[bpf_test(needs(program("bash")))]
fn a_shell_with_job_control_sees_no_stopped_job() {
    let script = format!("set -m; {}; echo status=$?", shown(driver_only()));
    let outcome = run("bash", &["-c", &script]);
    let said = format!("{}{}", outcome.finished.stdout, outcome.finished.stderr);
    assert!(outcome.finished.stdout.lines().any(|l| l == "status=0"), "{said}");
    assert!(!said.contains("Stopped"), "{said}");
    assert!(outcome.finished.took < SOON, "{:?}", outcome.finished.took);
    outcome.trace.assert_whole();
    let printed = outcome.printed();
    assert_calls(&outcome.trace, pid_of(&printed), &printed);
}

#[bpf_test]
fn two_nested_gpuprobes_both_see_every_call() {
    let folder = fixtures::folder();
    let [outer, inner] = ["outer", "inner"].map(|name| folder.path().join(name));
    let binary = fixtures::gpuprobe();
    let words = ["run", "-e", "*", "-o", &shown(&inner), "--", &shown(driver_only())];
    let finished = finish(&mut Run::new(&binary).options(&["-e", "*"]).args(&words).command(&outer));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(finished.took < SOON, "{:?}", finished.took);
    let printed = finished.json();
    assert_eq!(printed.len(), 1, "{finished:?}");
    for path in [outer, inner] {
        let trace = Recording::read(&path);
        assert_eq!(trace.assert_whole().exit_status, Some(0), "{}", path.display());
        assert_calls(&trace, pid_of(&printed[0]), &printed[0]);
    }
}

/// Installs the C library and the loader as on Debian, with its absolute link to the loader.
fn small_root(root: &Path) -> bool {
    const LIBRARIES: &str = "lib/x86_64-linux-gnu";
    const LOADER: &str = "ld-linux-x86-64.so.2";
    let ours = Path::new("/").join(LIBRARIES);
    if !ours.join(LOADER).exists() {
        return needs::missing("chroot", &format!("no {LOADER} in {}", ours.display()));
    }
    for folder in [LIBRARIES, "lib64", "app"] {
        fs::create_dir_all(root.join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    }
    for name in ["libc.so.6", LOADER] {
        let to = root.join(LIBRARIES).join(name);
        fs::copy(ours.join(name), to).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let link = root.join("lib64").join(LOADER);
    symlink(ours.join(LOADER), link).unwrap_or_else(|e| panic!("the link to the loader: {e}"));
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, &root.join("app"), &["driver_only"]);
    // without /proc a program does not know its own folder, so its libraries cannot be next to it
    fixtures::copies(&built, &root.join(LIBRARIES), &["libcuda.so.1"]);
    true
}

#[bpf_test(needs(program("chroot")))]
fn a_program_in_another_root_with_its_own_loader_is_recorded() {
    let folder = fixtures::folder();
    if !small_root(folder.path()) {
        return;
    }
    let outcome = run("chroot", &[&shown(folder.path()), "/app/driver_only"]);
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    assert!(outcome.finished.took < SOON, "{:?}", outcome.finished.took);
    outcome.trace.assert_whole();
    let printed = outcome.printed();
    assert_calls(&outcome.trace, pid_of(&printed), &printed);
}

#[bpf_test(needs(program("unshare")))]
fn a_program_in_a_pid_namespace_is_recorded_with_both_of_its_pids() {
    let outcome = run("unshare", &["-pf", "--mount-proc", &shown(driver_only())]);
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    assert!(outcome.finished.took < SOON, "{:?}", outcome.finished.took);
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    trace.assert_whole();
    assert_eq!(pid_of(&printed), 1, "the first process of its namespace");
    let inside: Vec<_> = trace.processes.iter().filter(|p| p.ns_pid == Some(Tgid(1))).collect();
    let changes: Vec<_> = inside.iter().map(|p| p.change).collect();
    assert_eq!(changes, [ProcessChange::Start, ProcessChange::Exec, ProcessChange::Exit]);
    let pid = inside[0].tgid.0;
    assert!(pid > 1 && inside.iter().all(|p| p.tgid.0 == pid), "{inside:?}");
    assert_calls(trace, pid, &printed);
    let outside = trace.processes.iter().filter(|p| p.tgid.0 != pid);
    assert!(
        outside.clone().count() > 0 && outside.clone().all(|p| p.ns_pid.is_none()),
        "{:?}",
        trace.processes
    );
}

#[bpf_test(needs(program("setpriv")))]
fn the_documented_capabilities_are_enough() {
    let folder = fixtures::folder();
    let at = |name: &str| folder.path().join(name);
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    };
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1", "driver_only"]);
    fs::copy(fixtures::gpuprobe(), at("gpuprobe")).unwrap_or_else(|e| panic!("cannot copy gpuprobe: {e}"));
    for name in ["libcuda.so.1", "driver_only", "gpuprobe"] {
        open(&at(name), 0o755);
    }
    open(folder.path(), 0o777);
    let only = "-all,+bpf,+perfmon,+sys_ptrace";
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
        command.arg(format!("{set}={only}"));
    }
    command
        .arg(at("gpuprobe"))
        .args(["run", "-e", "*", "-o"])
        .arg(at("trace"))
        .arg("--")
        .arg(at("driver_only"));
    let finished = finish(&mut command);
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(finished.took < SOON, "{:?}", finished.took);
    let trace = Recording::read(&at("trace"));
    trace.assert_whole();
    let printed = finished.json();
    assert_calls(&trace, pid_of(&printed[0]), &printed[0]);
}

#[bpf_test(needs(program("unshare")))]
fn gpuprobe_in_a_pid_namespace_is_refused_in_one_line() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace");
    let inner = gpuprobe(&[]);
    let mut command = Command::new("unshare");
    command.args(["-pf", "--mount-proc"]).arg(inner.get_program());
    command.args(["run", "-o"]).arg(&trace).args(["--", "echo", "it ran"]);
    let finished = finish(&mut command);
    assert_ne!(finished.status, 0);
    assert_eq!(finished.stdout, "", "the command is not run");
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("pid namespace"), "{}", finished.stderr);
    assert!(!trace.exists(), "there is nothing to write");
}

#[bpf_test(alone)]
fn no_call_is_missed_when_every_core_is_busy() {
    let busy = || Talk::start(Command::new("sh").args(["-c", "while :; do :; done"]));
    let _loops: Vec<Talk> = (0..4).map(|_| busy()).collect();
    for (workload, args) in [("late_dlopen", &["0"][..]), ("late_dlopen", &["100"]), ("constructor", &[])] {
        let outcome = run(&shown(fixtures::standins(Cuda::Cuda12).workload(workload)), args);
        assert!(outcome.finished.took < SOON, "{workload}: {:?}", outcome.finished.took);
        outcome.trace.assert_whole();
        let printed = outcome.printed();
        let (pid, calls) = (pid_of(&printed), counts_of(&printed["calls"]));
        assert_eq!(outcome.trace.counts(pid, Api::Runtime), calls, "{workload}");
        assert_eq!(outcome.trace.counts(pid, Api::Driver), inner_counts(&calls), "{workload}");
    }
}
