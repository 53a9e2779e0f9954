//! Filters of recorded traces, their summary as JSON, and the comparison of two recordings.
#![allow(clippy::unwrap_used, reason = "tests panic on errors")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const TRACES: [&str; 5] = [
    "sample.jsonl",
    "demo.jsonl.zst",
    "demo_phases.jsonl.zst",
    "torch_train.jsonl.zst",
    "torch_infer.jsonl.zst",
];

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces")
}

fn gpuprobe(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuprobe")).args(words).current_dir(traces()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The stdout of a command that must succeed.
fn stdout_of(words: &[&str]) -> String {
    let output = gpuprobe(words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json_of(words: &[&str]) -> Value {
    let line = stdout_of(words);
    assert_eq!(line.lines().count(), 1, "{words:?}: {line}");
    serde_json::from_str(&line).unwrap()
}

/// The lines of a recording.
fn lines_of(trace: &str) -> Vec<String> {
    let bytes = std::fs::read(traces().join(trace)).unwrap();
    let bytes = if trace.ends_with(".zst") { zstd::decode_all(bytes.as_slice()).unwrap() } else { bytes };
    text(&bytes).lines().map(str::to_owned).collect()
}

#[test]
fn the_summary_as_json_has_the_figures_of_the_trace() {
    for trace in TRACES {
        let report = json_of(&["report", "--json", trace]);
        assert_eq!((&report["trace"], &report["filter"]), (&Value::from(trace), &Value::Null));
        let returned = |line: &&String| line.contains("\"duration_us\"") && line.ends_with('}');
        let calls = lines_of(trace).iter().filter(returned).count();
        assert_eq!(report["summary"]["calls"], calls, "{trace}");
        let functions = report["summary"]["functions"].as_array().unwrap();
        assert_eq!(functions.iter().map(|f| f["calls"].as_u64().unwrap()).sum::<u64>(), calls as u64);
    }
}

#[test]
fn filters_keep_exactly_the_matching_events() {
    let lines: Vec<Value> = lines_of("torch_train.jsonl.zst")
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line.get("event_id").is_some())
        .collect();
    let is_call = |line: &&Value| line.get("duration_us").is_some();
    let ns = |value: &Value| (value.as_f64().unwrap() * 1e9).round() as u64;
    let kept = |of: &dyn Fn(&Value) -> bool| lines.iter().filter(is_call).filter(|line| of(line)).count();
    let has_kernel = |line: &Value| line["kernel"].as_str().is_some_and(|name| name.contains("layer_norm"));
    let lasts = |line: &Value| line["duration_us"].as_f64().unwrap() >= 1000.0;
    let end = |line: &Value| ns(&line["ts"]) + (line["duration_us"].as_f64().unwrap() * 1e3).round() as u64;
    let during = |line: &Value| end(line) >= 15_700_000_000 && ns(&line["ts"]) < 15_800_000_000;
    let cases: [(&[&str], usize); 7] = [
        (&["--pid", "479"], kept(&|line| line["pid"] == 479)),
        (&["--pid", "1"], 0),
        (&["--thread", "505"], kept(&|line| line["tid"] == 505)),
        (
            &["-e", "cudaMalloc", "-e", "cudaFree"],
            kept(&|l| l["name"] == "cudaMalloc" || l["name"] == "cudaFree"),
        ),
        (&["--kernel-name", "layer_norm"], kept(&has_kernel)),
        (&["--min-duration", "1ms"], kept(&lasts)),
        (&["--from", "15.7", "--to", "15800ms"], kept(&during)),
    ];
    for (words, expected) in cases {
        let report = json_of(&[&["report", "--json", "torch_train.jsonl.zst"], words].concat());
        assert_eq!(report["summary"]["calls"], expected, "{words:?}");
        let filter = &report["filter"];
        let others = lines.len() - lines.iter().filter(is_call).count();
        let removed = filter["removed"].as_u64().unwrap() as usize;
        assert_eq!(filter["events"], lines.len(), "{words:?}");
        assert!((lines.len() - expected - others..=lines.len() - expected).contains(&removed), "{words:?}");
    }
}

#[test]
fn every_view_says_what_a_filter_removed() {
    let said = "filter: -e cudaMalloc; 1183 of 1191 events removed";
    for words in [
        &["report"][..],
        &["report", "--html", "-"],
        &["timeline", "--width", "100"],
        &["convert", "--to", "chrome", "-o", "/dev/null"],
        &["diff", "demo.jsonl.zst"],
    ] {
        let output = gpuprobe(&[words, &["demo.jsonl.zst", "-e", "cudaMalloc"]].concat());
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && all.contains(said), "{words:?}: {all}");
    }
    let folded =
        stdout_of(&["convert", "demo.jsonl.zst", "--to", "folded", "-e", "cudaMalloc", "--until", "2"]);
    assert!(!folded.is_empty() && folded.lines().all(|line| line.contains(";cudaMalloc ")), "{folded}");
}

#[test]
fn wrong_filters_are_refused_with_one_line() {
    let output = gpuprobe(&["report", "demo.jsonl.zst", "--from", "2", "--to", "1"]);
    let stderr = text(&output.stderr);
    assert!(!output.status.success() && stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.contains("--from"), "{stderr}");
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    for trace in TRACES {
        let shown = stdout_of(&["diff", trace, trace, "--times", "--fail-above", "0%"]);
        assert!(shown.ends_with("no differences\n"), "{trace}: {shown}");
        assert!(shown.lines().count() == 1 || trace == "sample.jsonl", "{trace}: {shown}");
        let report = json_of(&["diff", trace, trace, "--times", "--json"]);
        assert_eq!(report["differences"], Value::Array(Vec::new()), "{trace}");
    }
}

#[test]
fn a_known_difference_is_the_only_one() {
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("changed.jsonl");
    // one launch less: the runtime's call and the driver's call inside it
    let mut lines = lines_of("demo.jsonl.zst");
    let driver =
        lines.iter().position(|l| l.contains("\"cuLaunchKernel\"") && l.contains("matmul_tile")).unwrap();
    let parent: Value = serde_json::from_str(&lines[driver]).unwrap();
    let id = format!("{{\"event_id\":{},", parent["parent"]);
    let runtime = lines.iter().position(|line| line.starts_with(&id)).unwrap();
    lines.remove(runtime.max(driver));
    lines.remove(runtime.min(driver));
    std::fs::write(&changed, lines.join("\n") + "\n").unwrap();
    let changed = changed.to_str().unwrap();
    let report = json_of(&["diff", "demo.jsonl.zst", changed, "--json"]);
    let found: Vec<_> = report["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| format!("{} {} {} {}", d["figure"], d["name"], d["before"], d["after"]).replace('"', ""))
        .collect();
    let expected =
        ["calls cuLaunchKernel 320 319", "calls cudaLaunchKernel 320 319", "launches matmul_tile 220 219"];
    assert_eq!(found, expected);
    // the largest of these changes is 1 of 220
    let status =
        |limit: &str| gpuprobe(&["diff", "demo.jsonl.zst", changed, "--fail-above", limit]).status.code();
    assert_eq!(
        (status("0%"), status("0.4%"), status("0.5%"), status("10%")),
        (Some(1), Some(1), Some(0), Some(0))
    );
    assert_eq!(gpuprobe(&["diff", "demo.jsonl.zst", changed]).status.code(), Some(0));
}

#[test]
fn a_trace_that_cannot_be_read_is_not_a_change() {
    for words in [&["none.jsonl", "demo.jsonl.zst"][..], &["demo.jsonl.zst", "none.jsonl"], &["-", "-"]] {
        let output = gpuprobe(&[&["diff", "--fail-above", "10%"], words].concat());
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    }
}

#[test]
fn a_filter_that_matches_no_call_is_not_taken_for_equality() {
    let output =
        gpuprobe(&["diff", "demo.jsonl.zst", "demo.jsonl.zst", "-e", "nosuch", "--fail-above", "10%"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""));
    let expected = "gpuprobe: the filter matches no call of either trace: there is nothing to compare\n";
    assert!(text(&output.stderr).ends_with(expected), "{}", text(&output.stderr));
}
