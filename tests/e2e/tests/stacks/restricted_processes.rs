//! Processes in namespaces, and those that may do nearly nothing.

use std::fs;
use std::process::Command;

use gpuprobe_e2e::linux::descendant;
use gpuprobe_e2e::process::{Talk, shown};
use gpuprobe_e2e::sampled::{
    FOR_EVER, Started, compiled, library, line_of, only_group, process, python_frames,
};
use gpuprobe_e2e::{bpf_test, fixtures, python};
use gpuprobe_standin::Library;

#[bpf_test]
fn a_process_in_a_pid_namespace_is_shown_by_its_number_on_the_host() {
    const SCRIPT: &str = "hung_stream.py";
    let python = &python::newest().path;
    let mut command = Command::new("unshare");
    command.args(["-mpf", "--mount-proc", "env", &format!("STANDIN_WAIT=cuStreamSynchronize:{FOR_EVER}")]);
    command.arg(python).args(python::arguments(SCRIPT, &library(Library::Driver), &[]));
    let mut talk = Talk::start(&mut command);
    assert_eq!(talk.line(), "1", "its own number");
    let name: String = python.file_name().unwrap().to_string_lossy().chars().take(15).collect();
    let pid = descendant(talk.pid(), &name);
    let shown = process(pid, &[]);
    let group = only_group(&shown);
    let found = (&group["verdict"], &group["function"], &group["tids"][0]);
    assert_eq!(found, (&"stuck".into(), &"cuStreamSynchronize".into(), &pid.into()), "{group}");
    let line = line_of(&python::script(SCRIPT), "cuda.cuStreamSynchronize(None)");
    assert_eq!(python_frames(group)[0].2, line);
}

/// Anything that it had to do itself would kill it.
#[bpf_test]
fn a_process_that_may_do_nothing_is_sampled_and_survives() {
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), "locked_down.c", &["-O2"], Library::Driver));
    let mut program = Started::new(&[&program], &[&format!("STANDIN_WAIT=cuStreamSynchronize:{FOR_EVER}")]);
    let status = || fs::read_to_string(format!("/proc/{}/status", program.pid)).unwrap();
    gpuprobe_e2e::process::until(gpuprobe_e2e::process::PATIENCE, "it is locked down", || {
        (status().contains("Seccomp:\t2") && status().contains("NoNewPrivs:\t1")).then_some(())
    });
    let shown = process(program.pid, &["--samples", "20"]);
    let group = only_group(&shown);
    let found = (&group["verdict"], &group["function"], &group["system_call"]);
    assert_eq!(found, (&"stuck".into(), &"cuStreamSynchronize".into(), &"futex".into()), "{group}");
    assert!(!program.talk.has_exited(), "it was killed");
}
