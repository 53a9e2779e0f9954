//! The share of the time in calls, for calls that take longer than an update.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{gpuprobe, shown};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// How long the program is in a call of the driver.
const SECONDS: f64 = 3.0;

#[bpf_test]
fn a_long_call_is_counted_while_it_is_open_and_once() {
    let folder = fixtures::folder();
    let files = ["libcuda.so.1", "libcudart.so.12", "hangs"];
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &files);
    let mut command = Command::new(folder.path().join("hangs"));
    let delay = format!("cuCtxSynchronize:{}", SECONDS * 1e6);
    let mut program = Talk::start(command.arg("2").env("STANDIN_DELAY", delay));
    let pid = pid_of(&program.json()).to_string();
    let daemon = Daemon::with(&["-p", &shown(folder.path().join("libcuda.so.1"))]);
    let url = format!("http://{}", daemon.address());
    let options = ["top", "--json", "-n", "9", "--interval", "500ms", "--filter", &pid, "--connect", &url];
    let mut top = gpuprobe(&options).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut views = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut before = views.next().unwrap()["unix_seconds"].as_f64().unwrap();
    program.go_on();
    let (mut in_calls, mut full) = (0.0, 0);
    for view in views {
        let now = view["unix_seconds"].as_f64().unwrap();
        let share = view["processes"][0]["calls_share"].as_f64().unwrap_or(0.0);
        in_calls += share * (now - before);
        full += u32::from((0.9..1.1).contains(&share));
        assert!(share < 1.2, "one thread: {view}");
        before = now;
    }
    assert!(top.wait().unwrap().success());
    assert!((in_calls - SECONDS).abs() < 0.1, "{in_calls} s in calls");
    assert!(full >= 3, "{full} updates in the middle of the call");
}
