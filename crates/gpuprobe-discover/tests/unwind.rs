//! Unwinds stacks of real programs from the data that a probe in them would see, and compares with the stacks that
//! the programs report.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpuprobe_discover::{FRAME_LIMIT, Registers, Stack, StackEnd, Symbolizer, Unwinder};
use gpuprobe_event::Frame;
use tempfile::TempDir;

const PROC: &str = "/proc";
const FAST: &[&str] = &["-O2", "-fomit-frame-pointer"];

/// A compiled program with its library in the same directory.
struct Built {
    folder: TempDir,
    program: PathBuf,
}

fn cc(compiler: &str, arguments: &[&str], sources: &[&str], output: &Path) {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let built = Command::new(compiler)
        .args(sources.iter().map(|source| programs.join(source)))
        .args(arguments)
        .arg("-o")
        .arg(output)
        .status();
    assert!(built.expect("a C compiler").success(), "{compiler} {arguments:?} {sources:?}");
}

/// Builds the program with the call chains.
fn chains(flags: &[&str]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libmiddle.so");
    // only a program can have a fixed address
    let of_library: Vec<_> = flags.iter().copied().filter(|flag| !flag.ends_with("pie")).collect();
    cc("cc", &[FAST, &of_library, &["-shared", "-fPIC"]].concat(), &["middle.c"], &library);
    let record = folder.path().join("record.o");
    cc("cc", &["-c", "-O2"], &["record.c"], &record);
    let program = folder.path().join("chains");
    let search_path = format!("-L{}", folder.path().display());
    let record = record.to_str().unwrap();
    let link = [record, &search_path, "-lmiddle", "-Wl,-rpath,$ORIGIN", "-pthread"];
    cc("cc", &[FAST, flags, &link].concat(), &["chains.c"], &program);
    Built { folder, program }
}

fn strip(built: &Built) {
    for file in [&built.program, &built.folder.path().join("libmiddle.so")] {
        assert!(Command::new("strip").arg(file).status().unwrap().success());
    }
}

/// A program that waits in its probe, and what it printed there.
struct Waiting {
    child: Child,
    registers: Registers,
    stack: Vec<u8>,
    chain: Vec<u64>,
    labels: Vec<u64>,
}

impl Waiting {
    fn start(program: &Path, kind: &str) -> Self {
        let mut command = Command::new(program);
        let child = command.arg(kind).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut words = |name: &str| -> Vec<String> {
            let line = lines.next().expect("a line").expect("text");
            let mut words = line.split(' ').map(str::to_owned);
            assert_eq!(words.next().as_deref(), Some(name));
            words.collect()
        };
        let numbers = |words: Vec<String>| -> Vec<u64> {
            words.iter().map(|word| u64::from_str_radix(word, 16).unwrap()).collect()
        };
        let registers = numbers(words("registers"));
        let stack = words("stack").remove(0);
        let byte = |at: usize| u8::from_str_radix(&stack[at..at + 2], 16).unwrap();
        let stack = (0..stack.len()).step_by(2).map(byte).collect();
        let (chain, labels) = (numbers(words("chain")), numbers(words("labels")));
        let [ip, sp, fp] = registers[..] else { panic!("three registers") };
        Self { child, registers: Registers { ip, sp, fp, lr: ip }, stack, chain, labels }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn unwind(&self, unwinder: &mut Unwinder) -> Stack {
        unwinder.unwind(Path::new(PROC), self.pid(), self.registers, &self.stack)
    }

    fn frames(&self, unwinder: &mut Unwinder, addresses: &[u64]) -> Vec<Frame> {
        unwinder.frames(&mut Symbolizer::new(), Path::new(PROC), self.pid(), addresses)
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}

/// Checks that the whole stack is unwound as by libgcc.
fn agrees(built: &Built, kind: &str, shortest: usize) {
    let waiting = Waiting::start(&built.program, kind);
    let stack = waiting.unwind(&mut Unwinder::new());
    assert_eq!((&stack.addresses, stack.end), (&waiting.chain, StackEnd::Complete), "{kind}");
    assert!(stack.addresses.len() >= shortest, "{kind}: {} frames", stack.addresses.len());
    assert_eq!(stack.slots.len(), stack.addresses.len(), "{kind}");
    for (slot, address) in stack.slots.iter().zip(&stack.addresses).filter_map(|(s, a)| s.map(|s| (s, a))) {
        let at = usize::try_from(slot - waiting.registers.sp).unwrap();
        assert_eq!(waiting.stack[at..at + 8], address.to_le_bytes(), "{kind}: where it was read");
    }
}

const KINDS: [(&str, usize); 8] = [
    ("recursion", 16),
    ("large_frame", 4),
    ("any_size", 4),
    ("aligned", 4),
    ("library", 8),
    ("callback", 6),
    ("signal", 6),
    ("thread", 6),
];

fn all_agree(built: &Built) {
    for (kind, shortest) in KINDS {
        agrees(built, kind, shortest);
    }
}

#[test]
fn chains_are_unwound_without_frame_pointers() {
    all_agree(&chains(&["-g"]));
}

#[test]
fn chains_of_stripped_files_are_unwound() {
    let built = chains(&[]);
    strip(&built);
    all_agree(&built);
}

#[test]
fn chains_of_a_program_at_fixed_addresses_are_unwound() {
    all_agree(&chains(&["-no-pie", "-fno-pie"]));
}

#[test]
fn chains_of_unoptimised_code_and_code_with_frame_pointers_are_unwound() {
    all_agree(&chains(&["-O0"]));
    all_agree(&chains(&["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]));
}

/// Checks the innermost frames against the return addresses that the functions recorded; 0 means that none was
/// recorded.
fn follows_labels(waiting: &Waiting) -> Stack {
    let stack = waiting.unwind(&mut Unwinder::new());
    assert!(stack.addresses.len() > waiting.labels.len(), "main has callers");
    for (address, label) in stack.addresses.iter().zip(&waiting.labels) {
        assert!(address == label || *label == 0, "{:x?} {:x?}", stack.addresses, waiting.labels);
    }
    assert_eq!(stack.end, StackEnd::Complete);
    stack
}

#[test]
fn debug_frame_is_used_if_there_is_no_eh_frame() {
    let built = chains(&["-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]);
    for kind in ["recursion", "large_frame"] {
        let waiting = Waiting::start(&built.program, kind);
        assert!(waiting.chain.len() < waiting.labels.len(), "libgcc reads no .debug_frame");
        follows_labels(&waiting);
    }
}

#[test]
fn a_section_without_a_search_table_is_read_whole() {
    let built = chains(&["-Wl,--no-eh-frame-hdr"]);
    for kind in ["recursion", "large_frame"] {
        follows_labels(&Waiting::start(&built.program, kind));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn generated_code_is_unwound_by_its_frame_pointer() {
    let built = chains(&[]);
    let mut waiting = Waiting::start(&built.program, "generated");
    let mut unwinder = Unwinder::new();
    let stack = follows_labels(&waiting);
    let names = |frames: &[Frame]| -> Vec<Option<String>> {
        frames.iter().take(4).map(|frame| frame.function.clone()).collect()
    };
    let frames = waiting.frames(&mut unwinder, &stack.addresses);
    let expected = [Some("leaf"), None, Some("generated"), Some("main")].map(|name| name.map(str::to_owned));
    assert_eq!(names(&frames), expected);
    assert_eq!(frames[1].module, None);
    waiting.end();
}

#[test]
fn a_stack_ends_at_the_frame_limit_or_at_the_end_of_its_copy() {
    let built = chains(&[]);
    let deep = Waiting::start(&built.program, "deep");
    let stack = deep.unwind(&mut Unwinder::new());
    assert_eq!((&stack.addresses[..], stack.end), (&deep.chain[..FRAME_LIMIT], StackEnd::TooDeep));

    let waiting = Waiting::start(&built.program, "stacked");
    assert_eq!(waiting.stack.len(), 32 << 10);
    let stack = waiting.unwind(&mut Unwinder::new());
    assert_eq!(stack.end, StackEnd::CopyEnds);
    // leaf, and ten frames of slightly over 3 KB in 32 KiB
    assert_eq!(stack.addresses, waiting.chain[..stack.addresses.len()]);
    assert_eq!(stack.addresses.len(), 12);
}

#[test]
fn a_shorter_copy_gives_the_innermost_frames() {
    let built = chains(&[]);
    let waiting = Waiting::start(&built.program, "callback");
    let mut unwinder = Unwinder::new();
    let whole = waiting.unwind(&mut unwinder);
    let mut longest = 0;
    for size in 0..waiting.stack.len() {
        let proc = Path::new(PROC);
        let stack = unwinder.unwind(proc, waiting.pid(), waiting.registers, &waiting.stack[..size]);
        assert!(whole.addresses.starts_with(&stack.addresses), "{size}");
        assert!(stack.addresses.len() >= longest, "{size}");
        longest = stack.addresses.len();
        let expected = if longest == whole.addresses.len() { whole.end } else { StackEnd::CopyEnds };
        assert_eq!(stack.end, expected, "{size}");
        if stack == whole {
            break;
        }
    }
    assert_eq!(longest, whole.addresses.len());
}

/// Functions and lines of the frames of the program itself.
fn program_frames(frames: &[Frame]) -> Vec<(&str, Option<u32>, bool)> {
    let program_frames = frames.iter().filter(|frame| frame.module.as_deref() == Some("chains"));
    program_frames
        .map(|frame| (frame.function.as_deref().unwrap_or("?"), frame.line, frame.inlined))
        .collect()
}

/// The number of the source line that contains this text.
fn line(source: &str, text: &str) -> Option<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let source = std::fs::read_to_string(path).unwrap();
    let found: Vec<_> = source.lines().enumerate().filter(|(_, line)| line.contains(text)).collect();
    assert_eq!(found.len(), 1, "{text}");
    Some(found[0].0 as u32 + 1)
}

#[test]
fn frames_have_names_and_lines() {
    let built = chains(&["-g"]);
    let waiting = Waiting::start(&built.program, "library");
    let mut unwinder = Unwinder::new();
    let stack = waiting.unwind(&mut unwinder);
    let frames = waiting.frames(&mut unwinder, &stack.addresses);
    assert_eq!(frames.iter().map(|frame| frame.address).collect::<Vec<_>>(), stack.addresses);
    let recursion = ("recurse", line("chains.c", "recurse(depth - 1)"), false);
    let main = ("main", line("chains.c", "middle(recurse, 2)"), false);
    let leaf = ("leaf", line("chains.c", "DONE(probe() + value)"), false);
    assert_eq!(program_frames(&frames)[..5], [leaf, recursion, recursion, recursion, main]);
    let modules: Vec<_> = frames.iter().take(7).map(|frame| frame.module.as_deref().unwrap()).collect();
    let (program, library) = ("chains", "libmiddle.so");
    assert_eq!(modules, [program, program, program, program, library, library, program]);
    let names: Vec<_> = frames[4..6].iter().map(|frame| frame.function.as_deref().unwrap()).collect();
    assert_eq!(names, ["hidden", "middle"]);
    assert!(frames[4].file.as_deref().unwrap().ends_with("tests/programs/middle.c"));
    assert!(frames[0].offset > 0 && frames[0].offset < 100, "{}", frames[0].offset);
    assert_eq!(frames[2].offset, frames[3].offset, "the same call of the same function");
    assert!(frames[7].module.as_deref().unwrap().starts_with("libc"), "{:?}", frames[7]);
}

#[test]
fn inlined_functions_are_frames() {
    let built = chains(&["-g"]);
    let waiting = Waiting::start(&built.program, "inlined");
    let mut unwinder = Unwinder::new();
    let stack = waiting.unwind(&mut unwinder);
    assert_eq!(stack.addresses, waiting.chain);
    let frames = waiting.frames(&mut unwinder, &stack.addresses);
    let inner = ("within", line("chains.c", "int result = probe();"), true);
    let outer = ("around", line("chains.c", "within(value);"), false);
    let main = ("main", line("chains.c", "around(1)"), false);
    assert_eq!(program_frames(&frames)[..3], [inner, outer, main]);
    assert_eq!(frames[0].address, frames[1].address);
    assert_eq!(frames.len(), stack.addresses.len() + 1);
}

#[test]
fn stripped_files_have_frames_without_names() {
    let built = chains(&["-g"]);
    strip(&built);
    let waiting = Waiting::start(&built.program, "recursion");
    let mut unwinder = Unwinder::new();
    let stack = waiting.unwind(&mut unwinder);
    let frames = waiting.frames(&mut unwinder, &stack.addresses);
    assert_eq!(program_frames(&frames)[..15], [("?", None, false); 15]);
    // without a known function the offset is the address in the file
    assert_eq!(frames[2].offset, frames[3].offset, "the same call of the same function");
    assert_eq!(frames[1].offset & 0xfff, frames[1].address & 0xfff);
}

#[test]
fn template_names_are_demangled() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record.o");
    cc("cc", &["-c", "-O2"], &["record.c"], &record);
    let program = folder.path().join("templates");
    cc("c++", &[FAST, &["-std=c++17", record.to_str().unwrap()]].concat(), &["templates.cpp"], &program);
    let waiting = Waiting::start(&program, "");
    let mut unwinder = Unwinder::new();
    let stack = waiting.unwind(&mut unwinder);
    assert_eq!((&stack.addresses, stack.end), (&waiting.chain, StackEnd::Complete));
    let frames = waiting.frames(&mut unwinder, &stack.addresses);
    let names: Vec<_> = frames.iter().take(4).map(|frame| frame.function.as_deref().unwrap()).collect();
    assert_eq!(
        names,
        [
            "gpu::Buffer<std::pair<int, float> >::fill(std::pair<int, float>)",
            "main::{lambda(int)#1}::operator()(int) const",
            "int gpu::apply<main::{lambda(int)#1}>(main::{lambda(int)#1})",
            "main",
        ]
    );
}

#[test]
fn an_exited_process_is_unwound_from_cached_data() {
    let built = chains(&["-g"]);
    let mut waiting = Waiting::start(&built.program, "library");
    let [mut used, mut observed, mut too_late, mut late] = [(); 4].map(|()| Unwinder::new());
    let stack = waiting.unwind(&mut used);
    let frames = waiting.frames(&mut used, &stack.addresses);
    observed.observe(Path::new(PROC), waiting.pid());
    too_late.observe(Path::new(PROC), waiting.pid());
    waiting.end();

    assert_eq!(waiting.unwind(&mut used), stack);
    assert_eq!(waiting.frames(&mut used, &stack.addresses), frames, "the files are still there");
    assert_eq!(waiting.unwind(&mut observed), stack);
    std::fs::remove_file(&built.program).unwrap();
    let nameless = waiting.frames(&mut observed, &stack.addresses);
    assert_eq!(nameless[0].module.as_deref(), Some("chains"));
    assert_eq!((nameless[0].address, &nameless[0].function), (stack.addresses[0], &None));
    assert_eq!(nameless[4].function.as_deref(), Some("hidden"), "the library is still there");

    let first = Stack { addresses: vec![stack.addresses[0]], slots: vec![None], end: StackEnd::Lost };
    assert_eq!(waiting.unwind(&mut too_late), first, "the file of the first frame was removed");
    assert_eq!(waiting.frames(&mut too_late, &first.addresses)[0].module.as_deref(), Some("chains"));
    used.forget(waiting.pid());
    for unwinder in [&mut used, &mut late] {
        assert_eq!(waiting.unwind(unwinder), first);
        let frames = waiting.frames(unwinder, &first.addresses);
        assert_eq!(frames, [Frame { address: first.addresses[0], ..Frame::default() }]);
    }
}
