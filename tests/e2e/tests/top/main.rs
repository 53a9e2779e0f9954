//! `gpuprobe top`: on a terminal, as text and JSON, and of a daemon.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod large_hosts;
mod terminal_pane;
mod top_of_daemons;
mod top_on_a_terminal;

use std::process::Command;

use gpuprobe_e2e::{Talk, fixtures};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// A program that waits for a line, then makes its calls, prints its ledger and waits again.
fn paused_ledger() -> (tempfile::TempDir, Talk) {
    started("ledger", &["--threads", "2", "--calls", "3000", "--wait", "--pauses", "1"])
}

/// A program that has loaded the CUDA driver and waits for a line, then copies a thousand times a second.
fn paced_copies() -> (tempfile::TempDir, Talk) {
    started("paced", &["1000000", "1000"])
}

fn started(workload: &str, args: &[&str]) -> (tempfile::TempDir, Talk) {
    let folder = fixtures::folder();
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", workload]);
    let talk = Talk::start(Command::new(folder.path().join(workload)).args(args));
    (folder, talk)
}

/// Lets it make its calls, and returns the ledger of them.
fn make_calls(program: &mut Talk) -> Value {
    program.go_on();
    program.json()
}
