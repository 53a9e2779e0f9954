//! Disturbs daemons, recorders, libraries and the disk while the programs run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use gpuprobe_event::LossCause;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::disk::Disk;
use super::programs::{Commanded, Running, lines};
use super::table::Count;
use super::watcher::Look;
use super::{Chaos, Numbers};
use crate::metrics::Daemon;
use crate::process::{PATIENCE, Talk, finish, gpuprobe, shown};
use crate::{Recording, Run};

const NO_SPACE: &str = "No space left on device";

/// Replaces libraries until the end.
pub fn replace_libraries(chaos: &Chaos) {
    let mut numbers = Numbers::new(chaos.plan.seed, 1);
    while !chaos.is_finished() {
        chaos.rest(numbers.time(500, 2500));
        chaos.stage.replace_library(numbers.below(3));
        chaos.totals.add(Count::LibrariesReplaced, 1);
    }
}

/// Starts and stops a second daemon until the end.
pub fn restart_daemons(chaos: &Chaos) {
    let mut numbers = Numbers::new(chaos.plan.seed, 2);
    let library = shown(chaos.stage.library());
    while !chaos.is_finished() {
        let mut daemon = Daemon::displaying(
            3600,
            &["--max-series-processes", "4096", "--max-exited", "4096", "-p", &library],
        );
        let ready = Instant::now();
        chaos.rest(numbers.time(0, 8000));
        if numbers.below(2) == 0 {
            daemon.talk.signal(Signal::SIGKILL);
            daemon.talk.end();
            chaos.totals.add(Count::DaemonsKilled, 1);
            continue;
        }
        compare_with_ledgers(chaos, &daemon, ready);
        daemon.talk.signal(Signal::SIGTERM);
        let status = daemon.talk.end();
        chaos.totals.add(Count::DaemonsTerminated, 1);
        if status != 0 {
            chaos
                .wrong(format!("a daemon that was terminated ended with {status}: {}", daemon.talk.stderr()));
        }
    }
}

/// Compares the counters of a daemon with the programs that started after it and have exited.
fn compare_with_ledgers(chaos: &Chaos, daemon: &Daemon, ready: Instant) {
    let entries = chaos.ledgers.between(ready, Instant::now());
    let begun = Instant::now();
    loop {
        let look = Look::of(daemon, Instant::now());
        let differs = entries.iter().find(|entry| look.calls(entry) != entry.calls);
        let Some(entry) = differs else { break };
        if begun.elapsed() > PATIENCE {
            chaos.wrong(format!("a restarted daemon counted {:?} of {entry:?}", look.calls(entry)));
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    chaos.totals.add(Count::ChecksByRestarted, entries.len() as u64);
}

/// Records programs to the small disk, fills it, and kills recorders, until the end.
pub fn record_to_disk(chaos: &Chaos, commanded: &Commanded<'_>, disk: &Disk, running: &Running) {
    let mut numbers = Numbers::new(chaos.plan.seed, 3);
    for step in 0_u64.. {
        chaos.rest(numbers.time(0, 400));
        if chaos.is_finished() {
            return;
        }
        match step % 8 {
            0 | 3 | 6 => run_to(commanded, disk.path(), numbers.below(1000)),
            1 | 5 => kill_run(commanded, disk.path(), &mut numbers),
            2 => {
                disk.fill();
                chaos.totals.add(Count::DisksFilled, 1);
            }
            4 => record(chaos, disk.path(), &mut numbers, running),
            _ => disk.free(),
        }
        stop_and_continue(chaos, &mut numbers, running);
    }
}

/// A command under `run`: it ends as it would without gpuprobe, even if its trace cannot be written.
fn run_to(commanded: &Commanded<'_>, folder: &Path, seed: u64) {
    let (chaos, trace, begun) = (commanded.chaos, folder.join("run.jsonl"), Instant::now());
    chaos.totals.add(Count::Started, 1);
    chaos.totals.add(Count::Runs, 1);
    let words = commanded.words(seed);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let run = Run::new(&commanded.program).options(&["-e", "*"]).args(&words);
    let finished = finish(&mut run.command(&trace));
    let printed = finished.json();
    let Some(entry) = commanded.check(seed, &printed, begun) else {
        chaos.wrong(format!("`run` ended with {}: {}", finished.status, finished.stderr));
        return;
    };
    let is_cut = finished.stderr.contains(NO_SPACE);
    if finished.status != i32::from(is_cut) {
        chaos.wrong(format!("`run` ended with {}: {}", finished.status, finished.stderr));
    }
    if is_cut {
        chaos.totals.add(Count::TracesCut, 1);
        return;
    }
    let trace = Recording::read(&trace);
    let lost = trace.end.as_ref().map(|end| end.lost.clone()).unwrap_or_default();
    // stopped before the disk was full
    if lost.contains_key(LossCause::DiskFull.as_str()) {
        chaos.totals.add(Count::TracesCut, 1);
        return;
    }
    let lost: u64 = lost.get(LossCause::RingFull.as_str()).copied().unwrap_or_default();
    let (reported, made) =
        (trace.of(entry.pid).count() as u64 + lost, printed.last().map_or(0, Commanded::all_calls));
    if reported != made {
        chaos.wrong(format!("a trace has {reported} calls with those that are lost, and {made} were made"));
    }
    chaos.totals.add(Count::TracesWhole, 1);
}

/// Kills `run` while its command waits for a line: the command continues.
fn kill_run(commanded: &Commanded<'_>, folder: &Path, numbers: &mut Numbers) {
    let (chaos, seed, begun) = (commanded.chaos, numbers.below(1000), Instant::now());
    chaos.totals.add(Count::Started, 1);
    let words = commanded.words(seed);
    let words: Vec<_> = ["--wait"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let run = Run::new(&commanded.program).args(&words);
    let mut talk = Talk::start(&mut run.command(&folder.join("killed.jsonl")));
    talk.line();
    let delay = numbers.time(0, 60);
    let is_first = numbers.below(2) == 0;
    // before its first call, or in the middle of its calls
    if !is_first {
        talk.go_on();
        std::thread::sleep(delay);
    }
    talk.signal(Signal::SIGKILL);
    if is_first {
        talk.go_on();
    }
    talk.end();
    commanded.check(seed, &lines(&mut talk), begun);
    chaos.totals.add(Count::RunsKilled, 1);
}

/// Records a running program briefly.
fn record(chaos: &Chaos, folder: &Path, numbers: &mut Numbers, running: &Running) {
    let chosen = choose(numbers, &running.lock().unwrap_or_else(PoisonError::into_inner));
    let Some(pid) = chosen else { return };
    let trace = shown(folder.join("record.jsonl"));
    let words = ["record", "-d", &pid.to_string(), "--duration", "0.5", "-o", &trace];
    let finished = finish(&mut gpuprobe(&words));
    let is_cut = finished.stderr.contains(NO_SPACE);
    // it may have exited before the recorder began
    let is_gone = finished.stderr.contains("no process");
    if finished.status != i32::from(is_cut || is_gone) {
        chaos.wrong(format!("`record` ended with {}: {}", finished.status, finished.stderr));
    }
    chaos.totals.add(Count::Records, 1);
}

/// Stops and continues a program.
fn stop_and_continue(chaos: &Chaos, numbers: &mut Numbers, running: &Running) {
    let time = numbers.time(0, 100);
    // a program is removed from this map right after its exit, long before its pid is reused
    let processes = running.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(pid) = choose(numbers, &processes) else { return };
    let pid = Pid::from_raw(pid.cast_signed());
    if kill(pid, Signal::SIGSTOP).is_ok() {
        std::thread::sleep(time);
        kill(pid, Signal::SIGCONT).ok();
        chaos.totals.add(Count::Stopped, 1);
    }
}

fn choose(numbers: &mut Numbers, running: &BTreeMap<usize, u32>) -> Option<u32> {
    let index = numbers.below(running.len() as u64);
    running.values().nth(usize::try_from(index).ok()?).copied()
}
