//! Names of trace files, and their last lines.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

pub(super) fn default_path() -> Result<(PathBuf, PathBuf)> {
    let folder = Path::new("traces");
    fs::create_dir_all(folder).context("cannot make the folder traces: give another place with -o")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let stamp = gpuprobe_output::timestamp::timestamp(now.as_secs_f64(), 0).replace([' ', ':', '-'], "");
    let mut name = folder.join(format!("trace_{stamp}.jsonl"));
    let mut again = 2;
    while name.exists() {
        name = folder.join(format!("trace_{stamp}_{again}.jsonl"));
        again += 1;
    }
    Ok((name, folder.join("trace_latest.jsonl")))
}

/// Makes a link point at a file beside it, replacing the old one at once.
pub(super) fn point(link: &Path, file: &Path) -> io::Result<()> {
    let name = file.file_name().unwrap_or(file.as_os_str());
    let fresh = link.with_extension(format!("new{}", std::process::id()));
    symlink(name, &fresh)?;
    fs::rename(&fresh, link)
}

pub(super) fn cut_to_last_line(path: &Path) -> io::Result<()> {
    const STEP: u64 = 4096;
    let mut file = File::options().read(true).write(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(STEP);
        let mut block = vec![0; usize::try_from(end - start).unwrap_or(0)];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.iter().rposition(|b| *b == b'\n') {
            file.set_len(start + at as u64 + 1)?;
            break;
        }
        end = start;
    }
    file.flush()
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
    use super::*;

    #[test]
    fn a_cut_line_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        for (before, after) in [("a\nb\nc", "a\nb\n"), ("a\n", "a\n"), ("", ""), ("abc", "abc")] {
            fs::write(&path, before).unwrap();
            cut_to_last_line(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), after);
        }
        let long = format!("a\n{}", "x".repeat(10_000));
        fs::write(&path, long).unwrap();
        cut_to_last_line(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\n");
    }

    #[test]
    fn the_link_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (link, a, b) = (folder.path().join("l"), folder.path().join("a"), folder.path().join("b"));
        point(&link, &a).unwrap();
        point(&link, &b).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("b"));
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
