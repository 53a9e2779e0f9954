//! Commands that write a file made from a trace leave nothing behind if the disk is full. A limit of file sizes stands
//! in for a full disk: it needs no root.
#![allow(clippy::unwrap_used, reason = "tests panic on errors")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs gpuprobe with files of at most 4 KiB. Returns whether it succeeded, and its stderr.
fn limited(folder: &Path, words: &str) -> (bool, String) {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/demo.jsonl.zst");
    let gpuprobe = env!("CARGO_BIN_EXE_gpuprobe");
    let script =
        format!("trap '' XFSZ; ulimit -f 8; {gpuprobe} {words}").replace("TRACE", trace.to_str().unwrap());
    let output = Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn no_file_is_left_and_an_earlier_one_stays() {
    for words in [
        "convert TRACE --to chrome -o out",
        "convert TRACE --to perfetto -o out",
        "convert TRACE --to parquet -o out",
        "convert TRACE --to chrome -o link",
        "report TRACE --html out",
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("out", folder.path().join("link")).unwrap();
        let entries = || fs::read_dir(folder.path()).unwrap().count();
        let (succeeded, stderr) = limited(folder.path(), words);
        assert!(!succeeded && stderr.contains("cannot write "), "{words}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{words}: {stderr}");
        assert_eq!(entries(), 1, "{words}");
        fs::write(folder.path().join("out"), "before").unwrap();
        assert!(!limited(folder.path(), words).0);
        assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap(), "before", "{words}");
        assert_eq!(entries(), 2, "{words}");
    }
}
