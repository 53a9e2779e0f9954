//! Names of trace files and segments, and the removal of partial lines.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::output_file::Folder;

/// The folder of traces without `-o`.
pub(super) const FOLDER: &str = "traces";
/// The link to the last trace.
pub(super) const LATEST: &str = "trace_latest.jsonl";

/// An unused name with the current time.
pub(super) fn default_name(folder: &Folder) -> OsString {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let stamp = gpuprobe_output::timestamp::timestamp(now.as_secs_f64(), 0).replace([' ', ':', '-'], "");
    let mut name = OsString::from(format!("trace_{stamp}.jsonl"));
    let mut again = 2;
    while folder.has(&name) {
        name = format!("trace_{stamp}_{again}.jsonl").into();
        again += 1;
    }
    name
}

/// Removes a partial line at the end of a file.
pub(super) fn cut_to_last_line(file: &File) -> io::Result<()> {
    const STEP: u64 = 4096;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(STEP);
        let mut block = vec![0; usize::try_from(end - start).unwrap_or(0)];
        file.read_exact_at(&mut block, start)?;
        if let Some(at) = block.iter().rposition(|b| *b == b'\n') {
            return file.set_len(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(())
}

/// The path of a segment: next to the first one, with its number before the extensions.
pub(super) fn segment_path(first: &Path, number: u32) -> PathBuf {
    let name = first.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.strip_suffix(".zst").unwrap_or(&name);
    let stem = stem.strip_suffix(".jsonl").unwrap_or(stem);
    first.with_file_name(format!("{stem}.{number}{}", &name[stem.len()..]))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_partial_last_line_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let cut = || cut_to_last_line(&File::options().read(true).write(true).open(&path).unwrap()).unwrap();
        for (before, after) in [("a\nb\nc", "a\nb\n"), ("a\n", "a\n"), ("", ""), ("abc", "abc")] {
            fs::write(&path, before).unwrap();
            cut();
            assert_eq!(fs::read_to_string(&path).unwrap(), after);
        }
        let long = format!("a\n{}", "x".repeat(10_000));
        fs::write(&path, long).unwrap();
        cut();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\n");
    }

    #[test]
    fn segment_numbers_come_before_the_extensions() {
        for (first, second) in [
            ("a/t.jsonl", "a/t.2.jsonl"),
            ("t.jsonl.zst", "t.2.jsonl.zst"),
            ("/x/t", "/x/t.2"),
            ("t.json", "t.json.2"),
        ] {
            assert_eq!(segment_path(Path::new(first), 2), Path::new(second));
        }
    }
}
