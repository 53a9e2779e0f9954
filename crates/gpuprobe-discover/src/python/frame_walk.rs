//! Walks the Python frames of a thread through the memory of its process. Nothing is stopped: the frames of a thread
//! that runs may change meanwhile, those of a blocked thread do not.

use std::collections::HashSet;

use super::code_object::UNKNOWN_INSTRUCTION;
use super::interpreter::Interpreter;
use super::object::Structure;
use super::offsets::{EntryMark, FrameOffsets, InstructionKind, PythonOffsets};
use crate::process::Memory;

/// The most Python frames of one thread that are walked, counted from the innermost.
pub const PYTHON_FRAME_LIMIT: usize = 256;
/// The most frames that are read for one thread: shims are frames too.
const READ_LIMIT: usize = 2 * PYTHON_FRAME_LIMIT;
/// The most interpreters, and threads of all of them, that are searched.
const INTERPRETER_LIMIT: usize = 256;
const THREAD_LIMIT: usize = 4096;

/// Where glibc has the values of the first thread-specific keys on x86-64, from what pthread_self returns, and how
/// many there are. The pointers to the blocks of further keys follow them.
const FIRST_KEYS: u64 = 0x310;
const KEYS_IN_BLOCK: u64 = 32;
/// A key is a number that tells its uses apart, and the value.
const KEY_SIZE: u64 = 16;
/// The most keys of a process.
const KEY_LIMIT: u64 = 1024;

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

/// How a thread is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonThread {
    /// By its number in the pid namespace of the process. Since 3.11.
    Native(u32),
    /// By what pthread_self returns in it. That is the base of its thread-local storage (x86-64, glibc).
    Pthread(u64),
}

/// Why a thread has no Python stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPythonStack {
    #[error("Python does not know this thread")]
    NoThread,
    #[error("this Python does not record the numbers of threads")]
    NoNumbers,
    #[error("the state of the interpreter cannot be read")]
    Unreadable,
    #[error("the state of the interpreter is not where this version has it")]
    Inconsistent,
    #[error("the interpreter has more than {THREAD_LIMIT} threads")]
    TooManyThreads,
}

impl Interpreter {
    /// The Python frames of a thread.
    pub fn stack(&self, memory: &dyn Memory, thread: PythonThread) -> Result<PythonStack, NoPythonStack> {
        let state = self.thread_state(memory, thread)?;
        Ok(self.frames(memory, state))
    }

    /// The address of the state of a thread, from the interpreter's list of threads. A thread that has one in several
    /// interpreters runs in the newest in which it has a frame; interpreters are listed from the newest on.
    pub fn thread_state(&self, memory: &dyn Memory, thread: PythonThread) -> Result<u64, NoPythonStack> {
        let PythonOffsets { runtime, thread: offsets, .. } = &self.offsets;
        let (at, wanted) = match thread {
            PythonThread::Native(number) => {
                (offsets.native.ok_or(NoPythonStack::NoNumbers)?, u64::from(number))
            }
            PythonThread::Pthread(address) => (offsets.pthread, address),
        };
        let word = |address: u64, offset: u32| {
            let at = address.checked_add(offset.into()).ok_or(NoPythonStack::Unreadable)?;
            memory.word(at).ok_or(NoPythonStack::Unreadable)
        };
        let (mut count, mut idle) = (0, Err(NoPythonStack::NoThread));
        let mut interpreter = word(self.runtime_address, runtime.first_interpreter)?;
        for _ in 0..INTERPRETER_LIMIT {
            if interpreter == 0 {
                return idle;
            }
            let mut state = word(interpreter, runtime.first_thread)?;
            while state != 0 {
                count += 1;
                if count > THREAD_LIMIT {
                    return Err(NoPythonStack::TooManyThreads);
                }
                if word(state, offsets.interpreter)? != interpreter {
                    return Err(NoPythonStack::Inconsistent);
                }
                if word(state, at)? == wanted {
                    if self.innermost(memory, state) != Some(0) {
                        return Ok(state);
                    }
                    idle = idle.or(Ok(state));
                }
                state = word(state, offsets.next)?;
            }
            interpreter = word(interpreter, runtime.next_interpreter)?;
        }
        Err(NoPythonStack::Inconsistent)
    }

    /// The address of the state of a thread, from its thread-specific key: what BPF can do for the thread that it runs
    /// in. `None` if the thread has none.
    pub fn thread_state_of_key(&self, memory: &dyn Memory, pthread: u64) -> Option<u64> {
        let at = self.runtime_address.checked_add(self.offsets.runtime.thread_key?.into())?;
        let key = u64::from(u32::from_le_bytes(memory.bytes(at, 4)?.try_into().ok()?));
        if key >= KEY_LIMIT {
            return None;
        }
        let first = pthread.checked_add(FIRST_KEYS)?;
        let block = match key / KEYS_IN_BLOCK {
            0 => first,
            // the pointer to the first block is there as well
            number => memory.word(first.checked_add(KEYS_IN_BLOCK * KEY_SIZE + 8 * number)?)?,
        };
        let value = block.checked_add(key % KEYS_IN_BLOCK * KEY_SIZE + 8)?;
        memory.word(value).filter(|state| *state != 0)
    }

    /// Whether the process has more than one interpreter: then a thread may have a state in each.
    pub fn has_several(&self, memory: &dyn Memory) -> bool {
        let next = |address: u64, offset: u32| memory.word(address.checked_add(offset.into())?);
        let runtime = &self.offsets.runtime;
        let first = next(self.runtime_address, runtime.first_interpreter);
        first.and_then(|first| next(first, runtime.next_interpreter)).is_some_and(|second| second != 0)
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
    fn a_thread_of_several_interpreters_runs_where_it_has_frames() {
        let mut image = Image::new(12);
        let frames = sample(&mut image);
        let innermost = image.frames(&frames);
        let interpreter = image.interpreter();
        let older = image.threads(&[(8, PTHREAD, innermost)])[0];
        let first = image.word(interpreter.runtime_address + 40).unwrap();
        let newer = image.threads(&[(8, PTHREAD, 0), (9, 1, 0)])[0];
        let second = image.word(interpreter.runtime_address + 40).unwrap();
        image.put_word(second, first);
        assert_eq!(interpreter.thread_state(&image, PythonThread::Native(8)), Ok(older));
        let c_frame = image.word(newer + 56).unwrap();
        image.put_word(c_frame, innermost);
        assert_eq!(interpreter.thread_state(&image, PythonThread::Native(8)), Ok(newer));
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
    fn endless_lists_of_threads_and_interpreters_end() {
        let mut image = Image::new(12);
        let states = image.threads(&[(8, PTHREAD, 0), (9, 1, 0)]);
        image.put_word(states[1] + u64::from(image.offsets.thread.next), states[0]);
        let interpreter = image.interpreter();
        let found = interpreter.thread_state(&image, PythonThread::Native(77));
        assert_eq!(found, Err(NoPythonStack::TooManyThreads));

        image.put_word(states[1] + u64::from(image.offsets.thread.next), 0);
        let first = image.word(interpreter.runtime_address + 40).unwrap();
        image.put_word(first, first);
        let found = interpreter.thread_state(&image, PythonThread::Native(77));
        assert_eq!(found, Err(NoPythonStack::Inconsistent));
        image.put_word(states[0] + 16, 1);
        let found = interpreter.thread_state(&image, PythonThread::Native(77));
        assert_eq!(found, Err(NoPythonStack::Inconsistent), "the thread of another interpreter");
        image.put_word(interpreter.runtime_address + 40, 8);
        let found = interpreter.thread_state(&image, PythonThread::Native(77));
        assert_eq!(found, Err(NoPythonStack::Unreadable));
        image.put_word(interpreter.runtime_address + 40, 0);
        let found = interpreter.thread_state(&image, PythonThread::Native(77));
        assert_eq!(found, Err(NoPythonStack::NoThread), "not started yet");
    }

    #[test]
    fn the_state_is_found_by_the_key_in_both_levels() {
        let mut image = Image::new(11);
        let interpreter = image.interpreter();
        let pthread = image.allocate(&[0; 0x900]);
        let key_at = interpreter.runtime_address + 596;
        image.put(key_at, &31u32.to_le_bytes());
        image.put_word(pthread + 0x310 + 31 * 16 + 8, 0xabc0);
        assert_eq!(interpreter.thread_state_of_key(&image, pthread), Some(0xabc0));
        image.put(key_at, &70u32.to_le_bytes());
        assert_eq!(interpreter.thread_state_of_key(&image, pthread), None, "no such block");
        let block = image.allocate(&[0; 512]);
        image.put_word(pthread + 0x310 + 512 + 16, block);
        image.put_word(block + 6 * 16 + 8, 0xdef0);
        assert_eq!(interpreter.thread_state_of_key(&image, pthread), Some(0xdef0));
        for key in [KEY_LIMIT as u32, u32::MAX] {
            image.put(key_at, &key.to_le_bytes());
            assert_eq!(interpreter.thread_state_of_key(&image, pthread), None);
        }
        assert_eq!(interpreter.thread_state_of_key(&image, u64::MAX), None);
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
                image.interpreter().thread_state_of_key(&damaged, random.next()).ok_or(()).ok();
            }
        }
    }
}
