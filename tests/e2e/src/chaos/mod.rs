//! The parts of the chaos test: programs that are started, killed, forked and executed all the time, and threads that
//! disturb their libraries, their disk and their daemons.

pub mod daemons;
pub mod disk;
pub mod ledgers;
pub mod programs;
pub mod table;
pub mod watcher;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpuprobe_standin::{Built, Cuda};
use tempfile::TempDir;

use crate::fixtures;
use crate::process::finish;
use ledgers::Ledgers;
use table::{Resources, Totals};
use watcher::Watcher;

/// The number of programs that run at the same time.
pub const PROGRAMS: usize = 50;
/// The number of those whose libraries are replaced all the time.
pub const SHIFTING: usize = 15;

/// The prefix of the names of programs whose libraries are replaced.
pub const SHIFTING_NAME: &str = "chl";

const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcudart.so.12"];

/// Pseudo-random numbers.
#[derive(Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Each part of the test has its own sequence.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut numbers = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part << 32));
        numbers.below(2);
        numbers
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }

    /// Arguments in milliseconds.
    pub fn time(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Duration and seed.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// `GPUPROBE_CHAOS_SEED`, or 1.
    pub seed: u64,
    /// `GPUPROBE_CHAOS_SECONDS`, or a minute.
    pub duration: Duration,
}

impl Plan {
    /// From the environment.
    pub fn from_environment() -> Self {
        let number = |name: &str, default: u64| {
            let value = std::env::var(name).ok();
            value.map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
        };
        let seconds = number("GPUPROBE_CHAOS_SECONDS", 60);
        Self { seed: number("GPUPROBE_CHAOS_SEED", 1), duration: Duration::from_secs(seconds) }
    }
}

/// The folders with libraries and programs.
#[derive(Debug)]
pub struct Stage {
    built: Built,
    folder: TempDir,
}

impl Stage {
    /// Copies the stand-ins, so that no other test uses them, and a program for every slot under its own name.
    pub fn build() -> Self {
        let stage = Self { built: fixtures::standins(Cuda::Cuda12), folder: fixtures::folder() };
        for folder in [stage.steady(), stage.shifting()] {
            fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
            fixtures::copies(&stage.built, &folder, &[&LIBRARIES[..], &["ledger", "forker"]].concat());
        }
        stage
    }

    /// Runs a program on the libraries that will be replaced, so that the daemon knows them.
    pub fn show_shifting(&self) {
        let program = self.program(&self.shifting(), "ledger", SHIFTING_NAME);
        let finished = finish(Command::new(program).args(["--calls", "100", "--pauses", "1", "--hold", "3"]));
        assert_eq!(finished.status, 0, "{}", finished.stderr);
    }

    /// The folder that contains all files of this test.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder whose libraries are not replaced.
    pub fn steady(&self) -> PathBuf {
        self.folder.path().join("steady")
    }

    /// The folder whose libraries are replaced.
    pub fn shifting(&self) -> PathBuf {
        self.folder.path().join("shifting")
    }

    /// The libcuda that every daemon gets as an option.
    pub fn library(&self) -> PathBuf {
        self.steady().join(LIBRARIES[0])
    }

    /// A copy of a workload under another name, which becomes the name of its processes. Several slots may share one.
    pub fn program(&self, folder: &Path, workload: &str, name: &str) -> PathBuf {
        let program = folder.join(name);
        if program.exists() {
            return program;
        }
        fs::copy(folder.join(workload), &program).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        program
    }

    pub fn subfolder(&self, name: &str) -> PathBuf {
        let subfolder = self.folder.path().join(name);
        fs::create_dir_all(&subfolder).unwrap_or_else(|e| panic!("{}: {e}", subfolder.display()));
        subfolder
    }

    /// Replaces a library by another file with a rename, as package managers do.
    pub fn replace_library(&self, which: u64) {
        let name = if which.is_multiple_of(2) { LIBRARIES[0] } else { LIBRARIES[1] };
        let (old, new) = (self.shifting().join(name), self.shifting().join(format!("{name}.new")));
        fs::copy(self.built.dir.join(name), &new).unwrap_or_else(|e| panic!("{}: {e}", new.display()));
        fs::rename(&new, &old).unwrap_or_else(|e| panic!("{}: {e}", old.display()));
    }
}

/// The state that all threads of the test share.
#[derive(Debug)]
pub struct Chaos {
    pub plan: Plan,
    pub stage: Stage,
    pub ledgers: Ledgers,
    /// The daemon that runs during the whole test.
    pub watcher: Watcher,
    pub totals: Totals,
    begun: Instant,
    stopped: AtomicBool,
}

impl Chaos {
    pub fn new(plan: Plan, stage: Stage, watcher: Watcher) -> Self {
        Self {
            plan,
            stage,
            ledgers: Ledgers::default(),
            watcher,
            totals: Totals::default(),
            begun: Instant::now(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Whether the time is over or the test was stopped.
    pub fn is_finished(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.begun.elapsed() >= self.plan.duration
    }

    /// Ends the test early.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Sleeps, at most until the end of the test.
    pub fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_finished() {
            std::thread::sleep(Duration::from_millis(10).min(time));
        }
    }

    /// The current resources of the daemon.
    pub fn resources(&self) -> Resources {
        self.watcher.resources(self.stage.path())
    }

    /// Counts a fault and continues. The table at the end shows the faults.
    pub fn wrong(&self, what: String) {
        self.totals.wrong(what);
    }
}
