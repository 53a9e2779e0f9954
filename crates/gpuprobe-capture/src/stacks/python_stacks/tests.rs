//! The objects of Python are in the memory of this process, as 3.12 has them.

use gpuprobe_discover::python::{PythonOffsets, PythonVersion};

use super::*;
use crate::wire::{derived, gp_python_frame};

fn interpreter(minor: u8) -> Interpreter {
    let version = PythonVersion { major: 3, minor, micro: None };
    let offsets = PythonOffsets::of(version).unwrap();
    Interpreter { version, runtime_address: 0x5000, offsets }
}

/// Objects that stay where they are.
#[derive(Default)]
struct Objects(Vec<Box<[u64]>>);

impl Objects {
    /// The address of a new object: these words, and room for more.
    fn put(&mut self, words: &[u64]) -> u64 {
        let mut object = words.to_vec();
        object.resize(64.max(words.len() + 8), 0);
        let object = object.into_boxed_slice();
        let address = object.as_ptr() as u64;
        self.0.push(object);
        address
    }

    fn kind(&mut self, name: &[u8; 8]) -> u64 {
        let name = self.put(&[u64::from_le_bytes(*name)]);
        self.put(&[1, 0, 0, name])
    }

    fn text(&mut self, kind: u64, text: &str) -> u64 {
        // compact ASCII with characters of one byte
        let mut words = vec![1, kind, text.len() as u64, 0, 1 << 2 | 1 << 5 | 1 << 6];
        words.extend(text.as_bytes().chunks(8).map(word));
        self.put(&words)
    }
}

/// Up to eight bytes.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Two instructions of the first line and one of the next.
const LINES: [u8; 6] = [0xd1, 0, 0, 0xd8, 0, 0];
const FIRST_LINE: u64 = 7;
/// The number of the code object.
const VERSION: u64 = 55;

/// A code object with its fingerprint.
struct Code {
    address: u64,
    fingerprint: u64,
}

fn code(objects: &mut Objects, function: &str, file: &str) -> Code {
    let [code, text, bytes] =
        [b"code\0\0\0\0", b"str\0\0\0\0\0", b"bytes\0\0\0"].map(|name| objects.kind(name));
    let (name, file) = (objects.text(text, function), objects.text(text, file));
    let table = objects.put(&[1, bytes, LINES.len() as u64, 0, word(&LINES)]);
    let mut words = [0; 24];
    (words[0], words[1], words[8], words[14]) = (1, code, FIRST_LINE << 32, file);
    (words[11], words[15], words[16], words[17]) = (VERSION << 32, name, name, table);
    // as the BPF programs make it
    let mixed = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(derived::SCRAMBLE);
    let fields = [file, name, table, FIRST_LINE, LINES.len() as u64, word(&LINES), 0, 0, VERSION];
    Code { address: objects.put(&words), fingerprint: fields.iter().fold(0, mixed) | 1 }
}

impl Code {
    /// A frame as the BPF programs send it, at so many bytes from the beginning of its instructions.
    fn frame(&self, at: u64, is_entry: bool) -> gp_python_frame {
        gp_python_frame {
            code: self.address | u64::from(is_entry),
            instruction: self.address + 192 + at,
            fingerprint: self.fingerprint,
        }
    }
}

fn record(tgid: u32, end: u16, frames: &[gp_python_frame]) -> gp_python_record {
    let mut record = gp_python_record { end, tgid, frames: frames.len() as u16, ..Default::default() };
    record.frame[..frames.len()].copy_from_slice(frames);
    record
}

/// An interpreter in this process.
fn pythons() -> (Pythons, u32) {
    let (mut pythons, tgid) = (Pythons::default(), std::process::id());
    let python = Python { interpreter: interpreter(12), codes: CodeCache::new() };
    pythons.processes.insert(Tgid(tgid), python);
    (pythons, tgid)
}

fn shown(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(ToString::to_string).collect()
}

fn native(function: &str) -> Frame {
    let (function, module) = (Some(function.to_owned()), Some("python3".to_owned()));
    Frame { function, module, offset: 4, ..Frame::default() }
}

const EVALUATION: &str = "_PyEval_EvalFrameDefault";

#[test]
fn the_offsets_for_bpf_are_those_of_the_version() {
    for minor in 9..=14 {
        let interpreter = interpreter(minor);
        let PythonOffsets { runtime, thread, frame, code, .. } = interpreter.offsets;
        let found = offsets_for_bpf(&interpreter).unwrap();
        assert_eq!(found.thread_key, 0x5000 + u64::from(runtime.thread_key.unwrap()), "3.{minor}");
        let [previous, code_at, instruction] = [found.previous, found.code, found.instruction].map(u32::from);
        assert_eq!([previous, code_at, instruction], [frame.previous, frame.code, frame.instruction]);
        assert_eq!(u32::from(found.thread_frame), thread.frame);
        assert_eq!(
            (found.has_c_frame, found.instruction_bytes),
            (u16::from([11, 12].contains(&minor)), if minor < 11 { 4 } else { 8 })
        );
        assert_eq!(
            (found.every_is_entry, found.entry_flag == NO_OFFSET),
            (u8::from(minor < 11), minor != 11)
        );
        assert_eq!((found.owner == NO_OFFSET, found.entry_owner == NO_OFFSET), (minor < 11, minor < 12));
        let in_code = [found.first_line, found.file, found.name, found.line_table]
            .map(|at| u32::from(found.code_begin) + u32::from(at));
        assert_eq!(in_code, [code.first_line, code.file, code.name, code.line_table], "3.{minor}");
        let version =
            (found.version != NO_OFFSET).then(|| u32::from(found.code_begin) + u32::from(found.version));
        assert_eq!((version, code.version.is_some()), (code.version, minor >= 12));
        // words are read only where they are aligned
        let words = [found.previous, found.code, found.instruction, found.file, found.name, found.line_table];
        assert!(words.iter().all(|at| at % 8 == 0 && usize::from(*at) + 8 <= number::PYTHON_FRAME_BYTES));
    }
}

/// The BPF programs search the states of all interpreters only up to 3.11.
#[test]
fn the_states_of_interpreters_are_where_bpf_reads_them() {
    let of = |minor| offsets_for_bpf(&interpreter(minor)).unwrap();
    assert_eq!([9, 10, 11].map(|minor| of(minor).interpreters), [0x5000 + 32, 0x5000 + 32, 0x5000 + 40]);
    assert_eq!([9, 10, 11].map(|minor| of(minor).c_frame), [0, 48, 56]);
    assert_eq!([12, 13, 14].map(|minor| (of(minor).interpreters, of(minor).c_frame)), [(0, 0); 3]);
    for minor in 9..=11 {
        let PythonOffsets { runtime, thread, .. } = interpreter(minor).offsets;
        // `struct state_links`: previous, next, interpreter
        assert_eq!((thread.next, thread.interpreter), (8, 16), "3.{minor}");
        let found = of(minor);
        let interpreters = [found.next_interpreter, found.first_thread].map(u32::from);
        assert_eq!(interpreters, [runtime.next_interpreter, runtime.first_thread], "3.{minor}");
    }
}

#[test]
fn offsets_that_do_not_fit_are_refused() {
    let refused = |change: fn(&mut Interpreter)| {
        let mut interpreter = interpreter(12);
        change(&mut interpreter);
        offsets_for_bpf(&interpreter).is_none()
    };
    assert!(!refused(|_| ()));
    assert!(refused(|interpreter| interpreter.runtime_address = u64::MAX));
    assert!(refused(|interpreter| interpreter.offsets.runtime.thread_key = None));
    assert!(refused(|interpreter| interpreter.offsets.thread.frame = 1 << 16));
    assert!(refused(|interpreter| interpreter.offsets.frame.previous = 128));
    assert!(refused(|interpreter| interpreter.offsets.frame.code = u32::MAX));
    assert!(refused(|interpreter| interpreter.offsets.frame.owner = Some(300)));
    assert!(refused(|interpreter| interpreter.offsets.frame.entry = EntryMark::Flag(128)));
    assert!(refused(|interpreter| interpreter.offsets.code.first_line = 256));
    // before the first line, where reading begins
    assert!(refused(|interpreter| interpreter.offsets.code.file = 8));
    assert!(refused(|interpreter| interpreter.offsets.code.line_table = 1000));
}

#[test]
fn names_and_lines_are_read_from_memory() {
    let mut objects = Objects::default();
    let (step, main) =
        (code(&mut objects, "Trainer.step", "train.py"), code(&mut objects, "<module>", "main.py"));
    let (mut pythons, tgid) = pythons();
    let frames = [step.frame(4, false), main.frame(0, true)];
    let stack = pythons.resolve(&record(tgid, number::PYTHON_COMPLETE, &frames)).unwrap();
    let frames = stack.merged(&[native("cudaMalloc"), native(EVALUATION), native("main")], true);
    assert_eq!(
        shown(&frames),
        [
            "cudaMalloc+0x4 (python3)",
            "Trainer.step (train.py:8)",
            "<module> (main.py:7)",
            "main+0x4 (python3)"
        ]
    );
    assert_eq!(pythons.unread(), 0);
    // an instruction of other code has no line
    let outside = pythons.resolve(&record(
        tgid,
        number::PYTHON_COMPLETE,
        &[gp_python_frame { instruction: main.address, ..step.frame(0, true) }],
    ));
    let frames = outside.unwrap().merged(&[], true);
    assert_eq!(shown(&frames), ["Trainer.step (Python train.py)"]);
}

#[test]
fn code_that_was_freed_has_no_name_and_is_counted() {
    let mut objects = Objects::default();
    let code = code(&mut objects, "step", "train.py");
    let (mut pythons, tgid) = pythons();
    let other = gp_python_frame { fingerprint: code.fingerprint ^ 2, ..code.frame(0, true) };
    let nowhere = Code { address: 0x10, fingerprint: code.fingerprint }.frame(0, true);
    for (frame, count) in [(other, 1), (nowhere, 2)] {
        let stack = pythons.resolve(&record(tgid, number::PYTHON_COMPLETE, &[frame])).unwrap();
        assert_eq!(shown(&stack.merged(&[], true)), ["unknown (Python)"]);
        assert_eq!(pythons.unread(), count);
    }
    // the walk itself could not read a frame
    pythons.resolve(&record(tgid, number::PYTHON_LOST, &[code.frame(0, true)])).unwrap();
    assert_eq!(pythons.unread(), 3);
}

#[test]
fn frames_that_were_not_walked_are_marked() {
    let mut objects = Objects::default();
    let code = code(&mut objects, "step", "train.py");
    let (mut pythons, tgid) = pythons();
    for (end, more) in [(number::PYTHON_COMPLETE, 0), (number::PYTHON_TOO_DEEP, 1), (number::PYTHON_LOST, 1)]
    {
        let stack = pythons.resolve(&record(tgid, end, &[code.frame(0, true)])).unwrap();
        let frames = shown(&stack.merged(&[native(EVALUATION), native("main")], true));
        let expected = ["step (train.py:7)", "... (Python)", "main+0x4 (python3)"];
        let expected = expected.into_iter().filter(|frame| more == 1 || !frame.starts_with("..."));
        assert_eq!(frames, expected.collect::<Vec<_>>());
    }
}

#[test]
fn only_processes_with_an_interpreter_are_resolved_until_they_are_forgotten() {
    let mut objects = Objects::default();
    let code = code(&mut objects, "step", "train.py");
    let (mut pythons, tgid) = pythons();
    let of = |tgid| record(tgid, number::PYTHON_COMPLETE, &[code.frame(0, true)]);
    assert!(pythons.resolve(&of(tgid)).is_some());
    assert_eq!((pythons.resolve(&of(tgid + 1)), pythons.unread()), (None, 1), "its frame is counted");
    pythons.forget(Tgid(tgid));
    assert_eq!((pythons.resolve(&of(tgid)), pythons.unread()), (None, 2));
    let changes = pythons.take_changes();
    let removed = changes.interpreters.iter().map(|(tgid, python)| (tgid.0, python.is_some()));
    assert_eq!(removed.collect::<Vec<_>>(), [(tgid, false)], "the BPF programs do not walk it any more");
    assert!(pythons.take_changes().interpreters.is_empty());
}

#[test]
fn a_record_that_claims_too_many_frames_is_bounded() {
    let (mut pythons, tgid) = pythons();
    let raw = gp_python_record { tgid, frames: u16::MAX, ..Default::default() };
    let stack = pythons.resolve(&raw).unwrap();
    assert_eq!(stack.frames.len(), number::PYTHON_FRAMES);
}

#[test]
fn a_process_without_python_has_no_interpreter() {
    let mut pythons = Pythons::default();
    let tgid = Tgid(std::process::id());
    for program in [Program::Same, Program::MaybeNew] {
        pythons.observe(tgid, program);
    }
    let changes = pythons.take_changes();
    assert!(changes.interpreters.is_empty() && changes.unsupported.is_empty(), "{changes:?}");
    assert!(pythons.processes.is_empty());
}

/// Its calls may be read after its exit.
#[test]
fn the_interpreter_of_an_exited_process_stays_until_it_is_forgotten() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let tgid = Tgid(child.id());
    let mut pythons = Pythons::default();
    let python = Python { interpreter: interpreter(12), codes: CodeCache::new() };
    pythons.processes.insert(tgid, python);
    // its parent has not waited for it
    let maps = format!("/proc/{tgid}/maps");
    while !std::fs::read(&maps).unwrap().is_empty() {
        std::thread::yield_now();
    }
    pythons.observe(tgid, Program::MaybeNew);
    assert!(pythons.processes.contains_key(&tgid));
    child.wait().unwrap();
    pythons.observe(tgid, Program::MaybeNew);
    assert!(pythons.processes.contains_key(&tgid));
    let raw = gp_python_record { tgid: tgid.0, frames: 2, ..Default::default() };
    let stack = pythons.resolve(&raw).unwrap();
    assert_eq!(shown(&stack.merged(&[], true)), ["unknown (Python)"; 2]);
    assert_eq!(pythons.unread(), 2);
}
