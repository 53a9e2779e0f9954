//! Where a recording goes, and how it stays readable whatever happens.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use gpuprobe_event::Event;
use gpuprobe_event::trace::{End, Meta, Phases, Writer};

use crate::notes::note;

/// A trace being written.
#[derive(Debug)]
pub(crate) struct TraceFile {
    path: PathBuf,
    /// `None` once the file could not be written any further.
    writer: Option<Writer<BufWriter<File>>>,
    failure: Option<io::Error>,
}

impl TraceFile {
    /// Begins a trace; with no path given, under `traces/`, with `trace_latest.jsonl` pointing at it.
    pub(crate) fn create(path: Option<&Path>, meta: &Meta) -> Result<Self> {
        let (path, latest) = match path {
            Some(path) => (path.to_owned(), None),
            None => default_path()?,
        };
        let cannot = || format!("cannot write the trace {}: give another place with -o", path.display());
        let file = File::create(&path).with_context(cannot)?;
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 18, file), Phases::Together, meta)
            .with_context(cannot)?;
        writer.flush().with_context(cannot)?;
        if let Some(latest) = latest {
            point(&latest, &path).with_context(cannot)?;
        }
        Ok(Self { path, writer: Some(writer), failure: None })
    }

    /// Writes an event. After a failure nothing more is written, and [`TraceFile::finish`] tells.
    pub(crate) fn event(&mut self, event: &Event) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = writer.event(event) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.writer = None;
        self.failure = Some(error);
        // what is left of a line that was cut is taken away, so that the file ends with a whole one
        if let Err(error) = cut_to_last_line(&self.path) {
            note!("gpuprobe: cannot mend {}: {error}", self.path.display());
        }
    }

    /// Ends the trace.
    pub(crate) fn finish(mut self, end: &End) -> Result<PathBuf> {
        if let Some(writer) = self.writer.take()
            && let Err(error) = writer.finish(end)
        {
            self.fail(error);
        }
        match self.failure {
            None => Ok(self.path),
            Some(error) => Err(error).with_context(|| {
                format!("the trace {} is incomplete, it is readable to where it stops", self.path.display())
            }),
        }
    }
}

fn default_path() -> Result<(PathBuf, Option<PathBuf>)> {
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
    Ok((name, Some(folder.join("trace_latest.jsonl"))))
}

/// Makes a link point at a file beside it, replacing the old one at once.
fn point(link: &Path, file: &Path) -> io::Result<()> {
    let name = file.file_name().unwrap_or(file.as_os_str());
    let fresh = link.with_extension(format!("new{}", std::process::id()));
    symlink(name, &fresh)?;
    fs::rename(&fresh, link)
}

fn cut_to_last_line(path: &Path) -> io::Result<()> {
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
    fn a_full_disk_is_told_and_the_file_stays_readable() {
        let mut trace = TraceFile::create(None.or(Some(Path::new("/dev/full"))), &Meta::default());
        assert!(
            trace.as_mut().is_err(),
            "the meta line is written at once, so that this is seen before the command runs"
        );
    }

    #[test]
    fn the_link_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (link, a, b) = (folder.path().join("l"), folder.path().join("a"), folder.path().join("b"));
        point(&link, &a).unwrap();
        point(&link, &b).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("b"));
    }
}
