//! The programs. Each slot runs one program after the other until the end.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::ledgers::Entry;
use super::table::Count;
use super::{Chaos, Numbers, SHIFTING, SHIFTING_NAME};
use crate::process::{PATIENCE, Talk, finish, shown};
use crate::recording::number;

/// The number of different ledgers. The output of each is known from a run without gpuprobe.
const SEEDS: u64 = 8;
const CALLS: u64 = 1200;
/// With several threads, one thread frees what another allocated: only the sums are known beforehand.
const THREADS: u64 = 4;
/// Names of programs whose libraries are not replaced, and of others. A daemon sums up exited processes by name, for
/// a limited number of names.
const STEADY_NAMES: usize = 8;
const SHIFTING_NAMES: usize = 4;
const KILLED: i32 = 128 + Signal::SIGKILL as i32;

/// The output of ledgers without gpuprobe, by seed.
#[derive(Debug)]
pub struct Expected(HashMap<u64, Vec<Value>>);

impl Expected {
    /// Runs every ledger once. Must be called before a daemon runs.
    pub fn of(program: &Path) -> Self {
        let run = |seed| {
            let words = words(seed, 1, Some(Duration::from_millis(1)));
            let finished = finish(Command::new(program).args(words));
            assert_eq!(finished.status, 0, "{}", finished.stderr);
            (seed, finished.json().into_iter().map(|line| without_pid(&line)).collect())
        };
        Self((0..SEEDS).map(run).collect())
    }

    /// Whether a ledger printed the expected snapshot at the pause and the expected sums at the end.
    fn fits(&self, seed: u64, threads: u64, printed: &[Value]) -> bool {
        if threads > 1 {
            return printed.last().is_some_and(|last| last["total_calls"] == CALLS);
        }
        let expected = self.0.get(&seed).map(Vec::as_slice).unwrap_or_default();
        let printed: Vec<_> = printed.iter().map(without_pid).collect();
        expected.starts_with(&printed) || expected.ends_with(&printed)
    }
}

fn without_pid(line: &Value) -> Value {
    let mut line = line.clone();
    if let Some(fields) = line.as_object_mut() {
        fields.remove("pid");
    }
    line
}

/// The arguments of a ledger, with a pause in the middle or without one.
fn words(seed: u64, threads: u64, pause: Option<Duration>) -> Vec<String> {
    let mut words: Vec<String> =
        ["--calls", &CALLS.to_string(), "--seed", &seed.to_string()].map(str::to_owned).into();
    words.extend(["--threads".to_owned(), threads.to_string()]);
    if let Some(pause) = pause {
        words.extend(["--pauses", "1", "--hold", &format!("{:.3}", pause.as_secs_f64())].map(str::to_owned));
    }
    words
}

/// The process of each slot whose libraries are not replaced: other threads may stop or record it.
pub type Running = Mutex<BTreeMap<usize, u32>>;

/// Runs one program after the other.
#[derive(Debug)]
pub struct Slot<'c> {
    chaos: &'c Chaos,
    expected: &'c Expected,
    numbers: Numbers,
    number: usize,
    /// The names of its processes, and of those that fork.
    name: String,
    family: String,
    program: PathBuf,
    forker: PathBuf,
    script: PathBuf,
    /// Its libraries are replaced: calls before the probes are attached are missed.
    is_shifting: bool,
    running: &'c Running,
}

impl<'c> Slot<'c> {
    pub fn new(chaos: &'c Chaos, expected: &'c Expected, running: &'c Running, number: usize) -> Self {
        let (stage, is_shifting) = (&chaos.stage, number < SHIFTING);
        let (folder, kind, names) = match is_shifting {
            true => (stage.shifting(), SHIFTING_NAME, SHIFTING_NAMES),
            false => (stage.steady(), "chx", STEADY_NAMES),
        };
        let (name, family) = (format!("{kind}{}", number % names), format!("{kind}f"));
        let program = stage.program(&folder, "ledger", &name);
        let forker = stage.program(&folder, "forker", &family);
        let script = folder.join(format!("{kind}{number}.sh"));
        let line = words(number as u64 % SEEDS, 1, None).join(" ");
        fs::write(&script, format!("#!/bin/sh\nexec {} {line}\n", shown(&program)))
            .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
            .unwrap_or_else(|e| panic!("{}: {e}", script.display()));
        let numbers = Numbers::new(chaos.plan.seed, 1000 + number as u64);
        Self { chaos, expected, numbers, number, name, family, program, forker, script, is_shifting, running }
    }

    /// Whether the calls of processes of this name are counted from the first one.
    pub fn is_exact(name: &str) -> bool {
        !name.starts_with(SHIFTING_NAME)
    }

    pub fn run(&mut self) {
        while !self.chaos.is_finished() {
            match self.numbers.below(20) {
                0..10 => self.whole(),
                10..17 => self.killed(),
                17 | 18 => self.forked(),
                _ => self.family(),
            }
        }
    }

    fn count(&self, count: Count, n: u64) {
        self.chaos.totals.add(count, n);
    }

    fn wrong(&self, what: &str) {
        self.chaos.wrong(format!("{}: {what}", self.name));
    }

    fn whole(&mut self) {
        let (seed, pause) = (self.numbers.below(SEEDS), self.numbers.time(300, 5000));
        let threads = if self.numbers.below(4) == 0 { THREADS } else { 1 };
        let begun = Instant::now();
        self.count(Count::Started, 1);
        let mut talk = Talk::start(Command::new(&self.program).args(words(seed, threads, Some(pause))));
        self.note_running(Some(talk.pid()));
        let status = talk.end();
        self.note_running(None);
        self.finished(seed, threads, status, &mut talk, begun, 2);
    }

    /// A ledger that is killed in its pause, with live memory and without an open call.
    fn killed(&mut self) {
        let (seed, begun) = (self.numbers.below(SEEDS), Instant::now());
        self.count(Count::Started, 1);
        let mut talk = Talk::start(Command::new(&self.program).args(words(seed, 1, Some(2 * PATIENCE))));
        let snapshot = talk.json();
        if !self.expected.fits(seed, 1, std::slice::from_ref(&snapshot)) {
            self.count(Count::OutputDiffers, 1);
            self.wrong(&format!("at its pause it printed {snapshot}"));
        }
        self.compare_live(&Entry::of_ledger(&self.name, &snapshot, begun));
        std::thread::sleep(self.numbers.time(0, 300));
        talk.signal(Signal::SIGKILL);
        let status = talk.end();
        if status == KILLED {
            self.count(Count::Killed, 1);
        } else {
            self.count(Count::Died, 1);
            self.wrong(&format!("it ended with {status} before it was killed: {}", talk.stderr()));
        }
        self.note_ledger(&snapshot, begun);
    }

    /// Two ledgers that a shell starts; the shell executes the second one itself.
    fn forked(&mut self) {
        let (seed, begun) = (self.numbers.below(SEEDS), Instant::now());
        let line = format!("{} {}", shown(&self.program), words(seed, 1, None).join(" "));
        self.count(Count::Started, 2);
        self.count(Count::Forked, 1);
        self.count(Count::Executed, 1);
        // the second starts after the first has exited, so that their lines are not mixed
        let mut talk =
            Talk::start(Command::new("sh").args(["-c", &format!("{line} & wait $! || exit; exec {line}")]));
        let status = talk.end();
        self.finished(seed, 1, status, &mut talk, begun, 2);
    }

    /// A parent with children, one of which makes calls and then executes a ledger.
    fn family(&mut self) {
        const CHILDREN: u64 = 3;
        let begun = Instant::now();
        self.count(Count::Started, CHILDREN + 2);
        self.count(Count::Forked, CHILDREN);
        self.count(Count::Executed, 1);
        let mut talk = Talk::start(Command::new(&self.forker).arg(CHILDREN.to_string()).arg(&self.script));
        let status = talk.end();
        let printed = lines(&mut talk);
        let (ledgers, family): (Vec<_>, Vec<_>) =
            printed.into_iter().partition(|line| line.get("ledger").is_some());
        if status != 0 || ledgers.len() != 1 || family.len() as u64 != CHILDREN + 1 {
            self.count(Count::Died, 1);
            self.wrong(&format!("a family ended with {status}: {family:?} {ledgers:?} {}", talk.stderr()));
            return;
        }
        self.count(Count::Finished, CHILDREN + 2);
        // children have mapped nothing themselves: a daemon counts only their parent as late
        self.note(family.iter().map(|line| Entry::of_forker(&self.family, line, begun)).collect());
        ledgers.iter().for_each(|line| self.note_ledger(line, begun));
    }

    /// Checks ledgers that must have exited with status 0 and printed exactly `number` lines.
    fn finished(&self, seed: u64, threads: u64, status: i32, talk: &mut Talk, begun: Instant, number: usize) {
        let printed = lines(talk);
        let finals: Vec<_> = printed.iter().filter(|line| line["ledger"] == "final").cloned().collect();
        if status != 0 || finals.is_empty() {
            self.count(Count::Died, 1);
            self.wrong(&format!("it ended with {status}: {printed:?} {}", talk.stderr()));
            return;
        }
        self.count(Count::Finished, finals.len() as u64);
        let is_forked = finals.len() > 1;
        let fits = match is_forked {
            true => finals.iter().all(|line| self.expected.fits(seed, threads, std::slice::from_ref(line))),
            false => self.expected.fits(seed, threads, &printed),
        };
        if !fits || printed.len() != number {
            self.count(Count::OutputDiffers, 1);
            self.wrong(&format!("with seed {seed} and {threads} threads it printed {printed:?}"));
        }
        finals.iter().for_each(|line| self.note_ledger(line, begun));
    }

    /// Compares the live memory of a paused ledger.
    fn compare_live(&self, entry: &Entry) {
        self.count(Count::LiveChecked, 1);
        if !self.is_shifting {
            if let Err(reported) = self.chaos.watcher.until_live(entry, PATIENCE) {
                self.wrong(&format!("{reported} bytes are shown as live of {}: {entry:?}", entry.live_bytes));
            }
            return;
        }
        // Memory allocated before the probes were attached is not known. The daemon must never show more than is
        // live.
        let reported = self.chaos.watcher.after(Instant::now()).live(&entry.name, entry.pid);
        if reported > entry.live_bytes {
            self.wrong(&format!("{reported} bytes are shown as live, more than is live: {entry:?}"));
        }
    }

    /// Adds the ledgers of exited processes of which one mapped the libraries. They are compared at the end of the
    /// test.
    fn note(&self, entries: Vec<Entry>) {
        self.count(Count::CallsMade, entries.iter().flat_map(|entry| entry.calls.values()).sum());
        if self.is_shifting {
            self.chaos.ledgers.add_shifting(entries);
        } else {
            entries.iter().for_each(|entry| self.chaos.ledgers.add(entry));
        }
    }

    fn note_ledger(&self, line: &Value, begun: Instant) {
        self.note(vec![Entry::of_ledger(&self.name, line, begun)]);
    }

    fn note_running(&self, pid: Option<u32>) {
        let mut running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match pid {
            Some(pid) if !self.is_shifting => running.insert(self.number, pid),
            _ => running.remove(&self.number),
        };
    }
}

/// All JSON lines that a program prints until its exit.
pub fn lines(talk: &mut Talk) -> Vec<Value> {
    let parse = |line: &String| serde_json::from_str(line).ok();
    talk.rest().iter().filter_map(parse).collect()
}

/// A command under gpuprobe with its expected output: a ledger that no slot runs.
#[derive(Debug)]
pub struct Commanded<'c> {
    pub chaos: &'c Chaos,
    pub expected: &'c Expected,
    pub name: &'static str,
    pub program: PathBuf,
}

impl Commanded<'_> {
    pub fn words(&self, seed: u64) -> Vec<String> {
        words(seed % SEEDS, 1, Some(Duration::from_millis(50)))
    }

    /// Checks its output. Returns its ledger, or `None` if the output is wrong.
    pub fn check(&self, seed: u64, printed: &[Value], begun: Instant) -> Option<Entry> {
        let fits = self.expected.fits(seed % SEEDS, 1, printed) && printed.len() == 2;
        if !fits {
            self.chaos.totals.add(Count::OutputDiffers, 1);
            self.chaos.wrong(format!("{}: with seed {} it printed {printed:?}", self.name, seed % SEEDS));
            return None;
        }
        self.chaos.totals.add(Count::Finished, 1);
        let entry = Entry::of_ledger(self.name, printed.last()?, begun);
        self.chaos.totals.add(Count::CallsMade, entry.calls.values().sum());
        self.chaos.ledgers.add(&entry);
        Some(entry)
    }

    /// The number of calls of a ledger, including inner calls.
    pub fn all_calls(printed: &Value) -> u64 {
        let inner: u64 =
            printed["driver_calls"].as_object().into_iter().flatten().map(|(_, n)| number(n)).sum();
        number(&printed["total_calls"]) + inner
    }
}
