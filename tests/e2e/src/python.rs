//! Python programs: the interpreters of this host, the scripts in `python/`, and their ledgers. A ledger has the stack
//! and the bytes of every allocation, as the script itself saw them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use gpuprobe_event::Frame;
use gpuprobe_standin::{Cuda, Library};
use serde_json::Value;

use crate::process::{PATIENCE, Run, Talk, shown, until};
use crate::recording::{Recording, number, pid_of};
use crate::{fixtures, needs, site_ledger, tiers};

/// Paths of interpreters to test as well, separated by colons.
const MORE: &str = "GPUPROBE_PYTHONS";
/// The minor versions whose frames are known.
const VERSIONS: std::ops::RangeInclusive<u8> = 9..=14;
/// The folder of the module that the scripts allocate with: the frames inside it are not the user's own code.
const PACKAGES: &str = "/site-packages/";
/// The frame that stands for Python frames that were not walked, and one that could not be read.
pub const CUT: &str = "... (Python)";
pub const UNKNOWN: &str = "unknown (Python)";
/// The functions that the scripts call, for tiers on which every function is expensive.
pub const FUNCTIONS: [&str; 2] = ["cudaMalloc", "cuMemAlloc_v2"];

/// An interpreter of this host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Python {
    pub minor: u8,
    pub path: PathBuf,
}

/// All interpreters of this host with a known version, by version: those that `GPUPROBE_PYTHONS` names, those in PATH,
/// and those of pyenv. Prints which versions there are not.
pub fn all() -> &'static [Python] {
    static FOUND: LazyLock<Vec<Python>> = LazyLock::new(find);
    &FOUND
}

/// The interpreters to test on a tier: all on the best tier, and on others only the oldest and the newest, because the
/// frames are walked in the same way on all of them.
pub fn on_tier(tier: &str) -> Vec<&'static Python> {
    let all = all();
    if tier == tiers::best() {
        all.iter().collect()
    } else {
        all.first().into_iter().chain(all.last()).collect()
    }
}

/// The newest interpreter.
pub fn newest() -> &'static Python {
    all().last().unwrap_or_else(|| panic!("no Python from 3.{VERSIONS:?}"))
}

fn find() -> Vec<Python> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let pyenv = std::fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    folders.extend(pyenv.map(|version| version.path().join("bin")));
    let names = || VERSIONS.map(|minor| format!("python3.{minor}")).chain(["python3".to_owned()]);
    let mut programs: Vec<PathBuf> =
        folders.iter().flat_map(|folder| names().map(|name| folder.join(name))).collect();
    programs.extend(std::env::split_paths(&std::env::var_os(MORE).unwrap_or_default()));
    // by their files: several names may be links to one
    let found: BTreeMap<PathBuf, Python> = programs.iter().filter_map(|program| python(program)).collect();
    let mut found: Vec<Python> = found.into_values().collect();
    found.sort();
    for minor in VERSIONS.filter(|minor| !found.iter().any(|python| python.minor == *minor)) {
        needs::missing(&format!("python3.{minor}"), &format!("there is no Python 3.{minor}"));
    }
    assert!(!found.is_empty(), "no Python of a known version in PATH, of pyenv or in {MORE}");
    println!("interpreters: {found:?}");
    found
}

/// The interpreter that a program starts, with its file. pyenv's programs in PATH are scripts.
fn python(program: &Path) -> Option<(PathBuf, Python)> {
    let code = "import sys; print(sys.executable, *sys.version_info[:2])";
    let output = Command::new(program).args(["-I", "-c", code]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let words: Vec<_> = text.split_whitespace().collect();
    let [executable, "3", minor] = words[..] else { return None };
    let minor = minor.parse().ok().filter(|minor| VERSIONS.contains(minor))?;
    let path = PathBuf::from(executable);
    Some((path.canonicalize().ok()?, Python { minor, path }))
}

/// The stand-in runtime that the scripts load.
pub fn runtime() -> PathBuf {
    fixtures::standins(Cuda::Cuda12).library(Library::Runtime(Cuda::Cuda12))
}

/// The path of one of the scripts.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

/// The arguments of an interpreter that runs one of the scripts with a stand-in library. No bytecode is written next to it.
pub fn arguments(script: &str, library: &Path, args: &[&str]) -> Vec<String> {
    let own = ["-I".to_owned(), "-B".to_owned(), shown(self::script(script)), shown(library)];
    own.into_iter().chain(args.iter().map(|arg| (*arg).to_owned())).collect()
}

impl Python {
    /// Records a script that prints one ledger.
    pub fn recorded(&self, tier: &str, script: &str, args: &[&str]) -> (PythonLedger, Recording) {
        let (printed, trace) = recorded(&self.run(tier, script, args), 1);
        (PythonLedger::of(&printed[0]), trace)
    }

    /// `gpuprobe run` of a script.
    pub fn run(&self, tier: &str, script: &str, args: &[&str]) -> Run {
        println!("{}, {script} {args:?}, {tier}", self.path.display());
        let arguments = arguments(script, &runtime(), args);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Run::new(&self.path).options(&tiers::options(tier, &FUNCTIONS)).args(&arguments)
    }

    /// Starts a script that waits for a line before its first call. Returns it with its pid.
    pub fn waiting(&self, environment: &[&str], script: &str, args: &[&str]) -> (Talk, u32) {
        println!("{}, {script} {args:?}", self.path.display());
        // set by `env`, because some variables are removed from the environment of what is started here
        let mut command = Command::new("env");
        command.args(environment).arg(&self.path).args(arguments(script, &runtime(), args));
        let mut talk = Talk::start(&mut command);
        let ready = talk.json();
        assert_eq!(ready["ready"], true, "{ready}");
        (talk, pid_of(&ready))
    }
}

/// Runs a program that prints so many ledgers, and waits for a line after each. It may go on when the trace has all
/// calls of the ledger: the names of Python functions can be read only while the process exists.
pub fn recorded(run: &Run, ledgers: usize) -> (Vec<Value>, Recording) {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    let mut talk = Talk::start(&mut run.command(&trace));
    let mut printed = Vec::new();
    while printed.len() < ledgers {
        let line = talk.json();
        if line["ready"] != true {
            let rows = line["rows"].as_array().map(|rows| rows.len() as u64);
            let calls = rows.unwrap_or_else(|| number(&line["allocations"]));
            let pid = format!("\"pid\":{},", pid_of(&line));
            until(PATIENCE, "the trace has all calls of the process", || {
                let text = std::fs::read_to_string(&trace).unwrap_or_default();
                // each allocation of the runtime is one of the driver
                let is_one = |line: &&str| line.contains("\"cuMemAlloc_v2\"") && line.contains(&pid);
                let written = text.lines().filter(is_one).count() as u64;
                (written >= calls || talk.has_exited()).then_some(())
            });
            printed.push(line);
        }
        talk.go_on();
    }
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    (printed, Recording::read(&trace))
}

/// The line of a Python frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    pub function: String,
    pub file: String,
    pub line: u32,
}

impl Line {
    /// The line of a frame of a stack; `None` if it is native, or has no line.
    fn of_frame(frame: &str) -> Option<Self> {
        let Frame { function, file, line, python, .. } = Frame::of_text(frame);
        python.then_some(Self { function: function?, file: file?, line: line? })
    }

    fn of_ledger(frame: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {frame}")).to_owned();
        let line = u32::try_from(number(&frame[2])).unwrap_or_else(|e| panic!("{frame}: {e}"));
        Self { function: text(&frame[0]), file: text(&frame[1]), line }
    }

    fn is_of_package(&self) -> bool {
        self.file.contains(PACKAGES)
    }
}

/// The lines of the Python frames of a stack, innermost first.
pub fn lines(stack: &[String]) -> Vec<Line> {
    stack.iter().filter_map(|frame| Line::of_frame(frame)).collect()
}

/// The lines from the innermost frame of the user's own code on: `memory` shows no others.
pub fn own_lines(lines: &[Line]) -> Vec<Line> {
    lines.iter().skip_while(|line| line.is_of_package()).cloned().collect()
}

/// Number and bytes of allocations.
pub type Amount = (u64, u64);

/// Amounts by the stack of Python frames, innermost first.
pub type ByStack = BTreeMap<Vec<Line>, Amount>;

/// One allocation of a script.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Innermost first.
    pub stack: Vec<Line>,
    pub bytes: u64,
    pub failed: bool,
}

/// The ledger that a script printed.
#[derive(Clone, Debug)]
pub struct PythonLedger {
    pub pid: u32,
    pub allocations: Vec<Allocation>,
}

impl PythonLedger {
    pub fn of(printed: &Value) -> Self {
        let list = |value: &Value| value.as_array().unwrap_or_else(|| panic!("no list: {value}")).clone();
        let allocation = |row: &Value| Allocation {
            stack: list(&row["stack"]).iter().map(Line::of_ledger).collect(),
            bytes: number(&row["bytes"]),
            failed: row["failed"] == true,
        };
        Self { pid: pid_of(printed), allocations: list(&printed["rows"]).iter().map(allocation).collect() }
    }

    pub fn by_stack(&self) -> ByStack {
        self.by(<[Line]>::to_vec)
    }

    pub fn by_own_lines(&self) -> ByStack {
        self.by(own_lines)
    }

    fn by(&self, key: impl Fn(&[Line]) -> Vec<Line>) -> ByStack {
        let mut sums = ByStack::new();
        self.allocations.iter().for_each(|row| add(&mut sums, key(&row.stack), (1, row.bytes)));
        sums
    }

    /// The sum of all allocations.
    pub fn sum(&self) -> Amount {
        (self.allocations.len() as u64, self.allocations.iter().map(|row| row.bytes).sum())
    }
}

fn add(sums: &mut ByStack, stack: Vec<Line>, (count, bytes): Amount) {
    let sum = sums.entry(stack).or_default();
    *sum = (sum.0 + count, sum.1 + bytes);
}

/// An allocation of a trace: its whole stack, and its bytes.
#[derive(Debug)]
pub struct Traced {
    /// Innermost first; empty if it is not known.
    pub stack: Vec<String>,
    pub bytes: u64,
}

/// The allocations of a process in a trace, each with the stack of its call site.
pub fn traced(trace: &Recording, pid: u32) -> Vec<Traced> {
    let mut stacks: HashMap<_, &[String]> = HashMap::new();
    for call in trace.of(pid) {
        if let Some((site, stack)) = call.effect.site().zip(call.stack.as_deref()) {
            stacks.insert(site, stack);
        }
    }
    let allocations = trace.of(pid).filter_map(|call| Some((call, call.effect.size()?)));
    allocations
        .map(|(call, bytes)| {
            let stack = call.effect.site().and_then(|site| stacks.get(&site).copied());
            Traced { stack: stack.unwrap_or_default().to_vec(), bytes }
        })
        .collect()
}

/// The sums of a trace.
pub fn by_stack(traced: &[Traced]) -> ByStack {
    let mut sums = ByStack::new();
    traced.iter().for_each(|call| add(&mut sums, lines(&call.stack), (1, call.bytes)));
    sums
}

/// The live memory in a report of `gpuprobe memory --json`, by the lines of the user's own code.
pub fn reported(report: &Value, pid: u32) -> ByStack {
    let mut sums = ByStack::new();
    for site in site_ledger::reported(report, pid).0 {
        let live = (site.figures.live, site.figures.live_bytes);
        add(&mut sums, own_lines(&lines(&site.stack)), live);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_python_frames_that_have_one() {
        let stack = [
            "f(int) (a.cc:3)",
            "Größe.f (/a/b.py:7)",
            UNKNOWN,
            "f (Python a.py)",
            "<module> (Python <string>:3)",
            CUT,
            "main+0x10 (python3)",
        ];
        let lines = lines(&stack.map(str::to_owned));
        let lines: Vec<_> = lines.iter().map(|line| (line.function.as_str(), line.line)).collect();
        assert_eq!(lines, [("Größe.f", 7), ("<module>", 3)]);
    }

    #[test]
    fn frames_of_packages_are_left_out_only_at_the_inner_end() {
        let stack = ["leak (/x/site-packages/a.py:1)", "g (b.py:2)", "h (/x/site-packages/a.py:3)"];
        let all = lines(&stack.map(str::to_owned));
        assert_eq!(own_lines(&all), all[1..]);
    }
}
