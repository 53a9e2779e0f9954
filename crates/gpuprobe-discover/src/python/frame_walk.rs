//! Walks the Python frames of a thread through the memory of its process. Nothing is stopped: the frames of a thread
//! that runs may change meanwhile, those of a blocked thread do not.

use std::collections::HashSet;

use super::code_object::UNKNOWN_INSTRUCTION;
use super::interpreter::Interpreter;
use super::object::Structure;
use super::offsets::{EntryMark, FrameOffsets, InstructionKind};
use super::thread_states::{NoPythonStack, PythonThread};
use crate::process::Memory;

/// The most Python frames of one thread that are walked, counted from the innermost.
pub const PYTHON_FRAME_LIMIT: usize = 256;
/// The most frames that are read for one thread: shims are frames too.
const READ_LIMIT: usize = 2 * PYTHON_FRAME_LIMIT;

/// A Python function that was called and has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFrame {
    /// The address of its code object.
    pub code: u64,
    /// Bytes from the beginning of the code; negative if it has not begun, [`UNKNOWN_INSTRUCTION`] if the frame does
    /// not point into its code.
    pub instruction_offset: i32,
    /// A call of the evaluation function began with this frame: its caller is native code, and the frames up to here
    /// share one native frame.
    pub is_entry: bool,
}

/// The Python frames of a thread, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonStack {
    pub frames: Vec<PythonFrame>,
    pub end: PythonStackEnd,
}

/// Why there are no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonStackEnd {
    /// The outermost frame was reached.
    Complete,
    /// There are more than the limit.
    TooDeep,
    /// A frame could not be read, or is its own caller: the thread runs, or its memory is damaged.
    Lost,
}

impl Interpreter {
    /// The Python frames of a thread.
    pub fn stack(&self, memory: &dyn Memory, thread: PythonThread) -> Result<PythonStack, NoPythonStack> {
        let state = self.thread_state(memory, thread)?;
        Ok(self.frames(memory, state))
    }

    /// Whether the thread with this state runs Python code.
    pub fn has_frames(&self, memory: &dyn Memory, thread_state: u64) -> bool {
        self.innermost(memory, thread_state).is_some_and(|frame| frame != 0)
    }

    /// The frames of the thread with this state.
    pub fn frames(&self, memory: &dyn Memory, thread_state: u64) -> PythonStack {
        let mut frames: Vec<PythonFrame> = Vec::new();
        let end = self.walk(memory, thread_state, &mut frames).unwrap_or(PythonStackEnd::Lost);
        PythonStack { frames, end }
    }

    /// Adds the frames of a thread. `None` if a frame cannot be read.
    fn walk(
        &self,
        memory: &dyn Memory,
        thread_state: u64,
        frames: &mut Vec<PythonFrame>,
    ) -> Option<PythonStackEnd> {
        let offsets = &self.offsets.frame;
        let mut frame = self.innermost(memory, thread_state)?;
        let mut seen = HashSet::new();
        while frame != 0 {
            if !seen.insert(frame) {
                return None;
            }
            if frames.len() == PYTHON_FRAME_LIMIT || seen.len() > READ_LIMIT {
                return Some(PythonStackEnd::TooDeep);
            }
            let structure = Structure::read(memory, frame, offsets.size).ok()?;
            let owner = offsets.owner.map_or(Some(0), |at| structure.byte(at))?;
            if owner < 8 && offsets.shim_owners >> owner & 1 == 1 {
                if Some(owner) == offsets.entry_owner
                    && let Some(entry) = frames.last_mut()
                {
                    entry.is_entry = true;
                }
            } else {
                frames.push(self.frame(offsets, &structure)?);
            }
            frame = structure.word(offsets.previous)?;
        }
        Some(PythonStackEnd::Complete)
    }

    pub(super) fn innermost(&self, memory: &dyn Memory, thread_state: u64) -> Option<u64> {
        let frame = memory.word(thread_state.checked_add(self.offsets.thread.frame.into())?)?;
        match self.offsets.thread.frame_in_c_frame {
            Some(_) if frame == 0 => Some(0),
            Some(at) => memory.word(frame.checked_add(at.into())?),
            None => Some(frame),
        }
    }

    fn frame(&self, offsets: &FrameOffsets, structure: &Structure) -> Option<PythonFrame> {
        let code = structure.word(offsets.code)? & !offsets.code_tag;
        let instruction_offset = match offsets.instruction_kind {
            InstructionKind::Index { unit } => {
                structure.int(offsets.instruction)?.saturating_mul(i32::from(unit))
            }
            InstructionKind::Pointer => {
                let begin = code.wrapping_add(self.offsets.code.instructions?.into());
                let offset = structure.word(offsets.instruction)?.wrapping_sub(begin).cast_signed();
                // one unit before the code if it has not begun
                i32::try_from(offset).ok().filter(|offset| *offset >= -2).unwrap_or(UNKNOWN_INSTRUCTION)
            }
        };
        let is_entry = match offsets.entry {
            EntryMark::Every => true,
            EntryMark::Flag(at) => structure.byte(at)? != 0,
            EntryMark::Shim => false,
        };
        Some(PythonFrame { code, instruction_offset, is_entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::image::{Image, TestCode, TestFrame};
    use crate::testing::Xorshift;

    const PTHREAD: u64 = 0x7f00_1111_2640;

    /// Three frames of which the innermost and the outermost are entries; up to 3.10 all are.
    fn sample(image: &mut Image) -> Vec<PythonFrame> {
        let code = [0, 1, 2].map(|_| image.code(&TestCode::default()));
        let every = image.offsets.frame.entry == EntryMark::Every;
        let frame = |index: usize, is_entry| PythonFrame {
            code: code[index],
            instruction_offset: 4 * index as i32,
            is_entry: is_entry || every,
        };
        vec![frame(0, true), frame(1, false), frame(2, true)]
    }

    #[test]
    fn the_frames_of_a_thread_are_walked_in_every_version() {
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            let expected = sample(&mut image);
            let innermost = image.frames(&expected);
            image.threads(&[(7, 0x1000, 0), (8, PTHREAD, innermost)]);
            let interpreter = image.interpreter();
            let stack = interpreter.stack(&image, PythonThread::Pthread(PTHREAD)).unwrap();
            assert_eq!(stack, PythonStack { frames: expected, end: PythonStackEnd::Complete }, "3.{minor}");
            let by_number = interpreter.stack(&image, PythonThread::Native(8));
            assert_eq!(by_number, if minor < 11 { Err(NoPythonStack::NoNumbers) } else { Ok(stack) });
            let idle = interpreter.stack(&image, PythonThread::Pthread(0x1000)).unwrap();
            assert_eq!((idle.frames.len(), idle.end), (0, PythonStackEnd::Complete));
            let unknown = interpreter.stack(&image, PythonThread::Pthread(1));
            assert_eq!(unknown, Err(NoPythonStack::NoThread));
        }
    }

    #[test]
    fn frames_of_c_functions_are_skipped_and_only_those_of_the_evaluation_mark_entries() {
        let mut image = Image::new(14);
        let code = image.code(&TestCode::default());
        let plain = TestFrame::Code { code, instruction: 0, is_entry: false };
        let mut frame = 0;
        for next in [TestFrame::Shim(3), plain, TestFrame::Shim(4), plain, TestFrame::Shim(3)] {
            frame = image.frame(next, frame);
        }
        let states = image.threads(&[(8, PTHREAD, frame)]);
        let stack = image.interpreter().frames(&image, states[0]);
        assert_eq!(stack.frames.iter().map(|frame| frame.is_entry).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn endless_frames_end() {
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            let code = image.code(&TestCode::default());
            let plain = TestFrame::Code { code, instruction: 0, is_entry: true };
            let first = image.frame(plain, 0);
            let second = image.frame(plain, first);
            image.put_word(first + u64::from(image.offsets.frame.previous), second);
            let states = image.threads(&[(8, PTHREAD, second)]);
            let stack = image.interpreter().frames(&image, states[0]);
            assert_eq!((stack.frames.len(), stack.end), (2, PythonStackEnd::Lost), "3.{minor}: a circle");

            let deep = (0..2 * PYTHON_FRAME_LIMIT).fold(0, |previous, _| image.frame(plain, previous));
            let states = image.threads(&[(8, PTHREAD, deep)]);
            let stack = image.interpreter().frames(&image, states[0]);
            assert_eq!((stack.frames.len(), stack.end), (PYTHON_FRAME_LIMIT, PythonStackEnd::TooDeep));
        }
        let mut image = Image::new(13);
        let shims = (0..2 * READ_LIMIT).fold(0, |previous, _| image.frame(TestFrame::Shim(3), previous));
        let states = image.threads(&[(8, PTHREAD, shims)]);
        let stack = image.interpreter().frames(&image, states[0]);
        assert_eq!((stack.frames.len(), stack.end), (0, PythonStackEnd::TooDeep));
    }

    #[test]
    fn no_memory_makes_the_walk_fail() {
        let mut random = Xorshift(3);
        for minor in 9..=14 {
            let mut image = Image::new(minor);
            let frames = sample(&mut image);
            let innermost = image.frames(&frames);
            let states = image.threads(&[(8, PTHREAD, innermost)]);
            for _ in 0..2000 {
                let mut damaged = image.clone();
                damaged.damage(|| random.next());
                let stack = image.interpreter().frames(&damaged, states[0]);
                assert!(stack.frames.len() <= PYTHON_FRAME_LIMIT);
                image.interpreter().thread_state(&damaged, PythonThread::Pthread(PTHREAD)).ok();
                let whole = || Some(0..u64::MAX);
                image.interpreter().state_in_use(&damaged, random.next(), whole).ok();
            }
        }
    }
}
