//! Python frames of stacks: reads the names and lines of what the BPF programs walked, and joins them with the native
//! frames.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpuprobe_discover::ProcessMemory;
use gpuprobe_discover::python::{
    CodeCache, CodeObject, EntryMark, InstructionKind, Interpreter, InterpreterSearch, MergedFrame,
    NoInterpreter, PythonFrame, PythonStackEnd, StackToMerge, StateInUse, UNKNOWN_INSTRUCTION, merge,
};
use gpuprobe_event::{Frame, Tgid};

use crate::stacks::resolver::Program;
use crate::wire::{gp_python, gp_python_record, number};

const PROC: &str = "/proc";
/// An offset that the version of Python does not have; `GP_NO_OFFSET` of the header.
const NO_OFFSET: u8 = 255;

/// Stands for Python frames that were not walked.
const MORE_FRAMES: &str = "...";

/// The Python frames of one stack, innermost first, with the function, file and line of each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PythonStack {
    frames: Vec<(PythonKey, Frame)>,
    is_complete: bool,
}

/// A frame as it is compared: its code, its instruction, and whether the evaluation began with it.
type PythonKey = (u64, i32, bool);

impl PythonStack {
    /// Reads the names and lines of frames that were walked from outside.
    pub(crate) fn of_walk(
        walked: &gpuprobe_discover::python::PythonStack,
        mut resolve: impl FnMut(u64) -> Option<Arc<CodeObject>>,
    ) -> Self {
        let named = |frame: &PythonFrame| {
            let key = (frame.code, frame.instruction_offset, frame.is_entry);
            (key, named_frame(key, resolve(frame.code).as_deref()))
        };
        let frames = walked.frames.iter().map(named).collect();
        Self { frames, is_complete: walked.end == PythonStackEnd::Complete }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The stack of native and Python frames.
    pub(crate) fn merged(&self, native: &[Frame], is_native_complete: bool) -> Vec<Frame> {
        let functions: Vec<_> = native.iter().map(|frame| frame.function.as_deref()).collect();
        let frames: Vec<_> = self.frames.iter().map(|(key, _)| python_frame(*key)).collect();
        let merged = merge(
            StackToMerge { frames: &functions, is_complete: is_native_complete },
            StackToMerge { frames: &frames, is_complete: self.is_complete },
        );
        let frame = |of: MergedFrame| match of {
            MergedFrame::Native(at) => native.get(at).cloned(),
            MergedFrame::Python(at) => self.frames.get(at).map(|(_, frame)| frame.clone()),
        };
        let mut frames: Vec<Frame> = merged.frames.into_iter().filter_map(frame).collect();
        let last = frames.iter().rposition(|frame| frame.python).filter(|_| !self.is_complete);
        if let Some(last) = last {
            let more = Frame { function: Some(MORE_FRAMES.to_owned()), python: true, ..Frame::default() };
            frames.insert(last + 1, more);
        }
        frames
    }
}

/// A stack as it is shown: with its Python frames, and, if it was cut off, with what its thread is known to be.
pub(crate) fn shown_frames(
    mut native: Vec<Frame>,
    is_complete: bool,
    is_autograd: bool,
    python: Option<&PythonStack>,
) -> Vec<Frame> {
    if let Some(python) = python {
        return python.merged(&native, is_complete);
    }
    if is_autograd && !is_complete {
        native.push(Frame::of_autograd_thread());
    }
    native
}

fn python_frame((code, instruction_offset, is_entry): PythonKey) -> PythonFrame {
    PythonFrame { code, instruction_offset, is_entry }
}

/// The frame with its names; without them if the code object could not be read.
fn named_frame((code, instruction_offset, _): PythonKey, found: Option<&CodeObject>) -> Frame {
    let unknown = Frame { address: code, python: true, ..Frame::default() };
    match found {
        Some(found) => Frame {
            function: Some(found.function().to_owned()),
            file: Some(found.file.clone()),
            line: found.line_of(instruction_offset),
            ..unknown
        },
        None => unknown,
    }
}

/// The interpreters of processes.
#[derive(Debug, Default)]
pub(crate) struct Pythons {
    search: InterpreterSearch,
    processes: HashMap<Tgid, Python>,
    /// Why the Python frames of these processes cannot be read.
    unsupported: HashMap<Tgid, String>,
    changes: PythonChanges,
    /// Frames that could not be read: their memory was not there any more, or never was.
    unread: u64,
}

/// What changed since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct PythonChanges {
    /// What the BPF programs need to know: `None` for a process without an interpreter.
    pub(crate) interpreters: Vec<(Tgid, Option<gp_python>)>,
    /// Processes whose Python frames cannot be read, and why.
    pub(crate) unsupported: Vec<(Tgid, String)>,
}

#[derive(Debug)]
struct Python {
    interpreter: Interpreter,
    codes: CodeCache,
}

impl Pythons {
    /// Looks for the interpreter of a process. If it is already known, only a new program is searched again.
    pub(crate) fn observe(&mut self, tgid: Tgid, program: Program) {
        if program == Program::Same && self.processes.contains_key(&tgid) {
            return;
        }
        let found = self.search.find(Path::new(PROC), tgid.0).map(|found| (found, offsets_for_bpf(&found)));
        let problem = match found {
            Ok((interpreter, Some(offsets))) => {
                let known = self.processes.get(&tgid);
                if known.is_none_or(|known| known.interpreter != interpreter) {
                    self.changes.interpreters.push((tgid, Some(offsets)));
                    self.processes.insert(tgid, Python { interpreter, codes: CodeCache::new() });
                }
                return;
            }
            Ok((interpreter, None)) => NoInterpreter::NoOffsets(interpreter.version).to_string(),
            Err(NoInterpreter::NotPython) => return self.remove(tgid),
            // it has exited: frames that were walked before are shown without names, and counted
            Err(NoInterpreter::Process(_)) => return,
            Err(problem) => problem.to_string(),
        };
        self.remove(tgid);
        if self.unsupported.get(&tgid) != Some(&problem) {
            self.unsupported.insert(tgid, problem.clone());
            self.changes.unsupported.push((tgid, problem));
        }
    }

    pub(crate) fn take_changes(&mut self) -> PythonChanges {
        std::mem::take(&mut self.changes)
    }

    /// Forgets an exited process.
    pub(crate) fn forget(&mut self, tgid: Tgid) {
        self.remove(tgid);
        self.unsupported.remove(&tgid);
    }

    fn remove(&mut self, tgid: Tgid) {
        if self.processes.remove(&tgid).is_some() {
            self.changes.interpreters.push((tgid, None));
        }
    }

    /// Whether a process has an interpreter.
    pub(crate) fn has_any(&self) -> bool {
        !self.processes.is_empty()
    }

    pub(crate) fn count_unread(&mut self, frames: u64) {
        self.unread += frames;
    }

    /// Frames that could not be read.
    pub(crate) fn unread(&self) -> u64 {
        self.unread
    }

    /// Reads names and lines. This must be soon: code objects are freed.
    pub(crate) fn resolve(&mut self, raw: &gp_python_record) -> Option<PythonStack> {
        let tgid = Tgid(raw.tgid);
        if !self.processes.contains_key(&tgid) {
            // a forked process may allocate before its fork has been reported
            self.observe(tgid, Program::MaybeNew);
        }
        let Some(python) = self.processes.get_mut(&tgid) else {
            // it executed another program, or has exited
            self.unread += u64::from(raw.frames);
            return None;
        };
        let memory = ProcessMemory::new(&folder_of(Tgid(raw.tgid)));
        let offsets = python.interpreter.offsets;
        let mut frames = Vec::new();
        for walked in raw.frame.iter().take(usize::from(raw.frames)) {
            let (code, is_entry) = (walked.code & !1, walked.code & 1 == 1);
            let instruction_offset = match offsets.frame.instruction_kind {
                InstructionKind::Index { unit } => {
                    (walked.instruction as u32).cast_signed().saturating_mul(i32::from(unit))
                }
                InstructionKind::Pointer => {
                    let begin = code.wrapping_add(offsets.code.instructions?.into());
                    let offset = walked.instruction.wrapping_sub(begin).cast_signed();
                    i32::try_from(offset).ok().filter(|offset| *offset >= -2).unwrap_or(UNKNOWN_INSTRUCTION)
                }
            };
            let found = python.codes.resolve_seen(&memory, &offsets, code, walked.fingerprint);
            self.unread += u64::from(found.is_err());
            let key = (code, instruction_offset, is_entry);
            frames.push((key, named_frame(key, found.ok().as_deref())));
        }
        self.unread += u64::from(raw.end == number::PYTHON_LOST);
        Some(PythonStack { frames, is_complete: raw.end == number::PYTHON_COMPLETE })
    }
}

fn folder_of(tgid: Tgid) -> PathBuf {
    Path::new(PROC).join(tgid.to_string())
}

/// The offsets as the BPF programs read them. `None` if one does not fit there.
fn offsets_for_bpf(interpreter: &Interpreter) -> Option<gp_python> {
    let offsets = &interpreter.offsets;
    let (thread, frame, code) = (&offsets.thread, &offsets.frame, &offsets.code);
    let byte =
        |offset: u32| u8::try_from(offset).ok().filter(|at| usize::from(*at) < number::PYTHON_FRAME_BYTES);
    // the first of the fields in every version, and aligned, so that all words are
    let code_begin = u8::try_from(code.first_line & !7).ok()?;
    let in_code = |offset: u32| byte(offset.checked_sub(code_begin.into())?);
    let (has_instruction_pointer, every) =
        (frame.instruction_kind == InstructionKind::Pointer, frame.entry == EntryMark::Every);
    let in_runtime = |offset: u32| interpreter.runtime_address.checked_add(offset.into());
    let short = |offset: u32| u16::try_from(offset).ok();
    Some(gp_python {
        thread_key: in_runtime(offsets.runtime.thread_key?)?,
        interpreters: match thread.in_use {
            StateInUse::Key => 0,
            StateInUse::CFrame(_) | StateInUse::Unknown => in_runtime(offsets.runtime.first_interpreter)?,
        },
        next_interpreter: short(offsets.runtime.next_interpreter)?,
        first_thread: short(offsets.runtime.first_thread)?,
        c_frame: match thread.in_use {
            StateInUse::CFrame(at) => short(at)?,
            StateInUse::Key | StateInUse::Unknown => 0,
        },
        reserved_offset: 0,
        code_tag: frame.code_tag,
        thread_frame: short(thread.frame)?,
        has_c_frame: u16::from(thread.frame_in_c_frame.is_some()),
        frame_in_c_frame: thread.frame_in_c_frame.unwrap_or(0),
        previous: byte(frame.previous)?,
        code: byte(frame.code)?,
        instruction: byte(frame.instruction)?,
        instruction_bytes: if has_instruction_pointer { 8 } else { 4 },
        owner: frame.owner.map_or(Some(NO_OFFSET), byte)?,
        shim_owners: frame.shim_owners,
        entry_owner: frame.entry_owner.unwrap_or(NO_OFFSET),
        entry_flag: match frame.entry {
            EntryMark::Flag(at) => byte(at)?,
            EntryMark::Every | EntryMark::Shim => NO_OFFSET,
        },
        every_is_entry: u8::from(every),
        code_begin,
        first_line: in_code(code.first_line)?,
        file: in_code(code.file)?,
        name: in_code(code.name)?,
        line_table: in_code(code.line_table)?,
        version: code.version.map_or(Some(NO_OFFSET), in_code)?,
        reserved: 0,
    })
}

#[cfg(test)]
mod tests;
