//! Caches the code objects of one process. Code objects are freed and their addresses are used again, so a fingerprint
//! shows each time whether the cached one is meant.

use std::collections::HashMap;
use std::sync::Arc;

use super::code_object::{CodeHeader, CodeObject};
use super::object::{KnownTypes, ObjectError};
use super::offsets::PythonOffsets;
use crate::process::Memory;

/// The most code objects and bytes of one process that are cached; beyond these numbers all are dropped. A PyTorch
/// program has about 10,000 functions.
const CODE_LIMIT: usize = 16 << 10;
const BYTE_LIMIT: usize = 32 << 20;

/// The code objects of one process.
#[derive(Debug, Default)]
pub struct CodeCache {
    /// By address, with the fingerprint.
    codes: HashMap<u64, (u64, Arc<CodeObject>)>,
    bytes: usize,
    types: KnownTypes,
}

impl CodeCache {
    pub fn new() -> Self {
        Self::default()
    }

    /// The code object at an address, read now or found to be the cached one.
    pub fn resolve(
        &mut self,
        memory: &dyn Memory,
        offsets: &PythonOffsets,
        address: u64,
    ) -> Result<Arc<CodeObject>, ObjectError> {
        let header = CodeHeader::read(memory, &mut self.types, &offsets.code, address)?;
        let fingerprint = header.fingerprint(memory, &offsets.code);
        self.resolve_seen(memory, offsets, address, fingerprint)
    }

    /// The code object that had this fingerprint when its frame was walked. An error if another one is there now.
    pub fn resolve_seen(
        &mut self,
        memory: &dyn Memory,
        offsets: &PythonOffsets,
        address: u64,
        fingerprint: u64,
    ) -> Result<Arc<CodeObject>, ObjectError> {
        if let Some((known, code)) = self.codes.get(&address)
            && *known == fingerprint
        {
            return Ok(Arc::clone(code));
        }
        let before = CodeHeader::read(memory, &mut self.types, &offsets.code, address)?;
        let is_same = |header: &CodeHeader| header.fingerprint(memory, &offsets.code) == fingerprint;
        if !is_same(&before) {
            return Err(ObjectError::Replaced);
        }
        let code = Arc::new(before.resolve(memory, &mut self.types, offsets)?);
        // the process goes on meanwhile
        if !is_same(&CodeHeader::read(memory, &mut self.types, &offsets.code, address)?) {
            return Err(ObjectError::Replaced);
        }
        if self.codes.len() >= CODE_LIMIT || self.bytes + code.size() > BYTE_LIMIT {
            self.codes.clear();
            self.bytes = 0;
        }
        self.bytes += code.size();
        if let Some((_, old)) = self.codes.insert(address, (fingerprint, Arc::clone(&code))) {
            self.bytes = self.bytes.saturating_sub(old.size());
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::python::image::{Image, TestCode};

    /// Counts the reads of an image.
    struct Counted<'i>(&'i Image, Cell<usize>);

    impl Memory for Counted<'_> {
        fn bytes(&self, address: u64, size: usize) -> Option<Vec<u8>> {
            self.1.set(self.1.get() + 1);
            self.0.bytes(address, size)
        }
    }

    #[test]
    fn a_known_code_object_costs_three_reads() {
        let mut image = Image::new(12);
        let address = image.code(&TestCode::default());
        let counted = Counted(&image, Cell::new(0));
        let mut cache = CodeCache::new();
        let first = cache.resolve(&counted, &image.offsets, address).unwrap();
        assert!(counted.1.take() > 5);
        let second = cache.resolve(&counted, &image.offsets, address).unwrap();
        assert_eq!(
            (counted.1.take(), Arc::ptr_eq(&first, &second)),
            (3, true),
            "the header, and the size and beginning of its line table"
        );
    }

    #[test]
    fn a_replaced_code_object_is_read_again() {
        let mut image = Image::new(12);
        let address = image.code(&TestCode::default());
        let mut cache = CodeCache::new();
        assert_eq!(cache.resolve(&image, &image.offsets, address).unwrap().name, "step");
        let name = image.text_object("backward");
        image.put_word(address + u64::from(image.offsets.code.name), name);
        assert_eq!(cache.resolve(&image, &image.offsets, address).unwrap().name, "backward");
        assert_eq!(cache.codes.len(), 1);
        assert_eq!(cache.bytes, cache.codes[&address].1.size(), "the old one does not count");
        image.put_word(address + 8, 0);
        assert_eq!(cache.resolve(&image, &image.offsets, address), Err(ObjectError::Unreadable));
    }

    #[test]
    fn a_code_object_is_only_what_it_was_when_its_frame_was_walked() {
        let mut image = Image::new(12);
        let address = image.code(&TestCode::default());
        let mut cache = CodeCache::new();
        cache.resolve(&image, &image.offsets, address).unwrap();
        let seen = cache.codes[&address].0;
        let first_line = address + u64::from(image.offsets.code.first_line);
        image.put(first_line, &99i32.to_le_bytes());
        let cached = cache.resolve_seen(&image, &image.offsets, address, seen).unwrap();
        assert_eq!(cached.name, "step", "the cached one is still right");
        let fresh = CodeCache::new().resolve_seen(&image, &image.offsets, address, seen);
        assert_eq!(fresh, Err(ObjectError::Replaced));
    }

    /// Resolves this many code objects that share their texts, with a file of this name.
    fn filled(count: usize, file: &str) -> CodeCache {
        let mut image = Image::new(11);
        let mut cache = CodeCache::new();
        let first = image.code(&TestCode { file, ..TestCode::default() });
        let bytes = image.bytes(first, 512).unwrap();
        for _ in 0..count {
            let address = image.allocate(&bytes);
            cache.resolve(&image, &image.offsets, address).unwrap();
            assert!(cache.codes.len() <= CODE_LIMIT && cache.bytes <= BYTE_LIMIT);
        }
        let sum: usize = cache.codes.values().map(|(_, code)| code.size()).sum();
        assert_eq!(cache.bytes, sum);
        cache
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!(filled(CODE_LIMIT + 5, "a.py").codes.len(), 5);
        let large = filled(BYTE_LIMIT / 16_000, &"🦀".repeat(4000));
        assert!(large.codes.len() < 200, "{}", large.codes.len());
    }
}
