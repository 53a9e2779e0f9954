//! SIGQUIT, which Ctrl-\ sends: it asks `run` for stacks, at any time. Other commands leave it to what they run.

use std::fs;
use std::time::Duration;

use gpuprobe_e2e::gpu_listing::{driver_folder, list};
use gpuprobe_e2e::process::{PATIENCE, Talk, gpuprobe, shown, until};
use gpuprobe_e2e::sampled::{FOR_EVER, compiled, library};
use gpuprobe_e2e::{Run, bpf_test, fixtures};
use gpuprobe_standin::Library;
use nix::sys::signal::Signal;

/// The blocked signals of a process, as bits.
fn blocked(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as u64 - 1)
}

#[bpf_test]
fn stacks_have_the_state_of_gpus() {
    let folder = fixtures::folder();
    let at = |name: &str| shown(folder.path().join(name));
    let driver = driver_folder(folder.path());
    // listed before the others, so that the host's numbers are not NVML's
    list(folder.path(), "0000:00:00.0", "GPU-99999999-9999-9999-9999-999999999999", 0);
    let program = shown(compiled(folder.path(), "many_waits.c", &["-O2"], Library::Driver));
    let wait = format!("STANDIN_WAIT=cuStreamSynchronize:{FOR_EVER}");
    let options =
        ["run", "-o", &at("t.jsonl"), "--driver-folder", &driver, "--nvml", &shown(library(Library::Nvml))];
    let mut command = gpuprobe(&[&options[..], &["--", "env", &wait, &program, "1", "0"]].concat());
    let mut run = Talk::start(command.env("STANDIN_NVML", at("nvml")));
    let pid = run.line();
    fs::write(at("nvml"), format!("process 0 compute {pid} 777\n")).unwrap();
    run.signal(Signal::SIGQUIT);
    let head = format!("Process {pid} (GPU 1 busy 42%");
    until(PATIENCE, "the state of the GPU", || run.stderr().contains(&head).then_some(()));
    assert!(!run.has_exited(), "{}", run.stderr());
}

#[bpf_test]
fn a_request_while_the_probes_are_attached_is_answered_later() {
    let folder = fixtures::folder();
    let mut run = Talk::start(&mut Run::new("sleep").args(&["4"]).command(&folder.path().join("t.jsonl")));
    let early = until(PATIENCE, "SIGQUIT is blocked", || {
        assert!(!run.has_exited(), "{}", run.stderr());
        blocked(run.pid()).filter(|mask| mask & bit(Signal::SIGQUIT) != 0)
    });
    assert_eq!(early & bit(Signal::SIGINT), 0, "Ctrl-C still ends it");
    run.signal(Signal::SIGQUIT);
    until(PATIENCE, "the stacks", || run.stderr().contains(": sleep 4\n").then_some(()));
    assert_eq!(run.end(), 0, "{}", run.stderr());
}

#[bpf_test]
fn the_command_of_memory_gets_it() {
    // tests that run in the background of a shell inherit that it is ignored
    let command = ["memory", "--", "env", "--default-signal=QUIT", "sleep", "60"];
    let mut memory = Talk::start(&mut gpuprobe(&command));
    let children = format!("/proc/{0}/task/{0}/children", memory.pid());
    until(PATIENCE, "the command runs", || {
        let children = fs::read_to_string(&children).ok()?;
        let is_sleep = |pid: &str| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == "sleep")
        };
        children.split_whitespace().any(is_sleep).then_some(())
    });
    // an exec and what follows it
    std::thread::sleep(Duration::from_millis(100));
    memory.signal(Signal::SIGQUIT);
    assert_eq!(memory.end(), 128 + Signal::SIGQUIT as i32, "{}", memory.stderr());
}
