//! The parts of the chaos test: ledger programs that are started, killed, forked and executed all the time, and what is
//! done to their libraries, their disk and their daemons meanwhile.

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

/// Programs that run at any time.
pub const PROGRAMS: usize = 50;
/// How many of them use libraries that are replaced all the time.
pub const SHIFTING: usize = 15;

/// How the names of programs begin whose libraries are replaced.
pub const SHIFTING_NAME: &str = "chl";

const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcudart.so.12"];

/// Numbers that look random and are the same for the same seed.
#[derive(Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// A sequence of its own for each part of the test.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut numbers = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part << 32));
        numbers.below(2);
        numbers
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }

    /// A time between two, in milliseconds.
    pub fn time(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// How long and by which numbers.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// `GPUPROBE_CHAOS_SEED`, or 1.
    pub seed: u64,
    /// `GPUPROBE_CHAOS_SECONDS`, or a minute.
    pub duration: Duration,
}

impl Plan {
    /// As the environment says.
    pub fn from_environment() -> Self {
        let number = |name: &str, default: u64| {
            let value = std::env::var(name).ok();
            value.map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
        };
        let seconds = number("GPUPROBE_CHAOS_SECONDS", 60);
        Self { seed: number("GPUPROBE_CHAOS_SEED", 1), duration: Duration::from_secs(seconds) }
    }
}

/// Folders with libraries and programs.
#[derive(Debug)]
pub struct Stage {
    built: Built,
    folder: TempDir,
}

impl Stage {
    /// Copies of the stand-ins that nobody else uses, and a program for every slot, each under its own name.
    pub fn build() -> Self {
        let stage = Self { built: fixtures::standins(Cuda::Cuda12), folder: fixtures::folder() };
        for folder in [stage.steady(), stage.shifting()] {
            fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
            fixtures::copies(&stage.built, &folder, &[&LIBRARIES[..], &["ledger", "forker"]].concat());
        }
        stage
    }

    /// Runs a program on the libraries that will be replaced, so that they are known to who watches.
    pub fn show_shifting(&self) {
        let program = self.program(&self.shifting(), "ledger", SHIFTING_NAME);
        let finished = finish(Command::new(program).args(["--calls", "100", "--pauses", "1", "--hold", "3"]));
        assert_eq!(finished.status, 0, "{}", finished.stderr);
    }

    /// Everything of this test is in it.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where libraries stay as they are.
    pub fn steady(&self) -> PathBuf {
        self.folder.path().join("steady")
    }

    /// Where libraries are replaced.
    pub fn shifting(&self) -> PathBuf {
        self.folder.path().join("shifting")
    }

    /// The driver's library that every daemon is told of.
    pub fn library(&self) -> PathBuf {
        self.steady().join(LIBRARIES[0])
    }

    /// A workload under another name, which is that of its processes. Several slots may have the same.
    pub fn program(&self, folder: &Path, workload: &str, name: &str) -> PathBuf {
        let program = folder.join(name);
        if program.exists() {
            return program;
        }
        fs::copy(folder.join(workload), &program).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        program
    }

    /// A folder for one part of the test.
    pub fn subfolder(&self, name: &str) -> PathBuf {
        let subfolder = self.folder.path().join(name);
        fs::create_dir_all(&subfolder).unwrap_or_else(|e| panic!("{}: {e}", subfolder.display()));
        subfolder
    }

    /// Puts another file in the place of a library, in one step, as package managers do.
    pub fn replace_library(&self, which: u64) {
        let name = if which.is_multiple_of(2) { LIBRARIES[0] } else { LIBRARIES[1] };
        let (old, new) = (self.shifting().join(name), self.shifting().join(format!("{name}.new")));
        fs::copy(self.built.dir.join(name), &new).unwrap_or_else(|e| panic!("{}: {e}", new.display()));
        fs::rename(&new, &old).unwrap_or_else(|e| panic!("{}: {e}", old.display()));
    }
}

/// What all threads of the test share.
#[derive(Debug)]
pub struct Chaos {
    pub plan: Plan,
    pub stage: Stage,
    /// What programs said that they did.
    pub ledgers: Ledgers,
    /// What the daemon that stays says.
    pub watcher: Watcher,
    pub totals: Totals,
    begun: Instant,
    stopped: AtomicBool,
}

impl Chaos {
    /// Begins now.
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

    /// Whether nothing new is to be started.
    pub fn is_finished(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.begun.elapsed() >= self.plan.duration
    }

    /// Ends the test early: something is wrong.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Waits, but not beyond the end.
    pub fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_finished() {
            std::thread::sleep(Duration::from_millis(10).min(time));
        }
    }

    /// What the daemon that stays takes now.
    pub fn resources(&self) -> Resources {
        self.watcher.resources(self.stage.path())
    }

    /// Notes that something is wrong, and goes on: the table at the end tells how often.
    pub fn wrong(&self, what: String) {
        self.totals.wrong(what);
    }
}
