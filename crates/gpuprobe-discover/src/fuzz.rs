//! Access for the fuzz targets to parsers that are private to this crate.

use crate::gpu::LoggedXid;
use crate::process::{code_ranges, executable_files};

/// The parsed text of /proc/PID/maps.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Maps {
    /// Start and end of each executable range.
    pub ranges: Vec<(u64, u64)>,
    /// The first range of each executable file, written as in /proc/PID/map_files.
    pub files: Vec<String>,
}

/// Parses the text of /proc/PID/maps.
pub fn maps(text: &[u8]) -> Maps {
    Maps {
        ranges: code_ranges(text).map(|range| (range.start, range.end)).collect(),
        files: executable_files(text).into_iter().map(|mapping| mapping.range).collect(),
    }
}

/// Parses a record of the kernel log.
pub fn logged_xid(record: &[u8]) -> Option<LoggedXid> {
    LoggedXid::parse(record)
}

/// Reads a Python process whose memory was damaged: the first byte selects the version, the others what is changed.
/// Returns the number of frames and the longest text that were found.
#[cfg(fuzzing)]
pub fn python(input: &[u8]) -> (usize, usize) {
    crate::python::damaged_process(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_files_are_returned() {
        let text =
            b"10-20 r-xp 0 fe:00 7 /lib/a.so\n20-30 r-xp 0 00:00 0 [vdso]\n30-40 r--p 0 fe:00 7 /lib/a.so\n";
        assert_eq!(
            maps(text),
            Maps { ranges: vec![(0x10, 0x20), (0x20, 0x30)], files: vec!["10-20".to_owned()] }
        );
    }
}
