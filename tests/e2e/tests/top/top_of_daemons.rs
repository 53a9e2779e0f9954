//! `top --connect`: the figures of daemons, without privileges.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{bpf_test, fixtures};
use serde_json::Value;

use crate::{make_calls, paused_ledger};

/// One update of `top` as JSON, by a user without privileges.
fn unprivileged(folder: &std::path::Path, args: &[&str]) -> Value {
    let binary = folder.join("gpuprobe");
    if !binary.exists() {
        // by another program: a file that a thread of this one writes cannot be executed by others meanwhile
        assert!(Command::new("cp").arg(fixtures::gpuprobe()).arg(&binary).status().unwrap().success());
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
    command.args(["top", "--json", "-n", "1", "--interval", "300ms"]).args(args);
    let finished = finish(&mut command);
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    finished.json().remove(0)
}

fn live_bytes(ledger: &Value) -> u64 {
    ledger["memory"].as_object().unwrap().values().map(|kind| number(&kind["live_bytes"])).sum()
}

#[bpf_test]
fn the_figures_of_a_daemon_equal_its_metrics_and_the_ledger() {
    let (folder, mut program) = paused_ledger();
    let pid = pid_of(&program.json());
    let library = shown(folder.path().join("libcuda.so.1"));
    let daemon = Daemon::with(&["-p", &library]);
    let ledger = make_calls(&mut program);
    let expected = live_bytes(&ledger);
    let live = |m: &gpuprobe_e2e::metrics::Metrics| {
        m.by("gpuprobe_memory_live_bytes", pid, "kind").values().sum::<u64>()
    };
    let metrics = daemon.until(PATIENCE, "live memory", |m| live(m) == expected);
    let url = format!("http://{}", daemon.address());
    let view = unprivileged(folder.path(), &["--connect", &url]);
    let of_pid = |view: &Value| {
        let rows = view["processes"].as_array().unwrap();
        rows.iter().find(|row| row["id"]["pid"] == pid).unwrap().clone()
    };
    let row = of_pid(&view);
    assert_eq!(number(&row["live_bytes"]), expected);
    let launches: u64 = metrics.by("gpuprobe_kernel_launches_total", pid, "kernel").values().sum();
    assert_eq!(number(&row["launches"]), launches);
    assert!(launches > 0 && row["name"] == "ledger" && row["has_exited"] == false, "{row}");
    // two hosts on one screen: the same daemon by another name
    let other = url.replace("127.0.0.1", "localhost");
    let both = unprivileged(folder.path(), &["--connect", &url, "--connect", &other]);
    let hosts: Vec<_> =
        both["processes"].as_array().unwrap().iter().filter(|row| row["id"]["pid"] == pid).collect();
    assert_eq!(hosts.len(), 2);
    assert_ne!(hosts[0]["id"]["host"], hosts[1]["id"]["host"]);
}

/// The first update has rates, `--filter` chooses processes, and a daemon that does not answer is named.
#[bpf_test]
fn json_has_rates_hosts_and_problems() {
    let (folder, mut program) = paused_ledger();
    let pid = pid_of(&program.json());
    let daemon = Daemon::with(&["-p", &shown(folder.path().join("libcuda.so.1"))]);
    make_calls(&mut program);
    daemon.until(PATIENCE, "its calls", |m| !m.by("gpuprobe_calls_total", pid, "function").is_empty());
    let url = format!("http://{}", daemon.address());
    let filter = ["--filter", &pid.to_string(), "--connect", &url];
    let view = unprivileged(folder.path(), &[&filter[..], &["--connect", "http://127.0.0.1:1"]].concat());
    let rows = view["processes"].as_array().unwrap();
    assert!(rows.len() == 1 && rows[0]["id"]["pid"] == pid, "{view}");
    for rate in ["launches_per_second", "copies_per_second", "calls_share", "growth_per_second"] {
        assert!(rows[0][rate].is_number(), "{rate}: {view}");
    }
    assert_eq!(view["hosts"], serde_json::json!([daemon.address().to_string(), "127.0.0.1:1"]));
    assert!(view["problem"].as_str().is_some_and(|text| text.starts_with("127.0.0.1:1: ")), "{view}");
    let view = unprivileged(folder.path(), &["--connect", &url, "--filter", "no process has this name"]);
    assert!(view["processes"].as_array().unwrap().is_empty() && view["problem"].is_null(), "{view}");
}

#[test]
fn silent_daemons_do_not_delay_a_signal() {
    // they accept connections, and never answer
    let silent = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = silent.each_ref().map(|socket| format!("http://{}", socket.local_addr().unwrap()));
    let daemons = ["--connect", &urls[0], "--connect", &urls[1]];
    for daemons in [&daemons[..2], &daemons] {
        let mut top = gpuprobe(&[&["top", "--json"], daemons].concat()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let sent = Command::new("kill").arg(top.id().to_string()).status().unwrap();
        assert!(sent.success());
        let asked = Instant::now();
        top.wait().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(5), "{daemons:?}: {:?}", asked.elapsed());
    }
}

#[bpf_test]
fn a_frame_of_text_has_the_process() {
    let (folder, mut program) = paused_ledger();
    let pid = pid_of(&program.json()).to_string();
    let daemon = Daemon::with(&["-p", &shown(folder.path().join("libcuda.so.1"))]);
    make_calls(&mut program);
    let url = format!("http://{}/", daemon.address());
    let is_row = |line: &str| line.split_whitespace().next() == Some(&pid);
    let frame = until(PATIENCE, "the process", || {
        let options = ["top", "-b", "-n", "1", "--interval", "300ms", "--filter", &pid, "--connect", &url];
        let finished = finish(&mut gpuprobe(&options));
        assert_eq!(finished.status, 0, "{}", finished.stderr);
        Some(finished.stdout).filter(|text| text.lines().any(is_row))
    });
    let row = frame.lines().find(|line| is_row(line)).unwrap();
    assert!(row.contains("iB") && row.ends_with("ledger"), "{row}");
}

#[bpf_test]
fn daemons_that_do_not_answer_are_reported_in_one_line() {
    let top = |url: &str, options: &[&str]| {
        let finished =
            finish(&mut gpuprobe(&[&["top", "-b", "-n", "1", "--connect", url], options].concat()));
        assert_eq!(finished.status, 1, "{url}");
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        finished.stderr
    };
    let refused = top("http://127.0.0.1:1", &[]);
    assert!(refused.contains("127.0.0.1:1: ") && refused.contains("refused"), "{refused}");
    assert!(top("ftp://127.0.0.1:1", &[]).contains("neither http nor https"));
    assert!(top("http://u:p@127.0.0.1:1", &[]).contains("--password-file"));
    assert!(top("http://u@127.0.0.1:1", &[]).contains("--password-file"));
    let daemon = Daemon::displaying(0, &[]);
    let missing = top(&format!("http://{}/nothing/here", daemon.address()), &[]);
    assert!(missing.contains("not a gpuprobe daemon"), "{missing}");
}
