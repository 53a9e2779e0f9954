//! Python frames of stacks: reads the names and lines of what the BPF programs walked, and joins them with the native
//! frames.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use gpuprobe_discover::ProcessMemory;
use gpuprobe_discover::python::{
    CodeCache, EntryMark, InstructionKind, Interpreter, MergedFrame, PythonFrame, StackToMerge,
    UNKNOWN_INSTRUCTION, merge,
};
use gpuprobe_event::{Frame, Tgid};

use crate::wire::{from_bytes, gp_python, gp_python_record, number};

const PROC: &str = "/proc";
/// An offset that the version of Python does not have; `GP_NO_OFFSET` of the header.
const NO_OFFSET: u8 = 255;

/// The Python frames of one stack, innermost first, with the function, file and line of each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PythonStack {
    frames: Vec<(PythonKey, Frame)>,
    is_complete: bool,
}

/// A frame as it is compared: its code, its instruction, and whether the evaluation began with it.
type PythonKey = (u64, i32, bool);

impl PythonStack {
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
        merged.frames.into_iter().filter_map(frame).collect()
    }
}

fn python_frame((code, instruction_offset, is_entry): PythonKey) -> PythonFrame {
    PythonFrame { code, instruction_offset, is_entry }
}

/// The interpreters of processes.
#[derive(Debug, Default)]
pub(crate) struct Pythons {
    processes: HashMap<Tgid, Python>,
    /// Interpreters that the BPF programs do not know yet.
    new: Vec<(Tgid, gp_python)>,
}

#[derive(Debug)]
struct Python {
    interpreter: Interpreter,
    codes: CodeCache,
}

impl Pythons {
    /// Looks for the interpreter of a process.
    pub(crate) fn observe(&mut self, tgid: Tgid) {
        if self.processes.contains_key(&tgid) {
            return;
        }
        // TODO: report why there is none, if the process runs Python
        if let Ok(interpreter) = Interpreter::of_pid(Path::new(PROC), tgid.0) {
            self.new.extend(offsets_for_bpf(&interpreter).map(|offsets| (tgid, offsets)));
            self.processes.insert(tgid, Python { interpreter, codes: CodeCache::new() });
        }
    }

    pub(crate) fn take_new(&mut self) -> Vec<(Tgid, gp_python)> {
        std::mem::take(&mut self.new)
    }

    pub(crate) fn forget(&mut self, tgid: Tgid) {
        self.processes.remove(&tgid);
    }

    /// Reads names and lines. This must be soon: code objects are freed.
    pub(crate) fn resolve(&mut self, raw: &gp_python_record) -> Option<PythonStack> {
        let python = self.processes.get_mut(&Tgid(raw.tgid))?;
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
            let found = python.codes.resolve(&memory, &offsets, code);
            let frame = found.map_or_else(
                |_| Frame { address: code, function: Some("(Python)".to_owned()), ..Frame::default() },
                |found| Frame {
                    address: code,
                    function: Some(found.function().to_owned()),
                    file: Some(found.file.clone()),
                    line: found.line_of(instruction_offset),
                    ..Frame::default()
                },
            );
            frames.push(((code, instruction_offset, is_entry), frame));
        }
        Some(PythonStack { frames, is_complete: raw.end == number::PYTHON_COMPLETE })
    }
}

fn folder_of(tgid: Tgid) -> PathBuf {
    Path::new(PROC).join(tgid.to_string())
}

/// The offsets as the BPF programs read them. `None` if one does not fit there.
fn offsets_for_bpf(interpreter: &Interpreter) -> Option<gp_python> {
    let offsets = &interpreter.offsets;
    let (thread, frame) = (&offsets.thread, &offsets.frame);
    let byte =
        |offset: u32| u8::try_from(offset).ok().filter(|at| usize::from(*at) < number::PYTHON_FRAME_BYTES);
    let (has_instruction_pointer, every) =
        (frame.instruction_kind == InstructionKind::Pointer, frame.entry == EntryMark::Every);
    Some(gp_python {
        thread_key: interpreter.runtime_address.checked_add(offsets.runtime.thread_key?.into())?,
        code_tag: frame.code_tag,
        thread_frame: u16::try_from(thread.frame).ok()?,
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
        every_is_entry: u32::from(every),
        reserved: 0,
    })
}

/// Python frames whose stacks have not come yet.
#[derive(Debug, Default)]
pub(crate) struct WaitingPython(VecDeque<(u16, u64, PythonStack)>);

impl WaitingPython {
    /// More than there are threads between a record and the stack that follows it.
    const MAX: usize = 256;

    pub(crate) fn add(&mut self, stack_kind: u16, id: u64, stack: PythonStack) {
        if self.0.len() >= Self::MAX {
            self.0.pop_front();
        }
        self.0.push_back((stack_kind, id, stack));
    }

    pub(crate) fn take(&mut self, stack_kind: u16, id: u64) -> Option<PythonStack> {
        let at = self.0.iter().rposition(|(kind, of, _)| (*kind, *of) == (stack_kind, id))?;
        self.0.remove(at).map(|(.., stack)| stack)
    }
}

/// A record of the ring.
pub(crate) fn python_record(bytes: &[u8]) -> gp_python_record {
    from_bytes(bytes)
}
