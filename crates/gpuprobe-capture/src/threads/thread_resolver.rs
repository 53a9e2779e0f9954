//! Unwinds the copied stacks of threads, walks their Python frames, and names both.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpuprobe_discover::python::{
    self, CodeCache, CodeObject, Interpreter, InterpreterSearch, NoInterpreter, NumberTypes, PythonStackEnd,
};
use gpuprobe_discover::{
    Memory, ProcessMemory, Registers, ReplacedReturn, Stack, StackEnd, Symbolizer, ThreadRegisters, Unwinder,
    gpu_api_of, mapped_range,
};
use gpuprobe_event::{Api, Frame, GpuCall, Tgid, ThreadStack};

use crate::stacks::python_stacks::PythonStack;
use crate::stacks::raw_stack;
use crate::threads::thread_iterator::RawThread;

const PROC: &str = "/proc";
/// A stack that was not copied far enough is read up to here, in pieces.
const MOST_STACK: usize = 1 << 20;
const PIECE: usize = 64 << 10;
/// Unwinding continues this often after the limit of files read for one stack was reached.
const CONTINUED: usize = 64;
/// In a process with several interpreters and more threads, the states of all threads take too long to read.
const LISTED_THREADS: usize = 64;

/// The native stack of a thread.
#[derive(Debug)]
pub(crate) struct NativeStack {
    unwound: Stack,
    /// The registers that calls preserve, for each frame.
    preserved: Vec<Vec<Option<u64>>>,
    /// A hash of the memory of each frame; `None` if it was not copied.
    memory: Vec<Option<u64>>,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In no GPU call.
    Outside,
    In(CallPlace),
    /// In a GPU call whose caller could not be determined.
    Unclear,
}

/// A GPU call on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallPlace {
    pub(crate) return_address: u64,
    /// Where the return address is kept.
    pub(crate) slot: u64,
}

/// The Python frames of a thread.
#[derive(Debug)]
pub(crate) struct WalkedPython {
    stack: PythonStack,
    /// A hash of the frames and their variables.
    state: u64,
    is_complete: bool,
}

#[derive(Debug)]
struct Process {
    python: Option<(Interpreter, CodeCache)>,
    /// Why it has no Python frames, if it runs Python.
    python_problem: Option<String>,
    /// Why it has no stacks.
    problem: Option<String>,
    threads: usize,
    number_types: NumberTypes,
    /// The code objects of this round. Threads that share one read it once.
    codes_now: HashMap<u64, Option<Arc<CodeObject>>>,
}

/// Resolves the stacks of many processes.
#[derive(Debug, Default)]
pub(crate) struct ThreadResolver {
    unwinder: Unwinder,
    symbols: Symbolizer,
    search: InterpreterSearch,
    processes: HashMap<Tgid, Process>,
}

impl ThreadResolver {
    /// Reads what the process has mapped now.
    pub(crate) fn observe(&mut self, tgid: Tgid, threads: usize) {
        self.unwinder.observe(Path::new(PROC), tgid.0);
        if let Some(known) = self.processes.get_mut(&tgid) {
            known.threads = threads;
            known.codes_now.clear();
            return;
        }
        let mut process = Process {
            python: None,
            python_problem: None,
            problem: None,
            threads,
            number_types: NumberTypes::default(),
            codes_now: HashMap::new(),
        };
        match self.search.find(Path::new(PROC), tgid.0) {
            Ok(found) => process.python = Some((found, CodeCache::new())),
            Err(NoInterpreter::NotPython) => {}
            Err(NoInterpreter::Process(error)) => process.problem = Some(error.to_string()),
            Err(other) => process.python_problem = Some(other.to_string()),
        }
        self.processes.insert(tgid, process);
    }

    /// Why stacks, and Python frames, are missing.
    pub(crate) fn problems(&self, tgid: Tgid) -> (Option<String>, Option<String>) {
        let process = self.processes.get(&tgid);
        process.map_or((None, None), |found| (found.problem.clone(), found.python_problem.clone()))
    }

    pub(crate) fn forget(&mut self, tgid: Tgid) {
        self.processes.remove(&tgid);
        self.unwinder.forget(tgid.0);
    }

    /// Unwinds a stack; `is_asleep` says that it does not change meanwhile.
    pub(crate) fn unwind(&mut self, raw: &RawThread, is_asleep: bool) -> NativeStack {
        let head = &raw.head;
        let registers = ThreadRegisters {
            registers: Registers {
                ip: head.instruction_pointer,
                sp: head.stack_pointer,
                fp: head.frame_pointer,
                lr: head.link_register,
            },
            preserved: head.preserved,
        };
        let mut bytes = raw.stack.clone();
        let memory = ProcessMemory::new(&folder_of(Tgid(head.tgid)));
        let mut continued = 0;
        let (unwound, preserved) = loop {
            let replaced = restore(&mut bytes, raw);
            let (unwound, preserved) =
                self.unwinder.unwind_thread(Path::new(PROC), head.tgid, &registers, &bytes, &replaced);
            let goes_on = match unwound.end {
                StackEnd::NotYet => continued < CONTINUED,
                StackEnd::CopyEnds => is_asleep && read_more(&memory, head.stack_pointer, &mut bytes),
                StackEnd::Complete | StackEnd::TooDeep | StackEnd::Lost => false,
            };
            continued += 1;
            if !goes_on {
                break (unwound, preserved);
            }
        };
        let memory = frame_memory(&unwound, head.stack_pointer, &bytes);
        NativeStack { unwound, preserved, memory }
    }

    /// Walks the Python frames of a thread and reads their names; `None` if it has none.
    pub(crate) fn walk_python(&mut self, raw: &RawThread) -> Option<WalkedPython> {
        let process = self.processes.get_mut(&Tgid(raw.head.tgid))?;
        let (interpreter, codes) = process.python.as_mut()?;
        let memory = ProcessMemory::new(&folder_of(Tgid(raw.head.tgid)));
        let stack = || used_stack(raw).filter(|_| process.threads <= LISTED_THREADS);
        let (state, walked) = match interpreter.state_in_use(&memory, raw.head.thread_pointer, stack) {
            Ok(state) => {
                let state = state.filter(|state| interpreter.has_frames(&memory, *state))?;
                (state, interpreter.frames(&memory, state))
            }
            // it may run Python code
            Err(_) => (0, python::PythonStack { frames: Vec::new(), end: PythonStackEnd::Lost }),
        };
        let codes_now = &mut process.codes_now;
        let stack = PythonStack::of_walk(&walked, |code| {
            let read = || codes.resolve(&memory, &interpreter.offsets, code).ok();
            codes_now.entry(code).or_insert_with(read).clone()
        });
        let is_complete = stack.is_complete();
        let variables = interpreter.variables(&memory, &mut process.number_types, state);
        Some(WalkedPython { state: hash_of(&(&stack, variables)), stack, is_complete })
    }

    /// Names the frames, and finds the outermost GPU call with a hash of what called it.
    pub(crate) fn name(
        &mut self,
        tgid: Tgid,
        native: &NativeStack,
        python: Option<&WalkedPython>,
        is_torn: bool,
    ) -> (ThreadStack, u64) {
        let addresses = &native.unwound.addresses;
        let named = self.named(tgid, native);
        let is_native_complete = native.unwound.end == StackEnd::Complete;
        let found = outermost_gpu_call(&named, is_native_complete);
        let flat: Vec<Frame> = named.iter().flatten().cloned().collect();
        let frames = match python {
            Some(python) => python.stack.merged(&flat, is_native_complete),
            None => flat,
        };
        let gpu_call = found.as_ref().map(|(index, api, function)| GpuCall {
            api: *api,
            function: function.clone(),
            frame: position(&frames, addresses.get(*index).copied()),
            slot: native.unwound.slots.get(index + 1).copied().flatten().unwrap_or(0),
        });
        // outside of GPU calls there is no caller that waits
        let state = found.map_or(0, |(index, ..)| {
            hash_of(&(native.caller_state(index + 1), python.map(|python| python.state)))
        });
        let incomplete = incomplete(native.unwound.end, python, &frames);
        (ThreadStack { frames, incomplete, is_torn, gpu_call }, state)
    }

    /// Where the outermost GPU call is on the stack.
    pub(crate) fn placement(&mut self, tgid: Tgid, native: &NativeStack) -> Placement {
        let Stack { addresses, slots, end } = &native.unwound;
        let is_complete = *end == StackEnd::Complete;
        let named = self.named(tgid, native);
        let Some((index, ..)) = outermost_gpu_call(&named, is_complete) else { return Placement::Outside };
        let caller = addresses.get(index + 1).copied().zip(slots.get(index + 1).copied().flatten());
        match caller {
            Some((return_address, slot)) if is_complete => Placement::In(CallPlace { return_address, slot }),
            _ => Placement::Unclear,
        }
    }

    fn named(&mut self, tgid: Tgid, native: &NativeStack) -> Vec<Vec<Frame>> {
        let addresses = native.unwound.addresses.iter().enumerate();
        addresses.map(|(index, address)| self.frames_at(tgid, *address, index == 0)).collect()
    }

    fn frames_at(&mut self, tgid: Tgid, address: u64, is_innermost: bool) -> Vec<Frame> {
        // the innermost frame is at its address, all others are at the call before it
        let behind = if is_innermost { address.wrapping_add(1) } else { address };
        let mut frames = self.unwinder.frames(&mut self.symbols, Path::new(PROC), tgid.0, &[behind]);
        if let Some(frame) = frames.last_mut().filter(|frame| frame.function.is_none())
            && let Some((api, _)) = gpu_api_of(frame.module.as_deref(), None)
        {
            let export = self.unwinder.export_of(Path::new(PROC), tgid.0, behind, api);
            if let Some((function, offset)) = export {
                (frame.function, frame.offset) = (Some(function), offset);
            }
        }
        frames
    }
}

impl NativeStack {
    /// Where the return addresses of its frames are.
    pub(crate) fn return_slots(&self) -> Vec<u64> {
        self.unwound.slots.iter().copied().flatten().collect()
    }

    /// A hash of the frames from this one outwards, and of the variables of this one: those that are in registers, and
    /// its memory. Variables further out may be changed by other threads.
    fn caller_state(&self, from: usize) -> u64 {
        let Stack { addresses, slots, .. } = &self.unwound;
        let frames = (addresses.get(from..), slots.get(from..));
        hash_of(&(frames, self.preserved.get(from), self.memory.get(from)))
    }
}

/// Hashes of the memory of each frame: from its return address to that of its caller.
fn frame_memory(unwound: &Stack, sp: u64, bytes: &[u8]) -> Vec<Option<u64>> {
    let slot = |index: usize| {
        let offset = unwound.slots.get(index).copied().flatten()?.checked_sub(sp)?;
        usize::try_from(offset).ok()
    };
    let of_frame = |index: usize| bytes.get(slot(index)?..slot(index + 1)?).map(|memory| hash_of(&memory));
    (0..unwound.slots.len()).map(of_frame).collect()
}

/// Puts the return addresses back that return probes have replaced; returns those for which that cannot be done.
pub(crate) fn restore(bytes: &mut [u8], raw: &RawThread) -> Vec<ReplacedReturn> {
    raw_stack::restore(bytes, raw.head.stack_pointer, &raw.head.patch[..], raw.head.patches as usize)
}

/// Reads a further piece of the stack; `false` if there is none, or enough was read.
fn read_more(memory: &dyn Memory, sp: u64, bytes: &mut Vec<u8>) -> bool {
    const PAGE: u64 = 4096;
    if bytes.len() >= MOST_STACK {
        return false;
    }
    let begin = sp.saturating_add(bytes.len() as u64);
    // up to the end of a page, and page by page where a piece crosses the end of the stack
    let rest = (PAGE - begin % PAGE) as usize;
    let more = memory.bytes(begin, PIECE + rest).or_else(|| memory.bytes(begin, rest));
    let is_more = more.is_some();
    bytes.extend(more.unwrap_or_default());
    is_more
}

/// The outermost frame of a GPU library that other code has called. If the stack is incomplete, that code may be
/// missing.
fn outermost_gpu_call(named: &[Vec<Frame>], is_complete: bool) -> Option<(usize, Api, String)> {
    named.iter().enumerate().rev().find_map(|(index, frames)| {
        // inlined functions come first; the exported one is the last
        let frame = frames.last()?;
        let (api, function) = gpu_api_of(frame.module.as_deref(), frame.function.as_deref())?;
        // the threads of a library begin in it, and are not in a call
        let caller = named.get(index + 1).and_then(|frames| frames.last());
        let starts_threads = |caller: &Frame| caller.function.as_deref().is_some_and(is_thread_begin);
        let is_begin = caller.map_or(is_complete, starts_threads);
        let is_known = frame.function.as_deref() == Some(function.as_str());
        (is_known || !is_begin).then_some((index, api, function))
    })
}

/// Functions of the C library that call the first function of a thread.
fn is_thread_begin(function: &str) -> bool {
    matches!(function, "start_thread" | "clone" | "clone3" | "__clone" | "__clone3")
}

fn position(frames: &[Frame], address: Option<u64>) -> usize {
    let is_it = |frame: &Frame| {
        let of = |address: u64| frame.address == address || frame.address == address.wrapping_add(1);
        !frame.python && address.is_some_and(of)
    };
    frames.iter().rposition(is_it).unwrap_or(0)
}

fn incomplete(end: StackEnd, python: Option<&WalkedPython>, frames: &[Frame]) -> Option<String> {
    let native = match end {
        StackEnd::Complete => None,
        StackEnd::TooDeep => Some("there are more native frames than are unwound".to_owned()),
        StackEnd::CopyEnds => Some("the stack is longer than what is read of it".to_owned()),
        StackEnd::NotYet => Some("its files have too much unwind information to read".to_owned()),
        StackEnd::Lost => {
            let last = frames.iter().rfind(|frame| !frame.python).map(ToString::to_string);
            Some(format!("the caller of {} cannot be determined", last.as_deref().unwrap_or("it")))
        }
    };
    let of_python = || {
        let is_cut = python.is_some_and(|python| !python.is_complete);
        is_cut.then(|| "not all Python frames could be read".to_owned())
    };
    native.or_else(of_python)
}

/// The part of a thread's stack that is in use. It ends at the thread control block, if that is on top of the stack:
/// another mapping may have been merged with it above that.
fn used_stack(raw: &RawThread) -> Option<Range<u64>> {
    let (begin, top) = (raw.head.stack_pointer, raw.head.thread_pointer);
    let end = mapped_range(Path::new(PROC), raw.head.tgid, begin)?.end;
    Some(begin..if (begin..end).contains(&top) { top } else { end })
}

fn folder_of(tgid: Tgid) -> PathBuf {
    Path::new(PROC).join(tgid.to_string())
}

pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Shared by the samples that saw the same.
pub(crate) type SharedNative = Arc<NativeStack>;
pub(crate) type SharedPython = Option<Arc<WalkedPython>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, module: &str) -> Vec<Frame> {
        let function = (!function.is_empty()).then(|| function.to_owned());
        vec![Frame { function, module: Some(module.to_owned()), ..Frame::default() }]
    }

    #[test]
    fn the_outermost_call_may_be_the_last_frame_that_could_be_unwound() {
        let found = |frames: &[Vec<Frame>], is_complete| {
            outermost_gpu_call(frames, is_complete).map(|(index, _, function)| (index, function))
        };
        let poll = || frame("poll", "libc.so.6");
        let named = [poll(), frame("cuStreamSynchronize", "libcuda.so.1")];
        let unnamed = [poll(), frame("", "libcuda.so.1")];
        assert_eq!(found(&named, false), Some((1, "cuStreamSynchronize".to_owned())));
        assert_eq!(found(&unnamed, false), Some((1, "libcuda.so.1".to_owned())));
        assert_eq!(found(&unnamed, true), None, "a thread of the library itself");
        let own = [unnamed.to_vec(), vec![frame("start_thread", "libc.so.6")]].concat();
        assert_eq!(found(&own, true), None);
        let nested = [named.to_vec(), vec![frame("cudaStreamSynchronize", "libcudart.so.12")]].concat();
        assert_eq!(found(&nested, false), Some((2, "cudaStreamSynchronize".to_owned())));
        let called = [nested, vec![frame("main", "train")]].concat();
        assert_eq!(found(&called, true), Some((2, "cudaStreamSynchronize".to_owned())));
    }
}
