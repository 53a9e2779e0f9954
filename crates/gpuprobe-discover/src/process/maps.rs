//! Parses the text of /proc/PID/maps: which files a process has mapped as code. Opens nothing.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

use crate::access::{FileId, path_from_proc, without_deleted_mark};

/// A file as the Linux kernel shows it. The device number is that of the mount's file system, which is not always
/// what stat returns. Together with the path it still identifies the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    pub(crate) deleted: bool,
    pub(crate) dev: Vec<u8>,
    pub(crate) inode: u64,
}

impl MappedFile {
    /// The identity from these numbers. It may differ from what stat returns: see above.
    pub(crate) fn id(&self) -> Option<FileId> {
        let (major, minor) = self.device()?;
        Some(FileId { dev: nix::sys::stat::makedev(major.into(), minor.into()), inode: self.inode })
    }

    /// Major and minor number of the device, written as `fe:00`.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        let (major, minor) = std::str::from_utf8(&self.dev).ok()?.split_once(':')?;
        Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mapping {
    /// START-END, the file name in /proc/PID/map_files.
    pub(crate) range: String,
    pub(crate) file: MappedFile,
}

/// A range of executable memory of a process, of a file or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The offset in the file.
    pub(crate) offset: u64,
    pub(crate) file: Option<Mapping>,
}

/// The executable mappings of files, the first of each file. Invalid lines are skipped.
pub(crate) fn executable_files(text: &[u8]) -> Vec<Mapping> {
    let mut seen = HashSet::new();
    let mappings = code_ranges(text).filter_map(|range| range.file);
    mappings.filter(|mapping| seen.insert(mapping.file.clone())).collect()
}

/// The file mapping that contains an address, and the corresponding offset in the file.
pub(crate) fn mapping_of(text: &[u8], address: u64) -> Option<(Mapping, u64)> {
    let range = code_ranges(text).find(|range| (range.start..range.end).contains(&address))?;
    Some((range.file?, range.offset.checked_add(address - range.start)?))
}

/// The file offset of an address in a process with these maps.
pub fn offset_in_file(maps: &[u8], address: u64) -> Option<u64> {
    mapping_of(maps, address).map(|(_, offset)| offset)
}

/// The mapping of a process with these maps that contains an address.
pub(crate) fn range_of(maps: &[u8], address: u64) -> Option<Range<u64>> {
    let mut ranges = lines(maps).filter_map(|line| {
        let (start, end) = std::str::from_utf8(word(line)?.0).ok()?.split_once('-')?;
        Some(hex(start)?..hex(end)?)
    });
    ranges.find(|range| range.contains(&address))
}

/// All executable ranges, in the order of the text.
pub(crate) fn code_ranges(text: &[u8]) -> impl Iterator<Item = CodeRange> {
    lines(text).filter_map(code_range)
}

/// The lines of a text. A process that imports PyTorch has thousands, and waits while they are read.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (line, after) = rest.split_at(memchr::memchr(b'\n', rest).unwrap_or(rest.len()));
        rest = after.get(1..).unwrap_or_default();
        (!line.is_empty() || !rest.is_empty()).then_some(line)
    })
}

fn code_range(line: &[u8]) -> Option<CodeRange> {
    let (range, rest) = word(line)?;
    let (permissions, rest) = word(rest)?;
    // first, because most ranges are not code
    if permissions.get(2) != Some(&b'x') {
        return None;
    }
    let (offset, rest) = word(rest)?;
    let (dev, rest) = word(rest)?;
    let (inode, rest) = word(rest)?;
    let range = std::str::from_utf8(range).ok()?;
    let (start, end) = range.split_once('-')?;
    let (start, end, offset) = (hex(start)?, hex(end)?, hex(std::str::from_utf8(offset).ok()?)?);
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    let name = rest.trim_ascii_start();
    let file = (name.first() == Some(&b'/')).then(|| Mapping {
        range: range.to_owned(),
        file: MappedFile {
            path: path_from_proc(name),
            deleted: without_deleted_mark(name) != name,
            dev: dev.to_owned(),
            inode,
        },
    });
    Some(CodeRange { start, end, offset, file })
}

/// Only digits: Rust also accepts a sign, and the text becomes part of a path.
fn hex(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits)
}

fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|&b| b == b' ').unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn executable_mappings_of_files_are_taken_once() {
        let text = b"\
7f0000000000-7f0000001000 r--p 00000000 fe:00 77                         /usr/lib/libcuda.so.1
7f0000001000-7f0000002000 r-xp 00001000 fe:00 77                         /usr/lib/libcuda.so.1
7f0000003000-7f0000004000 r-xp 00003000 fe:00 77                         /usr/lib/libcuda.so.1
7f0000005000-7f0000006000 r-xp 00000000 00:2d 78                         /tmp/with space (deleted)
7f0000007000-7f0000008000 rwxp 00000000 00:00 0
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]
garbage
7f0000009000-7f000000a000 r-xp 0 fe:00 notanumber /x
../../etc r-xp 0 fe:00 1 /x
";
        assert_eq!(range_of(text, 0x7f00_0000_7fff), Some(0x7f00_0000_7000..0x7f00_0000_8000));
        assert_eq!(range_of(text, 0x7f00_0000_8000), None);
        let found = executable_files(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].range, "7f0000001000-7f0000002000");
        assert_eq!(found[0].file.inode, 77);
        assert!(!found[0].file.deleted);
        assert_eq!(found[1].file.path, Path::new("/tmp/with space"));
        assert!(found[1].file.deleted);
    }

    #[test]
    fn lines_are_separated_also_without_an_end() {
        let all = |text: &'static [u8]| lines(text).collect::<Vec<_>>();
        assert_eq!(all(b"one\ntwo\n"), [b"one", b"two"]);
        assert_eq!(all(b"one\n\ntwo"), [&b"one"[..], b"", b"two"]);
        assert!(all(b"").is_empty() && all(b"\n").is_empty());
    }

    #[test]
    fn code_without_a_file_is_a_range_too() {
        let text = b"\
10000-12000 r-xp 00003000 fe:00 77                         /usr/lib/libcuda.so.1
20000-21000 rwxp 00000000 00:00 0
30000-31000 rw-p 00000000 00:00 0
40000-41000 r-xp 00000000 00:00 0                          [vdso]
+50000-51000 r-xp 00000000 fe:00 77                        /usr/lib/libcuda.so.1
";
        let found: Vec<_> = code_ranges(text).map(|r| (r.start, r.end, r.offset, r.file.is_some())).collect();
        assert_eq!(
            found,
            [(0x10000, 0x12000, 0x3000, true), (0x20000, 0x21000, 0, false), (0x40000, 0x41000, 0, false)]
        );
        assert_eq!(mapping_of(text, 0x11ff0).map(|(_, offset)| offset), Some(0x4ff0));
        assert_eq!(mapping_of(text, 0x12000), None);
    }

    #[test]
    fn this_process_has_mapped_files() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(!executable_files(&text).is_empty());
    }
}
