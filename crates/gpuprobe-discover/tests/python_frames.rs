//! Resolves the Python frames of real interpreters, whose threads wait, and compares with the stacks that the program
//! itself reports.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuprobe_discover::python::{
    Alignment, CodeCache, Interpreter, MergedFrame, NoInterpreter, PythonStack, PythonStackEnd, PythonThread,
    StackToMerge, is_evaluation, merge,
};
use gpuprobe_discover::{Memory, ProcessMemory, Registers, StackEnd, Symbolizer, Unwinder};

const PROC: &str = "/proc";
/// The numbers of the system calls with which versions of Python sleep: select, clock_nanosleep and pselect6.
const SLEEPS: [&str; 3] = ["23", "230", "270"];

/// A function, its file and the current line.
type Line = (String, String, u32);

/// What a thread of the program says about itself.
#[derive(Debug)]
struct Reported {
    native: u32,
    pthread: u64,
    /// The innermost first.
    lines: Vec<Line>,
}

/// A program whose threads all wait.
struct Waiting {
    child: Child,
    threads: BTreeMap<String, Reported>,
}

impl Waiting {
    fn start(mut command: Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a program");
        let mut waiting = Self { child, threads: BTreeMap::new() };
        for line in BufReader::new(waiting.child.stdout.take().unwrap()).lines() {
            let line = line.expect("text");
            if line == "ready" {
                waiting.settle();
                return waiting;
            }
            let mut fields = line.split('\t');
            let mut field = || fields.next().unwrap().to_owned();
            let (name, native, pthread) = (field(), field().parse().unwrap(), field().parse().unwrap());
            let frames: Vec<_> = fields.collect();
            let frames = frames.chunks_exact(3);
            let lines = frames.map(|f| (f[0].to_owned(), f[1].to_owned(), f[2].parse().unwrap())).collect();
            waiting.threads.insert(name, Reported { native, pthread, lines });
        }
        panic!("the program ended early");
    }

    /// A thread reports before it waits: returns when all do.
    fn settle(&self) {
        let start = Instant::now();
        for (name, thread) in &self.threads {
            while !SLEEPS.contains(&self.system_call(thread.native).first().map_or("", String::as_str)) {
                assert!(start.elapsed() < Duration::from_secs(60), "{name} does not wait");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// The system call that a thread waits in: its number, six arguments, stack and instruction pointer. The thread may still
    /// be on its way there.
    fn system_call(&self, native: u32) -> Vec<String> {
        let path = format!("{PROC}/{}/task/{native}/syscall", self.pid());
        loop {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.trim() != "running" {
                return text.split_whitespace().map(str::to_owned).collect();
            }
            sleep(Duration::from_millis(1));
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn memory(&self) -> ProcessMemory {
        ProcessMemory::new(&Path::new(PROC).join(self.pid().to_string()))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// The interpreters of this machine that are supported: in PATH, by version or not, and those of pyenv.
fn interpreters() -> &'static [PathBuf] {
    static FOUND: LazyLock<Vec<PathBuf>> = LazyLock::new(find_interpreters);
    &FOUND
}

fn find_interpreters() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let pyenv = std::fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    folders.extend(pyenv.map(|version| version.path().join("bin")));
    let mut found = BTreeMap::new();
    for folder in folders {
        for name in ["3", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"] {
            let program = folder.join(format!("python{name}"));
            // the real one: pyenv's programs in PATH are scripts
            let code = "import sys; print(sys.executable, *sys.version_info[:2])";
            let output = Command::new(&program).args(["-I", "-c", code]).output();
            let Ok(output) = output else { continue };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let words: Vec<_> = text.split_whitespace().collect();
            let [executable, "3", minor] = words[..] else { continue };
            if minor.parse().is_ok_and(|minor: u8| (9..=14).contains(&minor)) {
                let executable = PathBuf::from(executable);
                found.insert(executable.canonicalize().unwrap(), executable);
            }
        }
    }
    println!("{} interpreters: {:?}", found.len(), found.keys());
    assert!(!found.is_empty(), "no Python from 3.9 to 3.14 in PATH or of pyenv");
    found.into_values().collect()
}

fn waiting(interpreter: &Path) -> Waiting {
    let mut command = Command::new(interpreter);
    command.arg("-I").arg(programs().join("waiting_threads.py"));
    Waiting::start(command)
}

fn resolved(
    stack: &PythonStack,
    interpreter: &Interpreter,
    memory: &dyn Memory,
    cache: &mut CodeCache,
) -> Vec<Line> {
    let line = |frame: &gpuprobe_discover::python::PythonFrame| {
        let code = cache.resolve(memory, &interpreter.offsets, frame.code).expect("a code object");
        let line = code.line_of(frame.instruction_offset).unwrap_or(0);
        (code.function().to_owned(), code.file.clone(), line)
    };
    stack.frames.iter().map(line).collect()
}

#[test]
fn the_frames_of_all_threads_are_those_that_the_program_reports() {
    for program in interpreters() {
        let waiting = waiting(program);
        let interpreter = Interpreter::of_pid(Path::new(PROC), waiting.pid()).unwrap();
        println!("{}: Python {}", program.display(), interpreter.version);
        let (memory, mut cache) = (waiting.memory(), CodeCache::new());
        let kinds = ["async", "generator", "main", "method", "native", "recursion", "unicode"];
        assert_eq!(waiting.threads.keys().collect::<Vec<_>>(), kinds);
        for (name, thread) in &waiting.threads {
            waiting.system_call(thread.native);
            let state = interpreter.thread_state(&memory, PythonThread::Pthread(thread.pthread)).unwrap();
            let stack = interpreter.frames(&memory, state);
            assert_eq!(stack.end, PythonStackEnd::Complete, "{name}");
            assert_eq!(resolved(&stack, &interpreter, &memory, &mut cache), thread.lines, "{name}");
            assert!(stack.frames.last().unwrap().is_entry, "{name}: native code called the outermost");
            // as BPF does it
            assert_eq!(interpreter.thread_state_of_key(&memory, thread.pthread), Some(state), "{name}");
            let by_number = interpreter.stack(&memory, PythonThread::Native(thread.native));
            if interpreter.version.minor >= 11 {
                assert_eq!(by_number, Ok(stack), "{name}");
            } else {
                assert!(by_number.is_err());
            }
        }
    }
}

/// Registers and stack of a thread that waits in a system call. Its frame pointer is not known.
fn copied_stack(waiting: &Waiting, native: u32) -> (Registers, Vec<u8>) {
    let call = waiting.system_call(native);
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let registers = Registers { ip: hex(&call[8]), sp: hex(&call[7]), fp: 0, lr: 0 };
    // as much as there is, up to the end of the stack's mapping
    let whole = (1..64).rev().find_map(|size| waiting.memory().bytes(registers.sp, size << 12));
    (registers, whole.unwrap())
}

/// Functions of the thread `native`, the innermost first, those of C between those of Python. A stripped interpreter
/// does not name its own.
const CALLS: [(&str, bool); 9] = [
    ("wait", true),
    ("<lambda>", true),
    ("functools_reduce", false),
    ("__lt__", true),
    ("slot_tp_richcompare", false),
    ("<lambda>", true),
    ("keyobject_richcompare", false),
    ("list_sort", false),
    ("native", true),
];

#[test]
fn native_and_python_frames_are_merged() {
    for program in interpreters() {
        let waiting = waiting(program);
        let interpreter = Interpreter::of_pid(Path::new(PROC), waiting.pid()).unwrap();
        let (memory, mut cache) = (waiting.memory(), CodeCache::new());
        let (mut unwinder, mut symbolizer) = (Unwinder::new(), Symbolizer::new());
        for (name, thread) in &waiting.threads {
            let (registers, copy) = copied_stack(&waiting, thread.native);
            let native = unwinder.unwind(Path::new(PROC), waiting.pid(), registers, &copy);
            let frames = unwinder.frames(&mut symbolizer, Path::new(PROC), waiting.pid(), &native.addresses);
            let functions: Vec<_> = frames.iter().map(|frame| frame.function.as_deref()).collect();
            let stack = interpreter.stack(&memory, PythonThread::Pthread(thread.pthread)).unwrap();
            let merged = merge(
                StackToMerge { frames: &functions, is_complete: native.end == StackEnd::Complete },
                StackToMerge { frames: &stack.frames, is_complete: stack.end == PythonStackEnd::Complete },
            );
            // only the calls of the recursion may have too many native frames, as each has several up to 3.10
            let expected = match native.end {
                StackEnd::TooDeep if name == "recursion" => Alignment::CutOff,
                _ => Alignment::Exact,
            };
            assert_eq!(merged.alignment, expected, "{} {name}: {functions:?}", interpreter.version);
            let lines = resolved(&stack, &interpreter, &memory, &mut cache);
            let shown: Vec<(&str, bool)> = merged
                .frames
                .iter()
                .map(|frame| match frame {
                    MergedFrame::Native(at) => (functions[*at].unwrap_or_default(), false),
                    MergedFrame::Python(at) => (lines[*at].0.rsplit('.').next().unwrap(), true),
                })
                .collect();
            assert!(!shown.iter().any(|(name, is_python)| !is_python && is_evaluation(name)), "{shown:?}");
            if name == "native" {
                let mut rest = shown.iter();
                let expected =
                    CALLS.iter().filter(|(name, is_python)| *is_python || functions.contains(&Some(name)));
                let found: Vec<_> = expected.map(|call| (call, rest.any(|shown| shown == call))).collect();
                println!("{}: {} of {} calls in order", interpreter.version, found.len(), CALLS.len());
                assert!(found.iter().all(|(_, is_found)| *is_found), "{found:?} {shown:?}");
            }
        }
    }
}

#[test]
fn other_programs_are_not_python() {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let waiting = Waiting { child, threads: BTreeMap::new() };
    let error = loop {
        match Interpreter::of_pid(Path::new(PROC), waiting.pid()).unwrap_err() {
            // not executed yet
            NoInterpreter::Process(_) => {}
            error => break error,
        }
    };
    assert!(matches!(error, NoInterpreter::NotPython), "{error}");
}

#[test]
fn an_interpreter_is_found_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    for program in interpreters() {
        let output = Command::new(program).args(["-I", "-c", "import sys; print(sys.base_prefix)"]).output();
        let home = String::from_utf8(output.unwrap().stdout).unwrap();
        let copy = folder.path().join("app");
        std::fs::copy(program, &copy).unwrap();
        let mut command = Command::new(&copy);
        command.env("PYTHONHOME", home.trim()).arg(programs().join("waiting_threads.py"));
        let waiting = Waiting::start(command);
        let interpreter = Interpreter::of_pid(Path::new(PROC), waiting.pid()).unwrap();
        let thread = PythonThread::Pthread(waiting.threads["main"].pthread);
        let stack = interpreter.stack(&waiting.memory(), thread).unwrap();
        assert_eq!(stack.frames.len(), waiting.threads["main"].lines.len(), "{}", program.display());
    }
}

/// A stripped program with nothing but the section of an interpreter, as one that embeds Python statically.
fn section_only(folder: &Path, version: u32, is_free_threaded: bool) -> Waiting {
    let (source, program) = (folder.join("embeds.c"), folder.join("embeds"));
    let text = format!(
        "#include <stdio.h>\n#include <unistd.h>\n\
         __attribute__((section(\".PyRuntime\"))) unsigned long state[1000] = \
         {{0x7970677562656478ul, {version:#x}, {}}};\n\
         int main(void) {{ puts(\"ready\"); fflush(stdout); for (;;) sleep(state[1] ? 3600 : 1); }}\n",
        u8::from(is_free_threaded)
    );
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-s", "-o"]).args([&program, &source]).status();
    assert!(built.expect("a C compiler").success());
    Waiting::start(Command::new(&program))
}

#[test]
fn a_stripped_interpreter_is_found_by_its_section_and_unsupported_ones_are_named() {
    let why = |version, is_free_threaded| {
        let folder = tempfile::tempdir().unwrap();
        let waiting = section_only(folder.path(), version, is_free_threaded);
        Interpreter::of_pid(Path::new(PROC), waiting.pid()).unwrap_err().to_string()
    };
    assert_eq!(why(0x030f_00f0, false), "Python 3.15 is not supported; 3.9 to 3.14 are");
    assert_eq!(why(0x030d_00f0, true), "free-threaded builds of Python are not supported");
    assert_eq!(why(0x030e_00a5, false), "Python 3.14.0 is a pre-release, whose structures are not known");
}
