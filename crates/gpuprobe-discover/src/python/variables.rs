//! What the variables of a thread's Python frames are now. A thread that went on has others, even if it is at the same
//! line again.

use std::collections::HashMap;

use super::interpreter::Interpreter;
use super::object::Structure;
use super::offsets::{OBJECT_TYPE, TYPE_NAME};
use crate::process::Memory;

/// The innermost frames whose variables are read, and how many of each.
const FRAMES: usize = 4;
const VARIABLES: u32 = 8;
/// The most frames that are read to find them: shims are frames too.
const READ_LIMIT: usize = 4 * FRAMES;
/// Bits of a pointer that may be a tag.
const TAG: u64 = 7;
/// The header of an object and the value of a number.
const NUMBER_SIZE: u32 = 32;

/// Types of a process, by their addresses: whether they are those of numbers.
#[derive(Debug, Default)]
pub struct NumberTypes(HashMap<u64, bool>);

impl NumberTypes {
    /// The most types that are remembered; beyond this number all are dropped.
    const LIMIT: usize = 1024;

    fn is_number(&mut self, memory: &dyn Memory, address: u64) -> bool {
        if self.0.len() >= Self::LIMIT {
            self.0.clear();
        }
        let read = || {
            let name = address.checked_add(TYPE_NAME).and_then(|at| memory.word(at))?;
            Some(memory.begins(name, b"int\0") || memory.begins(name, b"float\0"))
        };
        *self.0.entry(address).or_insert_with(|| read().unwrap_or(false))
    }
}

impl Interpreter {
    /// The variables of the innermost frames: the addresses of objects, and the values of numbers. Other objects may be
    /// changed by other threads, so their contents do not matter.
    pub fn variables(&self, memory: &dyn Memory, types: &mut NumberTypes, thread_state: u64) -> Vec<u64> {
        let offsets = &self.offsets.frame;
        let mut variables = Vec::new();
        let mut next = self.innermost(memory, thread_state);
        let mut frames = 0;
        for _ in 0..READ_LIMIT {
            let Some(frame) = next.filter(|frame| *frame != 0 && frames < FRAMES) else { break };
            let size = offsets.size.max(offsets.locals + 8 * VARIABLES);
            // a short frame may be at the end of what is mapped
            let Ok(structure) = Structure::read(memory, frame, size) else { break };
            let is_shim = offsets
                .owner
                .and_then(|at| structure.byte(at))
                .is_some_and(|owner| owner < 8 && offsets.shim_owners >> owner & 1 == 1);
            if !is_shim {
                frames += 1;
                let words = (0..VARIABLES).filter_map(|index| structure.word(offsets.locals + 8 * index));
                words.for_each(|object| add(memory, types, object & !TAG, &mut variables));
            }
            next = structure.word(offsets.previous);
        }
        variables
    }
}

fn add(memory: &dyn Memory, types: &mut NumberTypes, object: u64, variables: &mut Vec<u64>) {
    variables.push(object);
    if object == 0 {
        return;
    }
    let Ok(number) = Structure::read(memory, object, NUMBER_SIZE) else { return };
    let is_number = number.word(OBJECT_TYPE).is_some_and(|address| types.is_number(memory, address));
    if is_number {
        variables.extend([16u64, 24].into_iter().filter_map(|at| number.word(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::image::{Image, TestCode, TestFrame};

    #[test]
    fn another_object_or_another_number_is_seen() {
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            let code = image.code(&TestCode::default());
            let name = image.allocate(b"int\0");
            let number_type = image.allocate(&[0; 64]);
            image.put_word(number_type + TYPE_NAME, name);
            let number = image.allocate(&[0; 32]);
            image.put_word(number + 8, number_type);
            image.put_word(number + 24, 41);
            let list = image.allocate(&[0; 64]);
            let frame = TestFrame::Code { code, instruction: 0, is_entry: true };
            let frame = image.frame(frame, 0);
            let state = image.threads(&[(7, 0x7f00_1111_2640, frame)])[0];
            let locals = frame + u64::from(image.offsets.frame.locals);
            image.put_word(locals, number);
            image.put_word(locals + 8, list);
            let seen =
                |image: &Image| image.interpreter().variables(image, &mut NumberTypes::default(), state);
            let before = seen(&image);
            assert!(before.contains(&41) && before.contains(&list), "3.{minor}: {before:?}");
            image.put_word(list + 24, 7);
            assert_eq!(seen(&image), before, "3.{minor}: the contents of a list");
            image.put_word(number + 24, 42);
            let after = seen(&image);
            assert_ne!(after, before, "3.{minor}: a number");
            image.put_word(locals + 8, list + 16);
            assert_ne!(seen(&image), after, "3.{minor}: another object");
        }
    }
}
