//! The code of a file, read in chunks, at most so many for each file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::access::RegularFile;

/// Bytes of one chunk. Chunks overlap, so that an instruction can begin anywhere in one.
const CHUNK: u64 = 64 << 10;
const OVERLAP: u64 = 4096;
/// libcudart has about ten. A program that contains the runtime has it in one place.
const MOST_CHUNKS: usize = 64;

/// How many instructions may still be decoded for a file. The functions of libcudart have about 60,000.
#[derive(Debug)]
pub(super) struct Budget(usize);

impl Budget {
    pub(super) const fn new() -> Self {
        Self(1 << 20)
    }

    /// Takes one instruction; false if none is left.
    pub(super) fn take(&mut self) -> bool {
        let is_left = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        is_left
    }
}

#[derive(Debug)]
pub(super) struct CodeChunks<'f> {
    file: &'f RegularFile,
    chunks: HashMap<u64, Vec<u8>>,
}

impl<'f> CodeChunks<'f> {
    /// How many bytes can be decoded of what [`CodeChunks::at`] returns, unless the file ends before.
    pub(super) const STEP: usize = OVERLAP as usize - 16;

    pub(super) fn new(file: &'f RegularFile) -> Self {
        Self { file, chunks: HashMap::new() }
    }

    /// The code from an offset on; `None` if there is none, or too much was read already.
    pub(super) fn at(&mut self, offset: u64) -> Option<&[u8]> {
        let (number, within) = (offset / CHUNK, offset % CHUNK);
        let is_full = self.chunks.len() >= MOST_CHUNKS;
        let chunk = match self.chunks.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(new) => {
                let start = number * CHUNK;
                new.insert(self.file.read_some(start, CHUNK + OVERLAP, "code").unwrap_or_default())
            }
        };
        chunk.get(within as usize..).filter(|code| !code.is_empty())
    }
}
