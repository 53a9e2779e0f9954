//! An image of the memory of a Python process, for tests and for the fuzz target.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::frame_walk::PythonFrame;
use super::interpreter::Interpreter;
use super::line_table::LineTableFormat;
use super::offsets::{BYTES_HEADER, EntryMark, InstructionKind, PythonOffsets, TYPE_NAME};
use super::version::PythonVersion;
use crate::process::Memory;

const BASE: u64 = 0x7f12_3456_0000;
/// Where the interpreter's state is.
const RUNTIME: u64 = BASE + 0x100;
const RUNTIME_SIZE: u64 = 0x4000;

#[derive(Clone)]
pub(super) struct Image {
    pub(super) offsets: PythonOffsets,
    version: PythonVersion,
    bytes: Vec<u8>,
    types: [u64; 3],
}

pub(super) struct TestCode<'t> {
    pub(super) name: &'t str,
    pub(super) qualified_name: &'t str,
    pub(super) file: &'t str,
    pub(super) first_line: i32,
}

impl Default for TestCode<'_> {
    fn default() -> Self {
        Self { name: "step", qualified_name: "Trainer.step", file: "/home/user/train.py", first_line: 1 }
    }
}

/// A frame to be written: a code object at an instruction, or a shim with its owner.
#[derive(Clone, Copy, Debug)]
pub(super) enum TestFrame {
    Code { code: u64, instruction: i32, is_entry: bool },
    Shim(u8),
}

impl Memory for Image {
    fn bytes(&self, address: u64, size: usize) -> Option<Vec<u8>> {
        let at = usize::try_from(address.checked_sub(BASE)?).ok()?;
        self.bytes.get(at..at.checked_add(size)?).map(<[u8]>::to_vec)
    }
}

impl Image {
    pub(super) fn new(minor: u8) -> Self {
        let version = PythonVersion::new(3, minor);
        let offsets = PythonOffsets::of(version).unwrap();
        let bytes = vec![0; (RUNTIME - BASE + RUNTIME_SIZE) as usize];
        let mut image = Self { offsets, version, bytes, types: [0; 3] };
        image.types = ["code\0", "str\0", "bytes\0"].map(|name| {
            let name = image.allocate(name.as_bytes());
            let object = image.allocate(&[0; 64]);
            image.put_word(object + TYPE_NAME, name);
            object
        });
        image
    }

    pub(super) fn interpreter(&self) -> Interpreter {
        Interpreter { version: self.version, runtime_address: RUNTIME, offsets: self.offsets }
    }

    /// A new address with these bytes.
    pub(super) fn allocate(&mut self, bytes: &[u8]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let address = BASE + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        address
    }

    pub(super) fn put(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - BASE) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn put_word(&mut self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }

    /// Changes some bytes.
    #[cfg(test)]
    pub(super) fn damage(&mut self, mut random: impl FnMut() -> u64) {
        for _ in 0..1 + random() % 4 {
            // mostly the objects, which are behind the state of the interpreter
            let begin = if random().is_multiple_of(4) { 0 } else { (RUNTIME_SIZE + 0x100) as usize };
            let at = begin + random() as usize % (self.bytes.len() - begin);
            self.bytes[at] = random() as u8;
        }
    }

    pub(super) fn text_object(&mut self, text: &str) -> u64 {
        let largest = text.chars().map(u32::from).max().unwrap_or(0);
        let (header, width) = match largest {
            0..0x80 => (self.offsets.text.ascii_header, 1),
            0x80..0x100 => (self.offsets.text.other_header, 1),
            0x100..0x10000 => (self.offsets.text.other_header, 2),
            _ => (self.offsets.text.other_header, 4),
        };
        let is_ascii = u32::from(largest < 0x80);
        let mut bytes = vec![0; header as usize];
        bytes.extend(text.chars().flat_map(|c| u32::from(c).to_le_bytes().into_iter().take(width)));
        let address = self.allocate(&bytes);
        self.put_word(address + 8, self.types[1]);
        self.put_word(address + u64::from(self.offsets.text.length), text.chars().count() as u64);
        let state = (width as u32) << 2 | 1 << 5 | is_ascii << 6;
        self.put(address + u64::from(self.offsets.text.state), &state.to_le_bytes());
        address
    }

    pub(super) fn bytes_object(&mut self, contents: &[u8]) -> u64 {
        let address = self.allocate(&[&[0; BYTES_HEADER as usize], contents].concat());
        self.put_word(address + 8, self.types[2]);
        self.put_word(address + 16, contents.len() as u64);
        address
    }

    /// A code object with a hundred lines of two bytes each.
    pub(super) fn code(&mut self, code: &TestCode<'_>) -> u64 {
        let offsets = self.offsets.code;
        let table: Vec<u8> = match offsets.line_table_format {
            LineTableFormat::ByteDeltas => [2, 1].repeat(100),
            LineTableFormat::Ranges => [&[2, 0][..], &[2, 1].repeat(100)].concat(),
            LineTableFormat::Locations => [&[0x80, 0][..], &[0xd8, 0, 0].repeat(100)].concat(),
        };
        let table = self.bytes_object(&table);
        let (name, file) = (self.text_object(code.name), self.text_object(code.file));
        let qualified_name = self.text_object(code.qualified_name);
        let address = self.allocate(&[0; 512]);
        // it is referenced
        self.put_word(address, 1);
        self.put_word(address + 8, self.types[0]);
        for (at, object) in [
            (Some(offsets.name), name),
            (offsets.qualified_name, qualified_name),
            (Some(offsets.file), file),
            (Some(offsets.line_table), table),
        ] {
            if let Some(at) = at {
                self.put_word(address + u64::from(at), object);
            }
        }
        self.put(address + u64::from(offsets.first_line), &code.first_line.to_le_bytes());
        address
    }

    /// A frame; the address is that of the frame.
    pub(super) fn frame(&mut self, frame: TestFrame, previous: u64) -> u64 {
        let offsets = self.offsets.frame;
        let address = self.allocate(&[0; 512]);
        self.put_word(address + u64::from(offsets.previous), previous);
        match frame {
            TestFrame::Shim(owner) => self.put(address + u64::from(offsets.owner.unwrap()), &[owner]),
            TestFrame::Code { code, instruction, is_entry } => {
                self.put_word(address + u64::from(offsets.code), code | (offsets.code_tag & 1));
                let at = address + u64::from(offsets.instruction);
                match offsets.instruction_kind {
                    InstructionKind::Index { unit } => {
                        self.put(at, &(instruction / i32::from(unit)).to_le_bytes());
                    }
                    InstructionKind::Pointer => {
                        let begin = code + u64::from(self.offsets.code.instructions.unwrap());
                        self.put_word(at, begin.wrapping_add_signed(instruction.into()));
                    }
                }
                if let EntryMark::Flag(at) = offsets.entry {
                    self.put(address + u64::from(at), &[u8::from(is_entry)]);
                }
            }
        }
        address
    }

    /// The frames of one thread, the innermost first; shims are added where the version has them.
    pub(super) fn frames(&mut self, frames: &[PythonFrame]) -> u64 {
        let mut previous = 0;
        for frame in frames.iter().rev() {
            let PythonFrame { code, instruction_offset, is_entry } = *frame;
            if let (EntryMark::Shim, Some(owner), true) =
                (self.offsets.frame.entry, self.offsets.frame.entry_owner, is_entry)
            {
                previous = self.frame(TestFrame::Shim(owner), previous);
            }
            previous =
                self.frame(TestFrame::Code { code, instruction: instruction_offset, is_entry }, previous);
        }
        previous
    }

    /// One interpreter with these threads: number, pthread and innermost frame of each.
    pub(super) fn threads(&mut self, threads: &[(u32, u64, u64)]) -> Vec<u64> {
        let PythonOffsets { runtime, thread: offsets, .. } = self.offsets;
        let interpreter =
            self.allocate(&vec![0; runtime.first_thread.max(runtime.next_interpreter) as usize + 64]);
        self.put_word(RUNTIME + u64::from(runtime.first_interpreter), interpreter);
        let (mut states, mut link) = (Vec::new(), interpreter + u64::from(runtime.first_thread));
        for (native, pthread, frame) in threads {
            let state = self.allocate(&[0; 256]);
            self.put_word(link, state);
            link = state + u64::from(offsets.next);
            self.put_word(state, states.last().copied().unwrap_or(0));
            self.put_word(state + u64::from(offsets.interpreter), interpreter);
            self.put_word(state + u64::from(offsets.pthread), *pthread);
            if let Some(at) = offsets.native {
                self.put_word(state + u64::from(at), u64::from(*native));
            }
            let innermost = match offsets.frame_in_c_frame {
                Some(at) => {
                    let c_frame = self.allocate(&[0; 32]);
                    self.put_word(c_frame + u64::from(at), *frame);
                    c_frame
                }
                None => *frame,
            };
            self.put_word(state + u64::from(offsets.frame), innermost);
            states.push(state);
        }
        states
    }
}

/// Reads the frames of a process of which some bytes were changed. The input is the minor version, counted from 9, and
/// then changes: where (two bytes), how many bytes (one), and the bytes. See `fuzz::python`.
#[cfg(fuzzing)]
pub(crate) fn damaged_process(input: &[u8]) -> (usize, usize) {
    use super::code_cache::CodeCache;
    use super::debug_offsets::{Stated, stated_offsets};
    use super::thread_states::PythonThread;

    let Some((minor, mut changes)) = input.split_first() else { return (0, 0) };
    let mut image = Image::new(9 + minor % 6);
    let names = ["step", "größe", "名前", "🦀"];
    let codes = names.map(|name| image.code(&TestCode { name, ..TestCode::default() }));
    let frames = codes.map(|code| PythonFrame { code, instruction_offset: 6, is_entry: code & 16 == 0 });
    let innermost = image.frames(&frames);
    let pthread = image.allocate(&[0; 0x700]);
    image.threads(&[(7, pthread, 0), (8, pthread, innermost)]);
    while let Some(([low, high, size], rest)) = changes.split_first_chunk() {
        let (bytes, rest) = rest.split_at(rest.len().min((*size).into()));
        // the objects, not the many bytes of the state of the interpreter that are never read
        let at = (RUNTIME_SIZE + 0x100) as usize + usize::from(u16::from_le_bytes([*low, *high]));
        if let Some(changed) = image.bytes.get_mut(at..at + bytes.len()) {
            changed.copy_from_slice(bytes);
        }
        changes = rest;
    }
    if let Some(stated) = Stated::read(input) {
        stated_offsets(input, stated.version, &image.offsets);
    }
    let interpreter = image.interpreter();
    interpreter.state_in_use(&image, pthread, || Some(0..u64::MAX)).ok();
    let Ok(stack) = interpreter.stack(&image, PythonThread::Pthread(pthread)) else { return (0, 0) };
    let (mut cache, mut longest) = (CodeCache::new(), 0);
    // the second time from the cache
    for frame in stack.frames.iter().chain(&stack.frames) {
        let Ok(code) = cache.resolve(&image, &image.offsets, frame.code) else { continue };
        code.line_of(frame.instruction_offset);
        longest = longest.max(code.function().chars().count()).max(code.file.chars().count());
    }
    (stack.frames.len(), longest)
}
