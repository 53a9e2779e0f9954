//! Names of trace files, and their last lines.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::output_file::Folder;

/// Where traces go that have no name.
pub(super) const FOLDER: &str = "traces";
/// The link to the last of them.
pub(super) const LATEST: &str = "trace_latest.jsonl";

/// A name that is not taken.
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

/// Takes away what is left of a line that was cut, so that a file ends with a whole one.
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

/// Where a segment after the first goes: beside it, with its number before the endings.
pub(crate) fn segment_path(first: &Path, number: u32) -> PathBuf {
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
    fn a_cut_line_is_taken_away() {
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
    fn segments_are_numbered_before_the_endings() {
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
