//! Counters of what happened, and the table printed at the end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The number of faults whose texts are stored.
const MOST_WRONG: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    Started,
    Finished,
    Killed,
    Died,
    OutputDiffers,
    Forked,
    Executed,
    Stopped,
    LibrariesReplaced,
    DaemonsTerminated,
    DaemonsKilled,
    ChecksByRestarted,
    Runs,
    RunsKilled,
    Records,
    DisksFilled,
    TracesCut,
    TracesWhole,
    CallsMade,
    CallsCounted,
    ProgramsShort,
    CallsShort,
    LiveChecked,
}

const ROWS: [(Count, &str); 23] = [
    (Count::Started, "programs started"),
    (Count::Finished, "  finished by themselves"),
    (Count::Killed, "  killed on purpose"),
    (Count::Died, "  died otherwise"),
    (Count::OutputDiffers, "  with different output"),
    (Count::Forked, "  forked by others"),
    (Count::Executed, "  executed by others"),
    (Count::Stopped, "programs stopped and continued"),
    (Count::LibrariesReplaced, "libraries replaced"),
    (Count::DaemonsTerminated, "daemons terminated"),
    (Count::DaemonsKilled, "daemons killed"),
    (Count::ChecksByRestarted, "programs counted exactly by a restarted daemon"),
    (Count::Runs, "commands under `run`"),
    (Count::RunsKilled, "`run` killed, its command went on"),
    (Count::Records, "recordings of running programs"),
    (Count::DisksFilled, "times the disk was filled"),
    (Count::TracesCut, "traces cut by the full disk"),
    (Count::TracesWhole, "traces with every call"),
    (Count::CallsMade, "calls in the ledgers"),
    (Count::CallsCounted, "calls counted by the daemon"),
    (Count::ProgramsShort, "programs with calls before their probes"),
    (Count::CallsShort, "  calls of theirs that are not counted"),
    (Count::LiveChecked, "times that live bytes were compared"),
];

/// The resources of the daemon at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resources {
    pub resident_kilobytes: u64,
    pub descriptors: u64,
    /// Probed libraries that are not part of this test: a daemon watches the whole host.
    pub others: u64,
    /// Processes with counters, running and exited.
    pub processes: u64,
}

/// All counters.
#[derive(Debug, Default)]
pub struct Totals {
    counts: [AtomicU64; ROWS.len()],
    wrong: Mutex<(u64, Vec<String>)>,
    resources: Mutex<Vec<(&'static str, Resources)>>,
    lost: Mutex<BTreeMap<String, u64>>,
}

impl Totals {
    pub fn add(&self, count: Count, n: u64) {
        self.counts[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    pub fn wrong(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.0 += 1;
        if wrong.1.len() < MOST_WRONG {
            eprintln!("chaos: WRONG: {what}");
            wrong.1.push(what);
        }
    }

    /// The number of faults, and the texts of the first ones.
    pub fn faults(&self) -> (u64, Vec<String>) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn note_resources(&self, moment: &'static str, resources: Resources) {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner).push((moment, resources));
    }

    pub fn resources(&self, moment: &str) -> Resources {
        let all = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(name, _)| *name == moment).map(|(_, r)| *r).unwrap_or_default()
    }

    pub fn note_lost(&self, lost: BTreeMap<String, u64>) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = lost;
    }

    pub fn print(&self, seed: u64, seconds: u64) {
        println!("chaos: seed {seed}, {seconds} s, {} programs at a time", super::PROGRAMS);
        for (count, name) in ROWS {
            println!("| {name:<48} | {:>10} |", self.get(count));
        }
        for (cause, n) in
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|(_, n)| **n > 0)
        {
            println!("| {:<48} | {n:>10} |", format!("lost by {cause}"));
        }
        for (moment, taken) in self.resources.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let kilobytes = format!("daemon, {moment}: resident kB");
            println!("| {kilobytes:<48} | {:>10} |", taken.resident_kilobytes);
            println!("| {:<48} | {:>10} |", format!("daemon, {moment}: descriptors"), taken.descriptors);
            let others = format!("daemon, {moment}: libraries of others");
            println!("| {others:<48} | {:>10} |", taken.others);
            println!("| {:<48} | {:>10} |", format!("daemon, {moment}: processes"), taken.processes);
        }
        println!("| {:<48} | {:>10} |", "faults", self.faults().0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_row() {
        for (index, (count, _)) in ROWS.iter().enumerate() {
            assert_eq!(*count as usize, index);
        }
    }
}
