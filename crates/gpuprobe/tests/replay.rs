//! Recorded traces, shown again: a program on stand-ins, and PyTorch on a GPU. What comes out is compared with files beside
//! the traces, which `GPUPROBE_BLESS=1` writes anew.
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

const TRACES: [&str; 4] =
    ["sample.jsonl", "demo.jsonl.zst", "torch_train.jsonl.zst", "torch_infer.jsonl.zst"];

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
