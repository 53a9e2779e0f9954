//! `gpuprobe memory` as a command: wrong usage is reported in one line, and it ends with the processes that it
//! watches. Its figures are tested in `call_sites`.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::{Finished, Talk, bpf_test, fixtures};
use serde_json::json;

/// Maps a file as code, prints a line and waits for one.
const MAPPER: &str = "
import mmap, sys
with open(sys.argv[1], 'rb') as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
print('mapped', flush=True)
sys.stdin.readline()
";

fn said(args: &[&str]) -> Finished {
    finish(&mut gpuprobe(&[&["memory"], args].concat()))
}

/// Checks for status 1, one line on stderr with all of these words, and nothing on stdout.
fn assert_reported(finished: &Finished, says: &[&str]) {
    let stderr = &finished.stderr;
    assert_eq!((finished.status, stderr.lines().count(), finished.stdout.as_str()), (1, 1, ""), "{stderr}");
    assert!(stderr.starts_with("gpuprobe: ") && says.iter().all(|words| stderr.contains(words)), "{stderr}");
}

#[test]
fn wrong_usage_is_reported_with_status_2() {
    let cases: &[(&[&str], &str)] = &[
        (&["-d", "1", "--", "true"], "--pid <PID>"),
        (&["--watch", "--interval", "0"], "--interval"),
        (&["--interval", "1"], "--watch"),
        (&["--duration", "0"], "--duration"),
        (&["--duration", "long"], "--duration"),
        (&["--warm-up", "0"], "--warm-up"),
        (&["-d", "me"], "--pid"),
        (&["-d", "-1"], "-1"),
        (&["--attach", "magic"], "--attach"),
    ];
    for (args, says) in cases {
        let finished = said(args);
        let stderr = &finished.stderr;
        assert_eq!((finished.status, finished.stdout.as_str()), (2, ""), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(says), "{args:?}: {stderr}");
    }
}

#[bpf_test]
fn processes_and_files_that_cannot_be_watched_are_named() {
    // the largest possible limit of pids is 2^22
    assert_reported(&said(&["-d", "4194305"]), &["4194305", "no process"]);
    assert_reported(&said(&["--", "/no/such/command"]), &["no such command", "/no/such/command"]);
    assert_reported(&said(&["-o", "/no/such/folder/file", "--", "true"]), &["/no/such/folder/file"]);
    let (sender, thread) = mpsc::channel();
    let (release, wait) = mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        sender.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
        wait.recv().ok();
    });
    let number = thread.recv().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    let process = std::process::id().to_string();
    assert_reported(&said(&["-d", &number]), &[&number, &format!("use -d {process}")]);
    drop(release);
    other.join().unwrap();
}

#[bpf_test]
fn the_status_of_the_command_is_passed_on() {
    let finished = said(&["--", "sh", "-c", "echo out; exit 7"]);
    assert_eq!(finished.status, 7, "{}", finished.stderr);
    assert!(finished.stdout.starts_with("out\n"), "{}", finished.stdout);
    assert!(finished.stdout.contains("no GPU memory was allocated"), "{}", finished.stdout);
    assert_eq!(finished.stderr, "");

    let folder = fixtures::folder();
    let file = folder.path().join("memory.json");
    let finished = said(&["--json", "-o", &shown(&file), "--", "sh", "-c", "echo out; kill -9 $$"]);
    assert_eq!((finished.status, finished.stdout.as_str()), (137, "out\n"), "{}", finished.stderr);
    let text = fs::read_to_string(&file).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((text.lines().count(), &report["complete"]), (1, &json!(true)));
    assert_eq!(report["processes"], json!([]));
}

#[bpf_test]
fn the_report_is_repeated_until_the_command_ends() {
    let finished = said(&["--watch", "--interval", "0.1", "--json", "--", "sleep", "1"]);
    assert_eq!((finished.status, finished.stderr.as_str()), (0, ""));
    let times: Vec<f64> = finished.json().iter().map(|line| line["unix"].as_f64().unwrap()).collect();
    assert!(times.len() >= 2 && times.is_sorted(), "{times:?}");
}

#[bpf_test]
fn a_watch_ends_with_its_process() {
    let mut process = Command::new("sleep").arg("2").stdout(Stdio::null()).spawn().unwrap();
    // reaped by the shell, or it would stay as a zombie
    let pid = process.id().to_string();
    let waits = std::thread::spawn(move || process.wait());
    let begun = Instant::now();
    let finished = said(&["-d", &pid, "--duration", "500"]);
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(finished.stdout.contains("no GPU memory was allocated"), "{}", finished.stdout);
    assert!(begun.elapsed().as_secs() < 400);
    waits.join().unwrap().unwrap();
}

#[bpf_test]
fn a_closed_pipe_ends_a_watch_and_not_the_command() {
    let program = shown(fixtures::gpuprobe());
    let read_one_line = |args: &str| {
        let watch = format!("{program} memory --watch --interval 0.1 --json {args}");
        let script = format!("{{ {watch}; echo status $? >&2; }} | head -n 1");
        let finished = finish(Command::new("sh").args(["-c", &script]));
        assert_eq!((finished.status, finished.json().len()), (0, 1), "{}", finished.stderr);
        finished.stderr
    };
    assert_eq!(read_one_line(""), "status 0\n");
    let folder = fixtures::folder();
    let ended = folder.path().join("ended");
    let command = format!("-- sh -c 'exec >&-; read line < {0}.fifo; echo $line > {0}'", shown(&ended));
    let fifo = folder.path().join("ended.fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_eq!(
        read_one_line(&command),
        "no longer observed: 1 processes that still run\nstatus 0\n",
        "the command waits for us"
    );
    fs::write(&fifo, "whole\n").unwrap();
    until(PATIENCE, "the command ends", || {
        fs::read_to_string(&ended).is_ok_and(|text| text == "whole\n").then_some(())
    });
}

#[bpf_test]
fn unprobed_files_are_reported_only_for_the_chosen_processes() {
    let folder = fixtures::folder();
    let [theirs, ours] = ["theirs", "ours"].map(|name| folder.path().join(name).join("libcuda.so.1"));
    for file in [&theirs, &ours] {
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(file, "text").unwrap();
    }
    let [_other, process] = [&theirs, &ours].map(|file| {
        let mut talk = Talk::start(Command::new("python3").args(["-c", MAPPER]).arg(file));
        assert_eq!(talk.line(), "mapped", "{}", talk.stderr());
        talk
    });
    let finished = said(&["-d", &process.pid().to_string(), "--duration", "0.3"]);
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    let reported: Vec<_> = finished.stderr.lines().filter(|line| line.contains("not probed: ")).collect();
    assert_eq!(reported.len(), 1, "{}", finished.stderr);
    assert!(reported[0].contains(&shown(&ours)), "{}", finished.stderr);
}
