//! Reads `str` and `bytes` objects of a process. Any address may be given: what is there is checked, and what is read
//! has a limit.

use super::offsets::{BYTES_HEADER, BYTES_SIZE, OBJECT_TYPE, TYPE_NAME, TextOffsets};
use crate::process::Memory;

/// Why an object could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("its memory cannot be read")]
    Unreadable,
    #[error("it is not a {0} object")]
    WrongType(&'static str),
    #[error("it is a string of no known layout")]
    UnknownLayout,
    #[error("it was freed, and another one is at its address")]
    Replaced,
    #[error("it has {size} bytes, more than the limit of {limit}")]
    TooLarge { size: u64, limit: usize },
}

/// A type that objects are checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Code,
    Text,
    Bytes,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Text => "str",
            Self::Bytes => "bytes",
        }
    }
}

/// The addresses of types that were found by name, so that each name is compared once.
#[derive(Debug, Default)]
pub(super) struct KnownTypes([Option<u64>; 3]);

impl KnownTypes {
    /// Whether the object that begins with these bytes is of a type.
    pub(super) fn check(
        &mut self,
        memory: &dyn Memory,
        object: &Structure,
        wanted: Type,
    ) -> Result<(), ObjectError> {
        let address = object.word(OBJECT_TYPE).ok_or(ObjectError::Unreadable)?;
        let Some(known) = self.0.get_mut(wanted as usize).filter(|known| **known != Some(address)) else {
            return Ok(());
        };
        let name =
            address.checked_add(TYPE_NAME).and_then(|at| memory.word(at)).ok_or(ObjectError::Unreadable)?;
        if !memory.begins(name, format!("{}\0", wanted.name()).as_bytes()) {
            return Err(ObjectError::WrongType(wanted.name()));
        }
        *known = Some(address);
        Ok(())
    }
}

/// The bytes of a structure, whose fields are read by offset.
#[derive(Debug)]
pub(super) struct Structure(Vec<u8>);

impl Structure {
    pub(super) fn read(memory: &dyn Memory, address: u64, size: u32) -> Result<Self, ObjectError> {
        memory.bytes(address, size as usize).map(Self).ok_or(ObjectError::Unreadable)
    }

    pub(super) fn word(&self, at: impl Into<u64>) -> Option<u64> {
        self.field(at.into()).map(u64::from_le_bytes)
    }

    pub(super) fn int(&self, at: u32) -> Option<i32> {
        self.field(at.into()).map(i32::from_le_bytes)
    }

    pub(super) fn byte(&self, at: u32) -> Option<u8> {
        self.field(at.into()).map(|[byte]| byte)
    }

    fn field<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
}

/// A `str`, at most `limit` characters of it. If there are more, the last one is `…`.
pub(super) fn text(
    memory: &dyn Memory,
    types: &mut KnownTypes,
    offsets: &TextOffsets,
    address: u64,
    limit: usize,
) -> Result<String, ObjectError> {
    let header = Structure::read(memory, address, offsets.length.max(offsets.state) + 8)?;
    types.check(memory, &header, Type::Text)?;
    let length = header.word(offsets.length).ok_or(ObjectError::Unreadable)?;
    let state = header.int(offsets.state).ok_or(ObjectError::Unreadable)?;
    let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
    let (header_size, width) = match (kind, is_compact, is_ascii) {
        (1, true, true) => (offsets.ascii_header, 1),
        (1 | 2 | 4, true, false) => (offsets.other_header, kind as usize),
        // characters in a place of their own, as no version writes the names of code
        _ => return Err(ObjectError::UnknownLayout),
    };
    let count = usize::try_from(length).unwrap_or(usize::MAX);
    let size = count.min(limit).saturating_mul(width);
    let characters = address.checked_add(header_size.into()).and_then(|at| memory.bytes(at, size));
    let characters = characters.ok_or(ObjectError::Unreadable)?;
    let decoded = characters.chunks_exact(width).map(|character| {
        let number = character.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        // half of a surrogate pair stands for a byte that is no text
        char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
    });
    let mut text: String = decoded.collect();
    if count > limit {
        text.pop();
        text.push('…');
    }
    Ok(text)
}

/// A `bytes` object of at most `limit` bytes.
pub(super) fn bytes(
    memory: &dyn Memory,
    types: &mut KnownTypes,
    address: u64,
    limit: usize,
) -> Result<Vec<u8>, ObjectError> {
    let header = Structure::read(memory, address, BYTES_HEADER as u32)?;
    types.check(memory, &header, Type::Bytes)?;
    let size = header.word(BYTES_SIZE).ok_or(ObjectError::Unreadable)?;
    let wanted = usize::try_from(size).ok().filter(|size| *size <= limit);
    let wanted = wanted.ok_or(ObjectError::TooLarge { size, limit })?;
    let contents = address.checked_add(BYTES_HEADER).and_then(|at| memory.bytes(at, wanted));
    contents.ok_or(ObjectError::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::image::Image;

    fn read(image: &Image, address: u64, limit: usize) -> Result<String, ObjectError> {
        text(image, &mut KnownTypes::default(), &image.offsets.text, address, limit)
    }

    #[test]
    fn strings_of_every_width_are_decoded() {
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            for sample in ["", "plain", "süß", "имя 名前", "𝜆 x: 🦀"] {
                let address = image.text_object(sample);
                assert_eq!(read(&image, address, 100).as_deref(), Ok(sample), "3.{minor}");
            }
        }
    }

    #[test]
    fn a_long_string_is_cut_and_a_huge_length_reads_no_more() {
        let mut image = Image::new(12);
        let address = image.text_object(&"é".repeat(2000));
        let cut = read(&image, address, 10).unwrap();
        assert_eq!(cut, format!("{}…", "é".repeat(9)));
        for length in [u64::MAX, i64::MAX as u64, 1 << 40] {
            image.put_word(address + 16, length);
            assert_eq!(read(&image, address, 10), Ok(cut.clone()));
            assert_eq!(read(&image, address, 1 << 20), Err(ObjectError::Unreadable), "beyond what is mapped");
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_replaced() {
        let mut image = Image::new(11);
        let address = image.text_object("名x");
        image.put(address + 72, &0xdc80u16.to_le_bytes());
        assert_eq!(read(&image, address, 10).as_deref(), Ok("\u{fffd}x"));
        let wide = image.text_object("🦀x");
        image.put(wide + 72, &u32::MAX.to_le_bytes());
        assert_eq!(read(&image, wide, 10).as_deref(), Ok("\u{fffd}x"));
    }

    #[test]
    fn other_objects_and_other_layouts_are_refused() {
        let mut image = Image::new(13);
        let table = image.bytes_object(b"\x01\x02");
        let name = image.text_object("x");
        assert_eq!(read(&image, table, 10), Err(ObjectError::WrongType("str")));
        let mut types = KnownTypes::default();
        assert_eq!(bytes(&image, &mut types, name, 10), Err(ObjectError::WrongType("bytes")));
        assert_eq!(bytes(&image, &mut types, table, 10), Ok(vec![1, 2]));
        assert_eq!(bytes(&image, &mut types, table, 1), Err(ObjectError::TooLarge { size: 2, limit: 1 }));
        image.put_word(table + 16, u64::MAX);
        assert!(matches!(bytes(&image, &mut types, table, 10), Err(ObjectError::TooLarge { .. })));
        for state in [0u32, 0x60, 0x6c, 0x7c, 0x44] {
            image.put(name + 32, &state.to_le_bytes());
            assert_eq!(read(&image, name, 10), Err(ObjectError::UnknownLayout), "{state:#x}");
        }
        for address in [0, 8, u64::MAX - 4] {
            assert_eq!(read(&image, address, 10), Err(ObjectError::Unreadable));
        }
        image.put_word(name + 8, u64::MAX - 7);
        assert_eq!(read(&image, name, 10), Err(ObjectError::Unreadable), "a type that is nowhere");
    }
}
