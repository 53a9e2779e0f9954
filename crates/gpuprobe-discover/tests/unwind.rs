//! Stacks of real programs, unwound from what a probe in them would see and compared with what the programs say.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpuprobe_discover::{FRAME_LIMIT, Registers, Stack, StackEnd, Symbolizer, Unwinder};
use gpuprobe_event::Frame;
use tempfile::TempDir;

const PROC: &str = "/proc";
const FAST: &[&str] = &["-O2", "-fomit-frame-pointer"];

/// A built program; the library lies beside it.
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

/// The program with the chains.
fn chains(flags: &[&str]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libmiddle.so");
    // only a program can have a fixed place
    let of_library: Vec<_> = flags.iter().copied().filter(|flag| !flag.ends_with("pie")).collect();
    cc("cc", &[FAST, &of_library, &["-shared", "-fPIC"]].concat(), &["middle.c"], &library);
    let record = folder.path().join("record.o");
    cc("cc", &["-c", "-O2"], &["record.c"], &record);
    let program = folder.path().join("chains");
    let place = format!("-L{}", folder.path().display());
    let record = record.to_str().unwrap();
    let link = [record, &place, "-lmiddle", "-Wl,-rpath,$ORIGIN", "-pthread"];
    cc("cc", &[FAST, flags, &link].concat(), &["chains.c"], &program);
    Built { folder, program }
}

fn strip(built: &Built) {
    for file in [&built.program, &built.folder.path().join("libmiddle.so")] {
        assert!(Command::new("strip").arg(file).status().unwrap().success());
    }
}

/// A program that waits in its probe, and what it wrote there.
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

/// The whole stack is told as libgcc tells it.
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
fn chains_are_told_without_frame_pointers() {
    all_agree(&chains(&["-g"]));
}

#[test]
fn chains_of_stripped_files_are_told() {
    let built = chains(&[]);
    strip(&built);
    all_agree(&built);
}

#[test]
fn chains_of_a_program_at_fixed_addresses_are_told() {
    all_agree(&chains(&["-no-pie", "-fno-pie"]));
}

#[test]
fn chains_of_unoptimised_code_and_code_with_frame_pointers_are_told() {
    all_agree(&chains(&["-O0"]));
    all_agree(&chains(&["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]));
}

/// The innermost frames are what the functions noted of themselves; 0 stands for one that nobody could note.
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
fn debug_information_helps_where_nothing_else_is() {
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
fn generated_code_is_passed_by_its_frame_pointer() {
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
fn a_stack_is_told_up_to_the_limit_and_up_to_the_end_of_its_copy() {
    let built = chains(&[]);
    let deep = Waiting::start(&built.program, "deep");
    let stack = deep.unwind(&mut Unwinder::new());
    assert_eq!((&stack.addresses[..], stack.end), (&deep.chain[..FRAME_LIMIT], StackEnd::TooDeep));

    let waiting = Waiting::start(&built.program, "stacked");
    assert_eq!(waiting.stack.len(), 32 << 10);
    let stack = waiting.unwind(&mut Unwinder::new());
    assert_eq!(stack.end, StackEnd::CopyEnds);
    // leaf, and ten frames of 3 KB and a little in 32 KiB
    assert_eq!(stack.addresses, waiting.chain[..stack.addresses.len()]);
    assert_eq!(stack.addresses.len(), 12);
}

#[test]
fn every_shorter_copy_gives_the_beginning() {
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

/// Functions, files and lines of the frames of the program itself.
fn own(frames: &[Frame]) -> Vec<(&str, Option<u32>, bool)> {
    let own = frames.iter().filter(|frame| frame.module.as_deref() == Some("chains"));
    own.map(|frame| (frame.function.as_deref().unwrap_or("?"), frame.line, frame.inlined)).collect()
}

/// The line of the program's source that has this text.
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
    assert_eq!(own(&frames)[..5], [leaf, recursion, recursion, recursion, main]);
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
fn functions_within_functions_are_frames() {
    let built = chains(&["-g"]);
    let waiting = Waiting::start(&built.program, "inlined");
    let mut unwinder = Unwinder::new();
    let stack = waiting.unwind(&mut unwinder);
    assert_eq!(stack.addresses, waiting.chain);
    let frames = waiting.frames(&mut unwinder, &stack.addresses);
    let inner = ("within", line("chains.c", "int result = probe();"), true);
    let outer = ("around", line("chains.c", "within(value);"), false);
    let main = ("main", line("chains.c", "around(1)"), false);
    assert_eq!(own(&frames)[..3], [inner, outer, main]);
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
    assert_eq!(own(&frames)[..15], [("?", None, false); 15]);
    // in place of a distance from a function, the address in the file, where the compiler put `recurse`
    assert_eq!(frames[2].offset, frames[3].offset, "the same call of the same function");
    assert_eq!(frames[1].offset & 0xfff, frames[1].address & 0xfff);
}

#[test]
fn templates_are_named_as_they_are_written() {
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
fn a_process_that_has_ended_is_told_from_what_was_known() {
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
    assert_eq!(waiting.unwind(&mut too_late), first, "the file of the first frame is gone");
    assert_eq!(waiting.frames(&mut too_late, &first.addresses)[0].module.as_deref(), Some("chains"));
    used.forget(waiting.pid());
    for unwinder in [&mut used, &mut late] {
        assert_eq!(waiting.unwind(unwinder), first);
        let frames = waiting.frames(unwinder, &first.addresses);
        assert_eq!(frames, [Frame { address: first.addresses[0], ..Frame::default() }]);
    }
}
