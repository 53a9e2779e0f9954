//! Replays recorded traces: a program on stand-ins, also with entry and return lines (`--phases`), and PyTorch on a
//! GPU. The output is compared with golden files next to the traces; `GPUPROBE_BLESS=1` rewrites them.
#![allow(clippy::unwrap_used, reason = "tests panic on errors")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces")
}

/// The stdout of a command for a trace.
fn stdout_of(words: &[&str], trace: &str) -> String {
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
    assert!(found == expected, "{name} differs; GPUPROBE_BLESS=1 rewrites it:\n{found}");
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
        assert_golden(&format!("{trace}.summary.txt"), &stdout_of(&["report"], trace));
    }
}

#[test]
fn summaries_of_pytorch_fit_on_a_screen_of_80_and_of_200_columns() {
    for trace in ["torch_train.jsonl.zst", "torch_infer.jsonl.zst"] {
        for width in ["80", "200"] {
            let text = stdout_of(&["report", "--width", width], trace);
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest <= width.parse().ok(), "{longest:?} columns:\n{text}");
            assert!(text.lines().count() <= 62, "{} lines:\n{text}", text.lines().count());
            assert_golden(&format!("{trace}.summary_{width}.txt"), &text);
        }
    }
    let nested = stdout_of(&["report", "--nested", "--rows", "0"], "torch_train.jsonl.zst");
    assert!(nested.contains("\ncudaMalloc ") && nested.contains("\n  cuMemAlloc_v2 "), "{nested}");
    let full = stdout_of(&["report", "--full-names"], "torch_train.jsonl.zst");
    assert!(full.contains("\nvoid at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, "), "{full}");
}

#[test]
fn timelines_of_recordings() {
    for trace in TRACES {
        assert_golden(&format!("{trace}.timeline.txt"), &stdout_of(&["timeline", "--width", "100"], trace));
    }
    let part = stdout_of(&["timeline", "--width", "100", "--from", "1s", "--to", "1200ms"], "demo.jsonl.zst");
    assert!(part.starts_with("200.0 ms from 1.000000 s"), "{part}");
}

#[test]
fn a_range_outside_the_trace_is_an_error_with_its_span() {
    let timeline = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_gpuprobe"))
            .args(["timeline", "demo.jsonl.zst", "--width", "100"])
            .args(words)
            .current_dir(traces())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (_, all, _) = timeline(&[]);
    for beyond in
        [&["--from", "1000s"][..], &["--from", "9000s", "--to", "99999999999999s"], &["--to", "1ns"]]
    {
        let (shown, picture, stderr) = timeline(beyond);
        assert!(!shown && picture.is_empty(), "{beyond:?}: {picture}");
        assert!(stderr.contains("the trace spans 0.") && stderr.lines().count() == 1, "{beyond:?}: {stderr}");
    }
    let (shown, picture, stderr) = timeline(&["--to", "99999999999999s"]);
    assert!(shown && stderr.contains("the trace spans 0."), "{stderr}");
    assert_eq!(picture, all, "the trace is shown to its end");
}

#[test]
fn a_trace_of_entries_only_is_counted_and_reported_as_such() {
    let lines = [
        r#"{"type":"meta","format":1}"#.to_owned(),
        entry(1, "cuLaunchKernel"),
        entry(2, "cuLaunchKernel"),
        entry(3, "cuMemAlloc_v2"),
        r#"{"type":"end"}"#.to_owned(),
    ];
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    std::fs::write(&trace, lines.join("\n") + "\n").unwrap();
    let trace = trace.to_str().unwrap();
    for output in [stdout_of(&["report"], trace), stdout_of(&["report", "--html", "-"], trace)] {
        assert!(output.contains("only the start of calls was recorded"), "{output}");
    }
    let summary = stdout_of(&["report"], trace);
    assert!(summary.contains("\n3 calls in 1 process over 2.0 ms; only the start of calls"), "{summary}");
    assert!(summary.contains("Total CUDA API calls: 3\n  Kernel launches: not known\n"), "{summary}");
    let row = |line: &&str| line.starts_with("cuLaunchKernel ");
    let row: Vec<_> = summary.lines().find(row).unwrap().split_whitespace().collect();
    assert_eq!(row, ["cuLaunchKernel", "2"]);
}

/// A line of `trace -r --json`.
fn entry(id: u64, name: &str) -> String {
    format!(
        r#"{{"event_id":{id},"ts":5.00{id},"type":"launch","name":"{name}","phase":"B","pid":7,"tid":7,"process":"p","api":"driver"}}"#
    )
}

#[test]
fn pages_load_nothing_and_have_every_section() {
    for trace in TRACES {
        let page = stdout_of(&["report", "--html", "-"], trace);
        assert_eq!(page.matches("<script").count(), 1, "{trace}: only the embedded script");
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
