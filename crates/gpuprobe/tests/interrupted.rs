//! Signals during `convert`: nothing is left of an incomplete file.
#![allow(clippy::unwrap_used, reason = "tests panic on errors")]

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(60);

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The signals have their usual effect, whatever the caller of the tests ignores.
const USUAL_SIGNALS: &str = "exec env --default-signal";

/// Starts a conversion into the folder that waits for the rest of its trace.
fn started(folder: &Path, exec: &str) -> (Child, ChildStdin) {
    let shell = format!("{exec} \"$0\" convert - --to chrome -o out.json");
    let mut child = Command::new("sh")
        .args(["-c", &shell, env!("CARGO_BIN_EXE_gpuprobe")])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/sample.jsonl");
    let mut stdin = child.stdin.take().unwrap();
    let text = fs::read_to_string(trace).unwrap();
    let (meta, _) = text.split_once('\n').unwrap();
    writeln!(stdin, "{meta}").unwrap();
    let begun = Instant::now();
    while !names(folder).iter().any(|name| name.starts_with("out.json-")) {
        assert!(begun.elapsed() < PATIENCE, "no temporary file: {:?}", child.wait_with_output());
        std::thread::sleep(Duration::from_millis(5));
    }
    (child, stdin)
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn a_signal_leaves_no_file_and_keeps_the_one_that_was_there() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        for earlier in [None, Some("earlier")] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("out.json");
            earlier.into_iter().for_each(|text| fs::write(&output, text).unwrap());
            let (mut child, _stdin) = started(folder.path(), USUAL_SIGNALS);
            send(&child, signal);
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(signal as i32), "{status}");
            let left: Vec<_> = earlier.iter().map(|_| "out.json".to_owned()).collect();
            assert_eq!(names(folder.path()), left, "{signal}");
            assert_eq!(fs::read_to_string(&output).ok().as_deref(), earlier);
        }
    }
}

#[test]
fn a_signal_that_the_caller_ignores_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (child, stdin) = started(folder.path(), "trap '' HUP; exec");
    send(&child, Signal::SIGHUP);
    std::thread::sleep(Duration::from_millis(100));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(names(folder.path()), ["out.json"]);
}
