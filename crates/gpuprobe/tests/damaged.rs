//! Traces that consist mostly of damaged lines: a small compressed file can expand to gigabytes of them.
#![allow(clippy::unwrap_used, reason = "tests panic on errors")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const META: &str = "{\"type\":\"meta\",\"format\":1}\n";
const LOSS: &str = "{\"type\":\"loss\",\"ts\":1.0,\"phase\":\"i\",\"name\":\"ring_full\",\"count\":3}\n";

/// A compressed file with some lines, followed by a number of identical parts of 64 MiB.
fn packed(path: &Path, beginning: &str, part: u8, parts: usize) {
    let part = zstd::encode_all(vec![part; 64 << 20].as_slice(), 1).unwrap();
    let mut bytes = zstd::encode_all(beginning.as_bytes(), 1).unwrap();
    bytes.extend(part.repeat(parts));
    fs::write(path, bytes).unwrap();
}

fn gpuprobe(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuprobe")).args(words).output().unwrap()
}

#[test]
fn reading_twelve_gigabytes_of_empty_lines_fails_early_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.jsonl.zst");
    packed(&trace, &[META, LOSS].concat(), b'\n', 192);
    assert!(fs::metadata(&trace).unwrap().len() < 4 << 20);
    let trace = trace.to_str().unwrap();
    for words in [
        &["report", trace][..],
        &["timeline", trace],
        &["convert", trace, "--to", "chrome", "-o", "/dev/null"],
    ] {
        let begun = Instant::now();
        let output = gpuprobe(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "{words:?}: {:?}", begun.elapsed());
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("gpuprobe: ")).collect();
        let [error] = errors.as_slice() else { panic!("{stderr}") };
        assert!(error.contains("the trace is damaged: 10001 lines (10001 bytes)"), "{error}");
    }
    // the events before the damage are reported
    let summary = String::from_utf8(gpuprobe(&["report", trace]).stdout).unwrap();
    assert!(summary.contains("ring_full"), "{summary}");
}

#[test]
fn a_few_damaged_lines_are_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.jsonl");
    let end = "{\"type\":\"end\",\"events\":1,\"calls\":0,\"seconds\":1.0,\"lost\":{}}\n";
    fs::write(&trace, [META, "\n\nhalf of a li\n", LOSS, end].concat()).unwrap();
    let output = gpuprobe(&["report", trace.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("skipped 3 damaged lines"), "{stderr}");
}
