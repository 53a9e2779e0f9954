//! Recorded traces, shown again: a program on stand-ins, also with both ends of its calls, and PyTorch on a GPU. What comes
//! out is compared with files beside the traces, which `GPUPROBE_BLESS=1` writes anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces")
}

/// What a command says of a trace, on stdout.
fn said(words: &[&str], trace: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gpuprobe"))
        .args(words)
        .arg(trace)
        .current_dir(traces())
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?} {trace}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn assert_golden(name: &str, found: &str) {
    let path = traces().join("golden").join(name);
    if std::env::var_os("GPUPROBE_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(found == expected, "{name} differs; GPUPROBE_BLESS=1 writes it anew:\n{found}");
}

const TRACES: [&str; 5] = [
    "sample.jsonl",
    "demo.jsonl.zst",
    "demo_phases.jsonl.zst",
    "torch_train.jsonl.zst",
    "torch_infer.jsonl.zst",
];

#[test]
fn summaries_of_recordings() {
    for trace in TRACES {
        assert_golden(&format!("{trace}.summary.txt"), &said(&["report"], trace));
    }
}

#[test]
fn timelines_of_recordings() {
    for trace in TRACES {
        assert_golden(&format!("{trace}.timeline.txt"), &said(&["timeline", "--width", "100"], trace));
    }
    let part = said(&["timeline", "--width", "100", "--from", "1s", "--to", "1200ms"], "demo.jsonl.zst");
    assert!(part.starts_with("200.0 ms from 1.000000 s"), "{part}");
}

#[test]
fn times_beyond_a_trace_are_answered_by_what_it_spans() {
    let asked = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_gpuprobe"))
            .args(["timeline", "demo.jsonl.zst", "--width", "100"])
            .args(words)
            .current_dir(traces())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (_, all, _) = asked(&[]);
    for beyond in
        [&["--from", "1000s"][..], &["--from", "9000s", "--to", "99999999999999s"], &["--to", "1ns"]]
    {
        let (shown, picture, said) = asked(beyond);
        assert!(!shown && picture.is_empty(), "{beyond:?}: {picture}");
        assert!(said.contains("the trace spans 0.") && said.lines().count() == 1, "{beyond:?}: {said}");
    }
    let (shown, picture, said) = asked(&["--to", "99999999999999s"]);
    assert!(shown && said.contains("the trace spans 0."), "{said}");
    assert_eq!(picture, all, "there is nothing after the end");
}

#[test]
fn a_trace_of_beginnings_alone_is_counted_and_says_so() {
    let lines = [
        r#"{"type":"meta","format":1}"#.to_owned(),
        beginning(1, "cuLaunchKernel"),
        beginning(2, "cuLaunchKernel"),
        beginning(3, "cuMemAlloc_v2"),
        r#"{"type":"end"}"#.to_owned(),
    ];
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    std::fs::write(&trace, lines.join("\n") + "\n").unwrap();
    let trace = trace.to_str().unwrap();
    for said in [said(&["report"], trace), said(&["report", "--html", "-"], trace)] {
        assert!(said.contains("only the start of calls was recorded"), "{said}");
    }
    let summary = said(&["report"], trace);
    assert!(summary.contains("\n3 calls in 1 process over 2.0 ms; only the start of calls"), "{summary}");
    assert!(summary.contains("Total CUDA API calls: 3\n  Kernel launches: not known\n"), "{summary}");
    let row = |line: &&str| line.starts_with("cuLaunchKernel ");
    let row: Vec<_> = summary.lines().find(row).unwrap().split_whitespace().collect();
    assert_eq!(row[1..3], ["2", "0"]);
}

/// A line of `trace -r --json`.
fn beginning(id: u64, name: &str) -> String {
    format!(
        r#"{{"event_id":{id},"ts":5.00{id},"type":"launch","name":"{name}","phase":"B","pid":7,"tid":7,"process":"p","api":"driver"}}"#
    )
}

#[test]
fn pages_of_recordings_load_nothing_and_have_every_part() {
    for trace in TRACES {
        let page = said(&["report", "--html", "-"], trace);
        assert_eq!(page.matches("<script").count(), 1, "{trace}: only our own");
        for part in
            ["id=\"figures\"", "id=\"timeline\"", "id=\"functions\"", "class=\"flame\"", "id=\"losses\""]
        {
            assert!(page.contains(part), "{trace} lacks {part}");
        }
        let outside = ["<img", "<iframe", "<link", "<object", "<embed", "@import"];
        for word in outside {
            assert!(!page.contains(word), "{trace} has {word}");
        }
    }
}
