//! Reads the memory of a process.

use std::path::{Path, PathBuf};

use crate::access;

/// Memory is read in pieces of this size where the end is not known, because what follows may not be mapped.
const PIECE: usize = 4096;

/// Memory that can be read: of a process, or an image of it in a test.
pub trait Memory {
    /// Exactly `size` bytes; `None` if one of them cannot be read.
    fn bytes(&self, address: u64, size: usize) -> Option<Vec<u8>>;

    fn word(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(address, 8)?.try_into().ok()?))
    }

    /// Whether these bytes are at an address.
    fn begins(&self, address: u64, with: &[u8]) -> bool {
        self.bytes(address, with.len()).is_some_and(|bytes| bytes == with)
    }

    /// The bytes up to the first NUL; `None` if there is none within `limit` bytes, rounded up to whole pieces.
    fn text(&self, mut address: u64, limit: usize) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < limit {
            // up to the end of its page
            let rest = PIECE - (address % PIECE as u64) as usize;
            let bytes = self.bytes(address, rest)?;
            if let Some(end) = bytes.iter().position(|b| *b == 0) {
                text.extend_from_slice(bytes.get(..end)?);
                return Some(text);
            }
            address = address.checked_add(bytes.len() as u64)?;
            text.extend(bytes);
        }
        None
    }
}

/// The memory of a process, by its /proc/PID/mem.
#[derive(Clone, Debug)]
pub struct ProcessMemory(PathBuf);

impl ProcessMemory {
    /// `folder` is /proc/PID.
    pub fn new(folder: &Path) -> Self {
        Self(folder.join("mem"))
    }
}

impl Memory for ProcessMemory {
    fn bytes(&self, address: u64, size: usize) -> Option<Vec<u8>> {
        access::memory(&self.0, address, size).ok().filter(|bytes| bytes.len() == size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_read_and_what_is_not_mapped_is_not() {
        let memory = ProcessMemory::new(Path::new("/proc/self"));
        let text = Box::new(*b"a text of this test\0 and more");
        let address = text.as_ptr() as u64;
        assert_eq!(memory.text(address, 100).as_deref(), Some(&b"a text of this test"[..]));
        assert!(memory.begins(address, b"a text") && !memory.begins(address, b"another"));
        assert_eq!(memory.word(address), Some(u64::from_le_bytes(*b"a text o")));
        assert_eq!(memory.word(8), None);
        assert_eq!(memory.text(u64::MAX - 3, 100), None);
    }

    #[test]
    fn a_text_has_a_limit_and_may_cross_pieces() {
        struct Letters;
        impl Memory for Letters {
            fn bytes(&self, address: u64, size: usize) -> Option<Vec<u8>> {
                let end = 3 * PIECE as u64;
                Some((address..address + size as u64).map(|at| if at == end { 0 } else { b'x' }).collect())
            }
        }
        assert_eq!(Letters.text(10, 4 * PIECE).map(|text| text.len()), Some(3 * PIECE - 10));
        assert_eq!(Letters.text(10, PIECE), None);
    }
}
