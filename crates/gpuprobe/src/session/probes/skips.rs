//! Files and functions that are not probed. Each file is reported once, and memory is limited: a process can create
//! any number of such files.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasher;

use gpuprobe_analysis::snapshot::SkippedFiles;
use gpuprobe_discover::{Scan, SkipCause, Skipped};
use gpuprobe_output::units::printable;

/// Most files remembered as counted. A host with more of them counts some twice.
const MOST_REMEMBERED: usize = 1 << 16;
/// Most lines kept for reports.
const MOST_LINES: usize = 1000;
/// Most bytes of these lines: the last line of a trace contains all of them, and readers reject lines over a mebibyte.
const MOST_BYTES: usize = 256 << 10;

/// Counts by cause, and a line for each skip.
#[derive(Debug, Default)]
pub(crate) struct Skips {
    counts: [u64; SkipCause::ALL.len()],
    /// Hashes of the counted files that existed at the last scan of the host.
    counted: HashSet<u64>,
    hasher: RandomState,
    lines: BTreeSet<String>,
    lines_bytes: usize,
    /// Lines beyond the limits.
    unlisted: u64,
}

impl Skips {
    /// Counts a skip. Returns a line about it unless it was counted before.
    pub(crate) fn add(&mut self, skipped: &Skipped) -> Option<String> {
        if self.counted.len() >= MOST_REMEMBERED {
            self.counted.clear();
        }
        if !self.counted.insert(self.key(skipped)) {
            return None;
        }
        if let Some(cause) = skipped.cause {
            self.counts[cause as usize] += 1;
        }
        let line = line(skipped);
        if self.lines.len() < MOST_LINES && self.lines_bytes + line.len() <= MOST_BYTES {
            self.lines_bytes += if self.lines.insert(line.clone()) { line.len() } else { 0 };
        } else if !self.lines.contains(&line) {
            self.unlisted += 1;
        }
        Some(line)
    }

    /// Forgets what these scans of the whole host did not find: a file that appears later is a new one, even if it has
    /// the same inode number.
    pub(crate) fn keep_found(&mut self, scans: [&Scan; 2]) {
        let skipped = scans.iter().flat_map(|scan| &scan.skipped).map(|skipped| self.key(skipped));
        // libraries can be skipped after they were found
        let libraries = scans.iter().flat_map(|scan| &scan.libraries).map(|l| self.hasher.hash_one(l.id));
        let found: HashSet<u64> = skipped.chain(libraries).collect();
        self.counted.retain(|key| found.contains(key));
    }

    /// Every cause with its count, including 0: rates need a series that exists before the first increase.
    pub(crate) fn counts(&self) -> Vec<SkippedFiles> {
        let count =
            |cause: &SkipCause| SkippedFiles { reason: cause.as_str(), files: self.counts[*cause as usize] };
        SkipCause::ALL.iter().map(count).collect()
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let more = (self.unlisted > 0).then(|| format!("{} more", self.unlisted));
        self.lines.iter().cloned().chain(more)
    }

    /// Identifies a skip: by file, or by path if the file is unknown; a function by path and reason.
    fn key(&self, skipped: &Skipped) -> u64 {
        match (skipped.file, skipped.cause) {
            (Some(file), _) => self.hasher.hash_one(file),
            (None, Some(cause)) => self.hasher.hash_one((&skipped.path, cause)),
            (None, None) => self.hasher.hash_one((&skipped.path, &skipped.reason)),
        }
    }
}

/// A line that is safe to print: other users choose file names.
pub(crate) fn line(skipped: &Skipped) -> String {
    format!("{}: {}", printable(&skipped.path.to_string_lossy()), skipped.reason)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gpuprobe_discover::FileId;

    use super::*;

    fn file(inode: u64) -> Skipped {
        let id = FileId { dev: 1, inode };
        Skipped::file(Path::new("/x/libcuda.so.1"), Some(id), SkipCause::NotElf, format!("no {inode}"))
    }

    fn count(skips: &Skips, cause: SkipCause) -> u64 {
        skips.counts().iter().find(|c| c.reason == cause.as_str()).unwrap().files
    }

    #[test]
    fn a_file_is_counted_once_while_it_exists() {
        let mut skips = Skips::default();
        assert_eq!(skips.add(&file(1)).as_deref(), Some("/x/libcuda.so.1: no 1"));
        let renamed = Skipped { path: "/y".into(), cause: Some(SkipCause::Damaged), ..file(1) };
        assert_eq!(skips.add(&renamed), None);
        skips.add(&file(2));
        assert_eq!((count(&skips, SkipCause::NotElf), count(&skips, SkipCause::Damaged)), (2, 0));
        skips.keep_found([&Scan { skipped: vec![file(1)], ..Scan::default() }, &Scan::default()]);
        assert_eq!(skips.add(&file(1)), None);
        assert!(skips.add(&file(2)).is_some(), "another file with the inode number of a removed one");
        assert_eq!(count(&skips, SkipCause::NotElf), 3);
        assert_eq!(skips.lines().count(), 2);

        let denied =
            |count| Skipped::file(Path::new("/proc"), None, SkipCause::Unreadable, format!("{count}"));
        (1..4).for_each(|count| drop(skips.add(&denied(count))));
        assert_eq!(count(&skips, SkipCause::Unreadable), 1, "by path, whatever the reason");
    }

    #[test]
    fn functions_are_listed_and_not_counted() {
        let mut skips = Skips::default();
        for name in ["cuInit", "cuInit", "cuMemAlloc_v2"] {
            skips.add(&Skipped::function(Path::new("/x"), format!("{name}: refused")));
        }
        assert_eq!(skips.lines().collect::<Vec<_>>(), ["/x: cuInit: refused", "/x: cuMemAlloc_v2: refused"]);
        assert!(skips.counts().iter().all(|c| c.files == 0));
    }

    #[test]
    fn lines_beyond_the_limit_are_only_counted() {
        let mut skips = Skips::default();
        let all = MOST_REMEMBERED as u64;
        (0..all).for_each(|inode| drop(skips.add(&file(inode))));
        assert_eq!(count(&skips, SkipCause::NotElf), all);
        assert_eq!(skips.lines().count(), MOST_LINES + 1);
        assert_eq!(skips.lines().last(), Some(format!("{} more", all - MOST_LINES as u64)));
    }

    #[test]
    fn very_long_lines_are_only_counted() {
        let mut skips = Skips::default();
        let long = |i| Skipped { path: format!("/{i}/{}", "x".repeat(100_000)).into(), ..file(i) };
        (0..5).for_each(|inode| drop(skips.add(&long(inode))));
        assert_eq!((skips.lines().count(), skips.lines().last()), (3, Some("3 more".to_owned())));
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        let hostile = Skipped { path: "/\x1b[2J\n".into(), ..file(1) };
        assert_eq!(line(&hostile), "/\\u{1b}[2J\\n: no 1");
    }
}
