//! Tells a code object from a later one at the same address. Code objects are freed, and programs that compile code
//! while they run often get the next one at the same address, with the same names and the same first line, but other
//! lines: so the beginning of the line table is part of it. Since 3.12 each has a number of its own; before, the
//! beginning of the name of the file is part of it.
//!
//! The BPF programs make the same number when they walk the frames (python_frames.bpf.h), before the code object can
//! be freed.

use super::object::Structure;
use super::offsets::{BYTES_HEADER, BYTES_SIZE, CodeOffsets, OLD_TEXT};
use crate::process::Memory;

/// Each word is mixed in by a multiplication with this number.
pub const FINGERPRINT_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// How many words at the beginning of the line table count, and of the name of the file.
pub const FINGERPRINT_TABLE_WORDS: usize = 3;
pub const FINGERPRINT_FILE_WORDS: usize = 6;
/// A bit in the state of a text: it has only ASCII characters, one byte each.
const ASCII: u64 = 1 << 6;

/// The fingerprint of the code object that begins with these bytes. Never 0.
pub(super) fn fingerprint(memory: &dyn Memory, code: &Structure, offsets: &CodeOffsets) -> u64 {
    let table = code.word(offsets.line_table).unwrap_or_default();
    let words = [offsets.file, offsets.name].map(|at| code.word(at).unwrap_or_default());
    let first_line = code.int(offsets.first_line).unwrap_or_default();
    let head = words.into_iter().chain([table, u64::from(first_line.cast_unsigned())]);
    let sum = head.chain(table_words(memory, table)).fold(0, mixed);
    let own = match offsets.version {
        Some(at) => u64::from(code.int(at).unwrap_or_default().cast_unsigned()),
        None => file_words(memory, words[0]).fold(0, mixed),
    };
    mixed(sum, own) | 1
}

fn mixed(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(FINGERPRINT_FACTOR)
}

/// The size of a line table and its first words.
fn table_words(memory: &dyn Memory, table: u64) -> impl Iterator<Item = u64> + use<> {
    let size = field(memory, table, BYTES_SIZE);
    let words: [u64; FINGERPRINT_TABLE_WORDS] = first_words(memory, table, BYTES_HEADER, size);
    std::iter::once(size).chain(words)
}

/// The length of the name of a file and its first words, if it is in ASCII.
fn file_words(memory: &dyn Memory, file: u64) -> impl Iterator<Item = u64> + use<> {
    let length = field(memory, file, OLD_TEXT.length.into());
    let is_ascii = field(memory, file, OLD_TEXT.state.into()) & ASCII != 0;
    let size = if is_ascii { length } else { 0 };
    let words: [u64; FINGERPRINT_FILE_WORDS] = first_words(memory, file, OLD_TEXT.ascii_header.into(), size);
    std::iter::once(length).chain(words)
}

/// A word of an object; 0 if it cannot be read.
fn field(memory: &dyn Memory, object: u64, at: u64) -> u64 {
    object.checked_add(at).and_then(|at| memory.word(at)).unwrap_or_default()
}

/// The first words of what follows the header of an object, which has so many bytes, filled up with zeros.
fn first_words<const WORDS: usize>(memory: &dyn Memory, object: u64, header: u64, size: u64) -> [u64; WORDS] {
    let length = size.min(8 * WORDS as u64) as usize;
    let bytes = object.checked_add(header).and_then(|at| memory.bytes(at, length)).unwrap_or_default();
    let mut words = [0; WORDS];
    for (at, byte) in bytes.into_iter().enumerate() {
        words[at / 8] |= u64::from(byte) << (8 * (at % 8));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::image::{Image, TestCode};

    fn of(image: &Image, address: u64) -> u64 {
        let code = Structure::read(image, address, image.offsets.code.size).unwrap();
        fingerprint(image, &code, &image.offsets.code)
    }

    #[test]
    fn other_names_lines_and_tables_have_other_fingerprints() {
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            let address = image.code(&TestCode::default());
            let offsets = image.offsets.code;
            let mut seen = vec![of(&image, address)];
            assert_eq!(of(&image, address), seen[0]);
            image.put(address + u64::from(offsets.first_line), &8i32.to_le_bytes());
            seen.push(of(&image, address));
            let name = image.text_object("another");
            image.put_word(address + u64::from(offsets.name), name);
            seen.push(of(&image, address));
            let table = image.bytes_object(&[7; 20]);
            image.put_word(address + u64::from(offsets.line_table), table);
            seen.push(of(&image, address));
            // at the same address, as if it had been freed
            image.put(table + 32 + 19, &[8]);
            seen.push(of(&image, address));
            image.put_word(table + 16, 19);
            seen.push(of(&image, address));
            // what follows the table does not count, and neither does its hash
            image.put(table + 32 + 19, &[9]);
            image.put_word(table + 24, 5);
            assert_eq!(of(&image, address), seen[5]);
            image.put_word(address + u64::from(offsets.line_table), u64::MAX - 3);
            seen.push(of(&image, address));
            match offsets.version {
                Some(at) => image.put(address + u64::from(at), &[3]),
                // its first character
                None => {
                    let file = image.word(address + u64::from(offsets.file)).unwrap();
                    image.put(file + u64::from(OLD_TEXT.ascii_header), b"_");
                }
            }
            seen.push(of(&image, address));
            let count = seen.len();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), count, "3.{minor}");
        }
    }
}
