//! `top` on a terminal: keys, sizes, and how it leaves the terminal.

use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{bpf_test, fixtures};

use crate::paced_copies;
use crate::terminal_pane::Pane;

fn top(options: &str) -> String {
    format!("LC_ALL=C.UTF-8 {} top --interval 200ms {options}", shown(fixtures::gpuprobe()))
}

#[bpf_test]
fn keys_sort_filter_open_resize_and_quit() {
    let (_folder, mut program) = paced_copies();
    let pid = pid_of(&program.json());
    let pane = Pane::open(80, 24);
    pane.run(&top(&format!("--filter {pid}")));
    pane.until("top", |screen| {
        screen.contains("No process has used CUDA yet") || screen.contains("No process matches")
    });
    program.go_on();
    let is_row = |line: &str| line.split_whitespace().next() == Some(&pid.to_string());
    pane.until("the process", |screen| screen.lines().any(is_row));
    pane.press(&["Enter"]);
    pane.until("its calls", |screen| {
        screen.contains(&format!("paced ({pid})")) && screen.contains("cuMemcpyHtoD_v2")
    });
    pane.press(&["?"]);
    pane.until("the help", |screen| screen.contains("keys and columns"));
    pane.press(&["x", "Enter", "Escape"]);
    pane.press(&["/"]);
    pane.type_text("zzz");
    pane.until("nothing matches", |screen| screen.contains("No process matches"));
    pane.press(&["Escape"]);
    pane.until("all processes", |screen| screen.lines().any(is_row));
    pane.resize(120, 40);
    let wide = pane.until("more columns", |screen| screen.contains("USER") && screen.contains("PENDING"));
    assert!(wide.lines().any(is_row), "{wide}");
    pane.resize(20, 6);
    pane.until("fewer columns", |screen| !screen.contains("PID") && screen.contains("COMMAND"));
    pane.resize(80, 24);
    pane.press(&["p"]);
    pane.until("a pause", |screen| screen.contains("PAUSED"));
    pane.press(&["q"]);
    pane.assert_restored();
}

#[bpf_test]
fn it_stops_and_continues() {
    let pane = Pane::open(80, 24);
    pane.run(&top(""));
    pane.until("top", |screen| screen.contains("q quit"));
    for _ in 0..2 {
        pane.press(&["C-z"]);
        pane.until("the shell", |screen| screen.contains("Stopped"));
        pane.assert_restored();
        pane.run("fg");
        pane.until("top", |screen| screen.contains("q quit") && !screen.contains("ready>"));
    }
    // keys are read again without Enter
    pane.press(&["?"]);
    pane.until("the help", |screen| screen.contains("keys and columns"));
    pane.press(&["x", "q"]);
    pane.assert_restored();
}

#[bpf_test]
fn the_terminal_is_restored_after_ctrl_c_and_signals() {
    let own = std::process::id();
    let pane = Pane::open(80, 24);
    pane.run(&top(""));
    pane.until("top", |screen| screen.contains("q quit"));
    pane.press(&["C-c"]);
    pane.assert_restored();
    let start = || {
        pane.run(&top(&format!("--filter {own}")));
        pane.until("top", |screen| screen.contains("q quit"));
        // the shell of the pane is busy: signals come from outside
        let pattern = format!("top --interval 200ms --filter {own}");
        let found = Command::new("pgrep").args(["-n", "-f", &pattern]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().trim().to_owned()
    };
    for signal in ["TERM", "HUP", "INT"] {
        let killed = Command::new("kill").args([&format!("-{signal}"), &start()]).status();
        assert!(killed.unwrap().success(), "{signal}");
        pane.assert_restored();
    }
    // a terminal that is closed ends it
    let running = format!("/proc/{}", start());
    drop(pane);
    until(PATIENCE, "top ends with its terminal", || (!Path::new(&running).exists()).then_some(()));
}

#[bpf_test]
fn without_arguments_root_gets_top_at_a_terminal_and_the_help_elsewhere() {
    let pane = Pane::open(100, 30);
    pane.run(&shown(fixtures::gpuprobe()));
    pane.until("top", |screen| screen.contains("gpuprobe top ") && screen.contains("q quit"));
    pane.press(&["q"]);
    pane.assert_restored();
    let help = finish(&mut gpuprobe(&[]));
    assert!(help.status == 2 && help.stdout.contains("gpuprobe <COMMAND>"), "{}", help.stdout);
}

#[bpf_test]
fn wrong_usage_is_one_line() {
    let wrong = |args: &[&str]| {
        let finished = finish(&mut gpuprobe(args));
        assert_ne!(finished.status, 0, "{args:?}");
        finished.stderr
    };
    let line = wrong(&["top"]);
    assert_eq!(line, "gpuprobe: top needs a terminal: -b prints frames as text, --json as JSON\n");
    let line = wrong(&["top", "--sort", "nonsense"]);
    assert!(line.contains("no such column: one of host, pid, user"), "{line}");
    let line = wrong(&["top", "-b", "-d", "999999999"]);
    assert!(line.lines().count() <= 2 && line.contains("999999999"), "{line}");
}
