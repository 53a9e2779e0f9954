//! The text of /proc/PID/maps: which files a process has mapped as code. Does not open anything.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::file::FileId;

/// What the kernel writes behind the name of a file that no folder holds any more.
const DELETED: &[u8] = b" (deleted)";

/// A file, by what the kernel says of it. The device number is that of the mount's file system, which is not
/// always what stat gives; with the name it still tells files apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    pub(crate) deleted: bool,
    pub(crate) dev: Vec<u8>,
    pub(crate) inode: u64,
}

impl MappedFile {
    /// What the kernel shows, as an identity. It need not be what stat gives: see above.
    pub(crate) fn id(&self) -> Option<FileId> {
        let (major, minor) = self.device()?;
        Some(FileId { dev: nix::sys::stat::makedev(major.into(), minor.into()), inode: self.inode })
    }

    /// Major and minor number of the device, which are written `fe:00`.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        let (major, minor) = std::str::from_utf8(&self.dev).ok()?.split_once(':')?;
        Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mapping {
    /// START-END, the name below map_files.
    pub(crate) range: String,
    pub(crate) file: MappedFile,
}

/// The executable mappings of files, the first of each file. Lines that make no sense are passed over.
pub(crate) fn executable_files(text: &[u8]) -> Vec<Mapping> {
    let mut seen = HashSet::new();
    let mappings = text.split(|&b| b == b'\n').filter_map(mapping);
    mappings.filter(|mapping| seen.insert(mapping.file.clone())).collect()
}

/// The mapping of a file that an address lies in, and the offset in the file that it stands for.
pub(crate) fn mapping_of(text: &[u8], address: u64) -> Option<(Mapping, u64)> {
    text.split(|&b| b == b'\n').find_map(|line| {
        let found = mapping(line)?;
        let (start, end) = found.range.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let within = address.checked_sub(number(start)?)?;
        if address >= number(end)? {
            return None;
        }
        let offset = line.split(|&b| b == b' ').filter(|word| !word.is_empty()).nth(2)?;
        let offset = number(std::str::from_utf8(offset).ok()?)?.checked_add(within)?;
        Some((found, offset))
    })
}

fn mapping(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = word(line)?;
    let (permissions, rest) = word(rest)?;
    let (_offset, rest) = word(rest)?;
    let (dev, rest) = word(rest)?;
    let (inode, rest) = word(rest)?;
    let name = rest.trim_ascii_start();
    if permissions.get(2) != Some(&b'x') || name.first() != Some(&b'/') {
        return None;
    }
    let is_range = range.iter().all(|b| b.is_ascii_hexdigit() || *b == b'-');
    let range = std::str::from_utf8(range).ok().filter(|_| is_range)?.to_owned();
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    let deleted = name.ends_with(DELETED);
    let path = name_of(name);
    Some(Mapping { range, file: MappedFile { path, deleted, dev: dev.to_owned(), inode } })
}

fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|&b| b == b' ')?;
    Some(text.split_at(end))
}

/// A name as the kernel shows it in /proc: without the mark of deletion, with `\012` as the byte it stands for.
pub(crate) fn name_of(shown: &[u8]) -> PathBuf {
    let mut rest = shown.strip_suffix(DELETED).unwrap_or(shown);
    let mut name = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        let octal = rest.get(1..4).filter(|_| first == b'\\').and_then(byte_of_octal);
        name.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &rest[4..] } else { after };
    }
    PathBuf::from(OsString::from_vec(name))
}

fn byte_of_octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|&digit| digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
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
        let found = executable_files(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].range, "7f0000001000-7f0000002000");
        assert_eq!(found[0].file.inode, 77);
        assert!(!found[0].file.deleted);
        assert_eq!(found[1].file.path, Path::new("/tmp/with space"));
        assert!(found[1].file.deleted);
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(name_of(b"/a\\040b\\012c"), Path::new("/a b\nc"));
        assert_eq!(name_of(b"/a\\09\\999\\"), Path::new("/a\\09\\999\\"));
    }

    #[test]
    fn this_process_has_mapped_files() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(!executable_files(&text).is_empty());
    }
}
