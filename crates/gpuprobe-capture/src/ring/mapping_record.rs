//! Parses the records of a perf ring that reports mappings. Pure: bytes in, mappings out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use gpuprobe_discover::without_deleted_mark;
use gpuprobe_event::Tgid;

/// A process mapped an executable file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub tgid: Tgid,
    /// Device number, as major and minor.
    pub device: (u32, u32),
    pub inode: u64,
    /// Distinguishes files that had the same inode number one after the other.
    pub generation: u64,
    /// The path, as the process sees it. The file may have been removed after the process opened it.
    pub path: PathBuf,
    /// On the monotonic clock.
    pub at_ns: u64,
}

const MMAP2: u32 = 10;
const LOST: u32 = 2;
const HEADER: usize = 8;

/// Iterates over records.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    rest: &'a [u8],
    lost: u64,
}

impl<'a> Records<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, lost: 0 }
    }

    /// How many records the ring had no room for, up to the current position.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The next record: its type and body.
    fn record(&mut self) -> Option<(u32, &'a [u8])> {
        let kind = u32_at(self.rest, 0)?;
        let size = usize::from(u16::from_ne_bytes(*self.rest.get(6..)?.first_chunk()?));
        // a record shorter than its header would never end the iteration
        let body = self.rest.get(HEADER..size)?;
        self.rest = &self.rest[size..];
        Some((kind, body))
    }
}

impl Iterator for Records<'_> {
    type Item = Mapped;

    fn next(&mut self) -> Option<Mapped> {
        loop {
            match self.record()? {
                (MMAP2, body) => {
                    if let Some(mapped) = mapping(body) {
                        return Some(mapped);
                    }
                }
                (LOST, body) => self.lost += u64_at(body, 8).unwrap_or(1),
                _ => {}
            }
        }
    }
}

/// `pid tid addr len pgoff maj min ino generation prot flags name time`. Memory without a file is ignored.
fn mapping(body: &[u8]) -> Option<Mapped> {
    let name = body.get(64..)?;
    let name = &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())];
    let inode = u64_at(body, 40)?;
    (inode != 0 && name.starts_with(b"/")).then_some(())?;
    Some(Mapped {
        tgid: Tgid(u32_at(body, 0)?),
        device: (u32_at(body, 32)?, u32_at(body, 36)?),
        inode,
        generation: u64_at(body, 48)?,
        path: PathBuf::from(OsStr::from_bytes(without_deleted_mark(name))),
        at_ns: u64_at(body, body.len().checked_sub(8)?)?,
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(HEADER + body.len()).unwrap();
        [&kind.to_ne_bytes()[..], &[0, 0], &size.to_ne_bytes(), body].concat()
    }

    const AT_NS: u64 = 77_000_000_001;

    fn mmap2(tgid: u32, inode: u64, name: &str) -> Vec<u8> {
        let mut body = vec![0u8; 64];
        body[0..4].copy_from_slice(&tgid.to_ne_bytes());
        body[32..36].copy_from_slice(&8u32.to_ne_bytes());
        body[40..48].copy_from_slice(&inode.to_ne_bytes());
        body[48..56].copy_from_slice(&3u64.to_ne_bytes());
        body.extend_from_slice(name.as_bytes());
        body.resize((body.len() + 8) / 8 * 8, 0);
        body.extend_from_slice(&AT_NS.to_ne_bytes());
        record(MMAP2, &body)
    }

    #[test]
    fn files_are_reported_and_anonymous_memory_is_not() {
        let bytes =
            [mmap2(7, 99, "/usr/lib/libcuda.so.1"), mmap2(7, 0, "//anon"), mmap2(8, 5, "[vdso]")].concat();
        let found: Vec<_> = Records::new(&bytes).collect();
        let path = PathBuf::from("/usr/lib/libcuda.so.1");
        let expected = Mapped { tgid: Tgid(7), device: (8, 0), inode: 99, generation: 3, path, at_ns: AT_NS };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_library_removed_between_open_and_mmap_keeps_its_name() {
        let bytes = mmap2(7, 99, "/usr/lib/libcuda.so.1 (deleted)");
        let found: Vec<_> = Records::new(&bytes).map(|mapped| mapped.path).collect();
        assert_eq!(found, [PathBuf::from("/usr/lib/libcuda.so.1")]);
    }

    #[test]
    fn losses_are_counted_and_other_records_skipped() {
        let lost = record(LOST, &[0u64.to_ne_bytes(), 5u64.to_ne_bytes()].concat());
        let bytes = [record(3, &[1; 16]), lost, mmap2(1, 2, "/a")].concat();
        let mut records = Records::new(&bytes);
        assert_eq!(records.by_ref().count(), 1);
        assert_eq!(records.lost(), 5);
    }

    #[test]
    fn invalid_bytes_end_the_iteration() {
        for bytes in
            [&[][..], &[1, 2, 3], &record(MMAP2, &[])[..6], &[10, 0, 0, 0, 0, 0, 0, 0, 9, 9], &[0xff; 64]]
        {
            assert_eq!(Records::new(bytes).count(), 0);
        }
        assert_eq!(Records::new(&record(MMAP2, &[1; 20])).count(), 0);
    }
}
