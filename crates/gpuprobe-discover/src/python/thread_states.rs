//! Finds the state of a thread in its interpreter, and, if the process has several interpreters, the one that the thread
//! uses. `bpf/core/python_states.bpf.h` of gpuprobe-capture does the same for the calling thread.

use std::ops::{ControlFlow, Range};

use super::interpreter::Interpreter;
use super::offsets::{PythonOffsets, StateInUse};
use crate::process::Memory;

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

/// Where a state has the pointer to the one before it in the list, up to 3.11 and later.
const PREVIOUS_STATE: u64 = 0;

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
    #[error("it is not certain in which of several interpreters the thread runs")]
    Uncertain,
}

impl Interpreter {
    /// The address of the state of a thread, from the interpreter's list of threads. A thread that has one in several
    /// interpreters is assumed to run in the newest in which it has a frame; [`Interpreter::state_in_use`] is certain.
    pub fn thread_state(&self, memory: &dyn Memory, thread: PythonThread) -> Result<u64, NoPythonStack> {
        let offsets = &self.offsets.thread;
        let (at, wanted) = match thread {
            PythonThread::Native(number) => {
                (offsets.native.ok_or(NoPythonStack::NoNumbers)?, u64::from(number))
            }
            PythonThread::Pthread(address) => (offsets.pthread, address),
        };
        let mut idle = Err(NoPythonStack::NoThread);
        let found = self.each_state(memory, |state, _| {
            if word(memory, state, at)? == wanted {
                if self.innermost(memory, state) != Some(0) {
                    return Ok(ControlFlow::Break(state));
                }
                idle = idle.or(Ok(state));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        found.map_or(idle, Ok)
    }

    /// The address of the state that a thread uses; `None` if it has none. `stack` returns the part of its stack that is
    /// in use. It is called only in a process with several interpreters whose states are searched.
    pub fn state_in_use(
        &self,
        memory: &dyn Memory,
        pthread: u64,
        stack: impl FnOnce() -> Option<Range<u64>>,
    ) -> Result<Option<u64>, NoPythonStack> {
        let of_key = self.thread_state_of_key(memory, pthread);
        if self.offsets.thread.in_use == StateInUse::Key || !self.has_several(memory)? {
            return Ok(of_key);
        }
        let stack = stack().ok_or(NoPythonStack::Uncertain)?;
        match self.offsets.thread.in_use {
            StateInUse::CFrame(at) => {
                match self.state_on_stack(memory, at, stack)? {
                    Some(state) => Ok(Some(state)),
                    // it runs code, on another stack
                    None if of_key.is_some_and(|state| self.innermost(memory, state) != Some(0)) => {
                        Err(NoPythonStack::Uncertain)
                    }
                    None => Ok(of_key),
                }
            }
            StateInUse::Key | StateInUse::Unknown => {
                let interpreter = |state| word(memory, state, self.offsets.thread.interpreter);
                let own = of_key.map(interpreter).transpose()?;
                let others = self.each_state(memory, |state, interpreter| {
                    let is_other = Some(interpreter) != own && self.innermost(memory, state) != Some(0);
                    Ok(if is_other { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })?;
                others.map_or(Ok(of_key), |()| Err(NoPythonStack::Uncertain))
            }
        }
    }

    /// The state whose C frame is the innermost on a stack. It is in use by the thread of that stack.
    fn state_on_stack(
        &self,
        memory: &dyn Memory,
        c_frame: u32,
        mut stack: Range<u64>,
    ) -> Result<Option<u64>, NoPythonStack> {
        let (mut found, mut previous) = (None, (0, 0));
        self.each_state(memory, |state, interpreter| {
            let expected = if previous.0 == interpreter { previous.1 } else { 0 };
            // the list changes while it is read
            if memory.word(state.wrapping_add(PREVIOUS_STATE)) != Some(expected) {
                return Err(NoPythonStack::Uncertain);
            }
            let frame = word(memory, state, c_frame)?;
            if stack.contains(&frame) {
                (found, stack.end) = (Some(state), frame);
            }
            previous = (interpreter, state);
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(found)
    }

    /// Calls `look` with each state and its interpreter until it breaks: those of the newest interpreter first.
    fn each_state<T>(
        &self,
        memory: &dyn Memory,
        mut look: impl FnMut(u64, u64) -> Result<ControlFlow<T>, NoPythonStack>,
    ) -> Result<Option<T>, NoPythonStack> {
        let PythonOffsets { runtime, thread: offsets, .. } = &self.offsets;
        let mut count = 0;
        let mut interpreter = word(memory, self.runtime_address, runtime.first_interpreter)?;
        for _ in 0..INTERPRETER_LIMIT {
            if interpreter == 0 {
                return Ok(None);
            }
            let mut state = word(memory, interpreter, runtime.first_thread)?;
            while state != 0 {
                count += 1;
                if count > THREAD_LIMIT {
                    return Err(NoPythonStack::TooManyThreads);
                }
                if word(memory, state, offsets.interpreter)? != interpreter {
                    return Err(NoPythonStack::Inconsistent);
                }
                if let ControlFlow::Break(found) = look(state, interpreter)? {
                    return Ok(Some(found));
                }
                state = word(memory, state, offsets.next)?;
            }
            interpreter = word(memory, interpreter, runtime.next_interpreter)?;
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
    fn has_several(&self, memory: &dyn Memory) -> Result<bool, NoPythonStack> {
        let first = word(memory, self.runtime_address, self.offsets.runtime.first_interpreter)?;
        Ok(first != 0 && word(memory, first, self.offsets.runtime.next_interpreter)? != 0)
    }
}

fn word(memory: &dyn Memory, address: u64, offset: u32) -> Result<u64, NoPythonStack> {
    let at = address.checked_add(offset.into()).ok_or(NoPythonStack::Unreadable)?;
    memory.word(at).ok_or(NoPythonStack::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::image::{Image, TestCode, TestFrame};

    const PTHREAD: u64 = 0x7f00_1111_2640;
    const STACK: Range<u64> = 0x7ff0_0000..0x7ff1_0000;

    /// Another interpreter with these threads, which is newer than the others.
    fn add_interpreter(image: &mut Image, threads: &[(u32, u64, u64)]) -> Vec<u64> {
        let runtime = image.offsets.runtime;
        let first = image.interpreter().runtime_address + u64::from(runtime.first_interpreter);
        let older = image.word(first).unwrap();
        let states = image.threads(threads);
        let newer = image.word(first).unwrap();
        image.put_word(newer + u64::from(runtime.next_interpreter), older);
        states
    }

    /// A thread with this state in its key.
    fn thread(image: &mut Image, state: u64) -> u64 {
        let pthread = image.allocate(&[0; 0x900]);
        image.put_word(pthread + FIRST_KEYS + 8, state);
        pthread
    }

    fn frame(image: &mut Image) -> u64 {
        let code = image.code(&TestCode::default());
        image.frame(TestFrame::Code { code, instruction: 0, is_entry: true }, 0)
    }

    #[test]
    fn of_several_interpreters_the_one_that_is_innermost_on_the_stack_is_in_use() {
        for (minor, at) in [(10, 48), (11, 56)] {
            let mut image = Image::new(minor);
            let frame = frame(&mut image);
            let main = image.threads(&[(7, PTHREAD, frame), (8, 1, frame)]);
            let older = add_interpreter(&mut image, &[(7, 2, frame)])[0];
            let newer = add_interpreter(&mut image, &[(7, PTHREAD, frame)])[0];
            let pthread = thread(&mut image, main[0]);
            let in_use =
                |image: &Image| image.interpreter().state_in_use(image, pthread, || Some(STACK.clone()));
            let mut at_frames = |frames: [u64; 4]| {
                for (state, c_frame) in [main[0], main[1], older, newer].into_iter().zip(frames) {
                    image.put_word(state + at, c_frame);
                }
                in_use(&image)
            };
            let (inner, middle, outer) = (STACK.start + 8, STACK.start + 64, STACK.start + 128);
            let other = STACK.end + 8;
            assert_eq!(at_frames([outer, other, other, other]), Ok(Some(main[0])), "3.{minor}");
            assert_eq!(at_frames([outer, other, other, middle]), Ok(Some(newer)), "3.{minor}");
            assert_eq!(at_frames([outer, other, inner, middle]), Ok(Some(older)), "the newer calls it");
            assert_eq!(at_frames([inner, other, other, middle]), Ok(Some(main[0])), "the main one again");
            let below = STACK.start - 8;
            assert_eq!(at_frames([outer, other, other, below]), Ok(Some(main[0])), "of another thread");
            let no_stack = image.interpreter().state_in_use(&image, pthread, || None);
            assert_eq!(no_stack, Err(NoPythonStack::Uncertain));
            image.put_word(main[1], older);
            assert_eq!(in_use(&image), Err(NoPythonStack::Uncertain), "the list changed");
        }
    }

    #[test]
    fn code_on_another_stack_is_uncertain() {
        let mut image = Image::new(10);
        let frame = frame(&mut image);
        let states = image.threads(&[(7, PTHREAD, frame), (8, 1, 0)]);
        add_interpreter(&mut image, &[(9, 2, 0)]);
        let [runs, idle, unknown] = [states[0], states[1], 0].map(|state| thread(&mut image, state));
        let in_use = |pthread| image.interpreter().state_in_use(&image, pthread, || Some(STACK.clone()));
        assert_eq!(in_use(runs), Err(NoPythonStack::Uncertain));
        assert_eq!(in_use(idle), Ok(Some(states[1])));
        assert_eq!(in_use(unknown), Ok(None));
    }

    #[test]
    fn without_c_frames_the_key_is_right_while_no_other_interpreter_runs() {
        let mut image = Image::new(9);
        let frame = frame(&mut image);
        let main = image.threads(&[(7, PTHREAD, frame), (8, 1, frame)]);
        let pthread = thread(&mut image, main[0]);
        let in_use = |image: &Image| image.interpreter().state_in_use(image, pthread, || Some(STACK.clone()));
        assert_eq!(in_use(&image), Ok(Some(main[0])), "a single interpreter");
        let other = add_interpreter(&mut image, &[(7, PTHREAD, 0)])[0];
        assert_eq!(in_use(&image), Ok(Some(main[0])));
        image.put_word(other + 24, frame);
        assert_eq!(in_use(&image), Err(NoPythonStack::Uncertain));
    }

    #[test]
    fn since_3_12_the_key_has_the_state_in_use() {
        for minor in 12..=14 {
            let mut image = Image::new(minor);
            let frame = frame(&mut image);
            image.threads(&[(7, PTHREAD, frame)]);
            let newer = add_interpreter(&mut image, &[(7, PTHREAD, frame)])[0];
            let pthread = thread(&mut image, newer);
            let in_use = image.interpreter().state_in_use(&image, pthread, || None);
            assert_eq!(in_use, Ok(Some(newer)), "3.{minor}");
        }
    }

    #[test]
    fn a_thread_of_several_interpreters_is_assumed_to_run_where_it_has_frames() {
        let mut image = Image::new(12);
        let innermost = frame(&mut image);
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
}
