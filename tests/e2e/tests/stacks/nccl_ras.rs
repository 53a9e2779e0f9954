//! The status of NCCL's RAS service, in the command and in the daemon's answer.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread::{self, JoinHandle};

use gpuprobe_e2e::bpf_test;
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{Talk, finish, gpuprobe};
use gpuprobe_e2e::sampled::{library, list};
use gpuprobe_standin::Library;
use serde_json::json;

/// Answers one client like NCCL's RAS service.
fn answer(listener: &TcpListener, status: &str) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for (question, answer) in
        [("CLIENT PROTOCOL 2", "SERVER PROTOCOL 2\n"), ("TIMEOUT 1", "OK\n"), ("VERBOSE STATUS", status)]
    {
        assert_eq!(lines.next().unwrap().unwrap(), question);
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

/// A service that answers so many clients, and a process that it belongs to.
fn service(clients: u32) -> (JoinHandle<()>, String, Talk) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = thread::spawn(move || {
        for _ in 0..clients {
            answer(&listener, "Job summary\n  rank 3 lags\x1b\n");
        }
    });
    // it waits for a line, and has NCCL mapped: others are not asked
    let mut command = Command::new("cat");
    command.env("NCCL_RAS_ADDR", &address).env("LD_PRELOAD", library(Library::Nccl));
    (service, address, Talk::start(&mut command))
}

#[bpf_test]
fn stacks_have_the_status_of_the_ras_service() {
    let (service, address, mut process) = service(2);
    let pid = process.pid().to_string();
    let of_process = ["stacks", "--samples", "1", "-d", &pid];
    let text = finish(&mut gpuprobe(&of_process));
    let shown = format!("\nNCCL's RAS service at {address}:\n  Job summary\n    rank 3 lags\\u{{1b}}\n");
    assert!(text.status == 0 && text.stdout.ends_with(&shown), "{}{}", text.stdout, text.stderr);
    let json = finish(&mut gpuprobe(&[&of_process[..], &["--json"]].concat())).json().remove(0);
    assert_eq!(json["nccl"][0]["text"], "Job summary\n  rank 3 lags\\u{1b}");
    assert_eq!((&json["nccl"][0]["address"], &json["nccl"][0]["is_cut"]), (&address.into(), &false.into()));
    service.join().unwrap();
    process.stop();
}

#[bpf_test]
fn the_answer_of_the_daemon_has_it_too() {
    let (service, address, mut process) = service(1);
    let daemon = Daemon::with(&["--stacks", "-d", &process.pid().to_string()]);
    let report = daemon.json("/api/stacks");
    let expected =
        json!([{ "address": address, "text": "Job summary\n  rank 3 lags\\u{1b}", "is_cut": false }]);
    assert_eq!(report["nccl"], expected, "{}", daemon.talk.stderr());
    let pids: Vec<_> = list(&report["processes"]).iter().map(|process| &process["pid"]).collect();
    assert_eq!(pids, [&json!(process.pid())]);
    service.join().unwrap();
    process.stop();
}
