//! Reads code objects: the names, the file and the lines of a function of a Python program.

use super::fingerprint::fingerprint;
use super::line_table::LineTableFormat;
use super::object::{self, KnownTypes, ObjectError, Structure, Type};
use super::offsets::{CodeOffsets, PythonOffsets};
use crate::process::Memory;

/// The most characters of a name, and of the path of a file.
const NAME_LIMIT: usize = 1 << 10;
const FILE_LIMIT: usize = 4 << 10;
/// The most bytes of a line table. Larger ones belong to generated code; its lines are not resolved.
const TABLE_LIMIT: usize = 1 << 20;

/// The instruction of a frame whose pointer is not in the code of the frame.
pub const UNKNOWN_INSTRUCTION: i32 = i32::MAX;

/// A function, method, lambda, generator, class body or module. Texts are as the process has them, with control
/// characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeObject {
    pub name: String,
    /// With the classes and functions around it: `Trainer.step.<locals>.<lambda>`. Since 3.11.
    pub qualified_name: Option<String>,
    pub file: String,
    pub first_line: i32,
    lines: Lines,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lines {
    format: LineTableFormat,
    /// `None` if it is too large or cannot be read.
    table: Option<Vec<u8>>,
}

impl CodeObject {
    /// The name to show.
    pub fn function(&self) -> &str {
        self.qualified_name.as_deref().unwrap_or(&self.name)
    }

    /// The line of the instruction at this many bytes from the beginning of the code; before it, the first line.
    /// `None` if it has none.
    pub fn line_of(&self, instruction_offset: i32) -> Option<u32> {
        if instruction_offset == UNKNOWN_INSTRUCTION {
            return None;
        }
        let table = self.lines.table.as_deref()?;
        self.lines.format.line_of(table, self.first_line, instruction_offset)
    }

    /// About how many bytes it takes.
    pub(super) fn size(&self) -> usize {
        let texts = self.name.len() + self.qualified_name.as_ref().map_or(0, String::len) + self.file.len();
        size_of::<Self>() + texts + self.lines.table.as_ref().map_or(0, Vec::len)
    }
}

/// The fixed part of a code object.
#[derive(Debug)]
pub(super) struct CodeHeader {
    structure: Structure,
}

impl CodeHeader {
    /// Reads the fixed part of what must be a code object.
    pub(super) fn read(
        memory: &dyn Memory,
        types: &mut KnownTypes,
        offsets: &CodeOffsets,
        address: u64,
    ) -> Result<Self, ObjectError> {
        let structure = Structure::read(memory, address, offsets.size)?;
        types.check(memory, &structure, Type::Code)?;
        if !is_referenced(&structure) {
            return Err(ObjectError::Replaced);
        }
        Ok(Self { structure })
    }

    /// A number that another code object at the same address does not have.
    pub(super) fn fingerprint(&self, memory: &dyn Memory, offsets: &CodeOffsets) -> u64 {
        fingerprint(memory, &self.structure, offsets)
    }

    /// Reads what it refers to.
    pub(super) fn resolve(
        &self,
        memory: &dyn Memory,
        types: &mut KnownTypes,
        offsets: &PythonOffsets,
    ) -> Result<CodeObject, ObjectError> {
        let pointer = |at: u32| self.structure.word(at).ok_or(ObjectError::Unreadable);
        let code = &offsets.code;
        let mut text = |at, limit| object::text(memory, types, &offsets.text, pointer(at)?, limit);
        let name = text(code.name, NAME_LIMIT)?;
        let file = text(code.file, FILE_LIMIT)?;
        let qualified_name = code.qualified_name.and_then(|at| text(at, NAME_LIMIT).ok());
        let first_line = self.structure.int(code.first_line).ok_or(ObjectError::Unreadable)?;
        let table = object::bytes(memory, types, pointer(code.line_table)?, TABLE_LIMIT).ok();
        let lines = Lines { format: code.line_table_format, table };
        Ok(CodeObject { name, qualified_name, file, first_line, lines })
    }
}

/// Whether an object is in use. The memory of a freed one stays as it was, but for its reference count: that is 0, or
/// the allocator has put an address there. Its texts may be others by then.
fn is_referenced(object: &Structure) -> bool {
    // since 3.14 the upper 16 bits are flags
    object.word(0u32).is_some_and(|word| word as u32 != 0 && (word >> 32) as u16 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::image::{Image, TestCode};
    use crate::testing::Xorshift;

    fn read(image: &Image, address: u64) -> Result<CodeObject, ObjectError> {
        let mut types = KnownTypes::default();
        let header = CodeHeader::read(image, &mut types, &image.offsets.code, address)?;
        header.resolve(image, &mut types, &image.offsets)
    }

    #[test]
    fn the_code_objects_of_every_version_are_read() {
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            let address = image.code(&TestCode {
                name: "größe",
                qualified_name: "Form.größe",
                file: "/a/b.py",
                first_line: 7,
            });
            let code = read(&image, address).unwrap();
            assert_eq!((code.name.as_str(), code.file.as_str(), code.first_line), ("größe", "/a/b.py", 7));
            assert_eq!(code.function(), if minor < 11 { "größe" } else { "Form.größe" });
            // the tables of the images have two bytes per line
            let lines: Vec<_> = (-1..5).map(|offset| code.line_of(offset)).collect();
            assert_eq!(lines, [7, 7, 7, 8, 8, 9].map(Some), "3.{minor}");
            assert_eq!(code.line_of(UNKNOWN_INSTRUCTION), None);
        }
    }

    #[test]
    fn a_freed_code_object_is_not_read() {
        let mut image = Image::new(12);
        let address = image.code(&TestCode::default());
        for (references, is_read) in [
            (2, true),
            (u64::from(u32::MAX), true),
            (0x80 << 48 | 3 << 30, true),
            (0, false),
            (0x7f12_3456_0040, false),
        ] {
            image.put_word(address, references);
            assert_eq!(read(&image, address).is_ok(), is_read, "{references:#x}");
        }
        assert_eq!(read(&image, address).unwrap_err(), ObjectError::Replaced);
    }

    #[test]
    fn names_are_resolved_without_a_line_table() {
        let mut image = Image::new(12);
        let address = image.code(&TestCode::default());
        let table = image.bytes_object(&[0; 16]);
        image.put_word(table + 16, TABLE_LIMIT as u64 + 1);
        for bad in [table, 0, u64::MAX, address] {
            image.put_word(address + u64::from(image.offsets.code.line_table), bad);
            let code = read(&image, address).unwrap();
            assert_eq!((code.name.as_str(), code.line_of(0)), (TestCode::default().name, None));
        }
    }

    #[test]
    fn what_is_no_code_object_is_refused() {
        let mut image = Image::new(13);
        let text = image.text_object(&"long enough to be read as a code object ".repeat(5));
        assert_eq!(read(&image, text).unwrap_err(), ObjectError::WrongType("code"));
        assert_eq!(read(&image, 0).unwrap_err(), ObjectError::Unreadable);
        let address = image.code(&TestCode::default());
        image.put_word(address + u64::from(image.offsets.code.name), address);
        assert_eq!(read(&image, address).unwrap_err(), ObjectError::WrongType("str"));
        image.put_word(address + u64::from(image.offsets.code.name), 0);
        assert_eq!(read(&image, address).unwrap_err(), ObjectError::Unreadable);
    }

    #[test]
    fn no_memory_makes_the_reader_fail() {
        let mut random = Xorshift(5);
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            let address = image.code(&TestCode::default());
            for _ in 0..2000 {
                let mut damaged = image.clone();
                damaged.damage(|| random.next());
                if let Ok(code) = read(&damaged, address) {
                    assert!(
                        code.name.chars().count() <= NAME_LIMIT && code.file.chars().count() <= FILE_LIMIT
                    );
                    code.line_of(random.next() as i32 % 100);
                }
            }
        }
    }
}
