//! Tells a code object from a later one at the same address. Code objects are freed, and programs that compile code
//! while they run often get the next one at the same address, with the same names and the same first line, but other
//! lines: so the beginning of the line table is part of it.
//!
//! The BPF programs make the same number when they walk the frames (python_frames.bpf.h), before the code object can
//! be freed.

use super::object::Structure;
use super::offsets::{BYTES_HEADER, BYTES_SIZE, CodeOffsets};
use crate::process::Memory;

/// Each word is mixed in by a multiplication with this number.
pub const FINGERPRINT_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// How many words at the beginning of the line table count.
pub const FINGERPRINT_TABLE_WORDS: usize = 3;

/// The fingerprint of the code object that begins with these bytes. Never 0.
pub(super) fn fingerprint(memory: &dyn Memory, code: &Structure, offsets: &CodeOffsets) -> u64 {
    let table = code.word(offsets.line_table).unwrap_or_default();
    let words = [offsets.file, offsets.name].map(|at| code.word(at).unwrap_or_default());
    let first_line = code.int(offsets.first_line).unwrap_or_default();
    let head = words.into_iter().chain([table, u64::from(first_line.cast_unsigned())]);
    head.chain(table_words(memory, table)).fold(0, mixed) | 1
}

fn mixed(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(FINGERPRINT_FACTOR)
}

/// The size of a line table and its first words, filled up with zeros.
fn table_words(memory: &dyn Memory, table: u64) -> [u64; 1 + FINGERPRINT_TABLE_WORDS] {
    let mut words = [0; 1 + FINGERPRINT_TABLE_WORDS];
    let Some(size) = table.checked_add(BYTES_SIZE).and_then(|at| memory.word(at)) else { return words };
    words[0] = size;
    let length = size.min(8 * FINGERPRINT_TABLE_WORDS as u64) as usize;
    let bytes = table.checked_add(BYTES_HEADER).and_then(|at| memory.bytes(at, length)).unwrap_or_default();
    for (at, byte) in bytes.into_iter().enumerate() {
        words[1 + at / 8] |= u64::from(byte) << (8 * (at % 8));
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
            let count = seen.len();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), count, "3.{minor}");
        }
    }
}
