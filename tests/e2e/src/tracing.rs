//! `gpuprobe trace`, and the programs that it is attached to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::fixtures;
use crate::process::{Finished, PATIENCE, Talk, finish, shown, until};
use crate::recording::{Recording, pid_of};

/// A trace that runs, with its output going to a file. It is ended when this goes.
#[derive(Debug)]
pub struct Tracing {
    talk: Talk,
    folder: TempDir,
    start: Instant,
}

impl Tracing {
    /// Starts one and waits until it sees calls.
    pub fn start(options: &[&str]) -> Self {
        let folder = fixtures::folder();
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" >\"$0\""]).arg(folder.path().join("out"));
        shell.arg(fixtures::gpuprobe()).arg("trace").args(options);
        let mut trace = Self { talk: Talk::start(&mut shell), folder, start: Instant::now() };
        until(PATIENCE, "it begins to trace", || {
            let said = trace.talk.stderr();
            assert!(!trace.talk.has_ended() || said.contains(" lines"), "{said}");
            (said.contains("gpuprobe: tracing ") || said.contains("no CUDA library to probe yet"))
                .then_some(())
        });
        trace
    }

    /// What it has printed so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(self.folder.path().join("out")).unwrap_or_default()
    }

    /// What it has told people so far.
    pub fn messages(&self) -> String {
        self.talk.stderr()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.talk.pid()
    }

    /// Waits until it has printed something that fits.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
        until(PATIENCE, what, || look(&self.printed()))
    }

    /// Ends it as Ctrl-C does.
    pub fn stop(self) -> Finished {
        self.stop_by(Signal::SIGINT)
    }

    /// Ends it by a signal.
    pub fn stop_by(mut self, signal: Signal) -> Finished {
        self.talk.signal(signal);
        self.end()
    }

    /// Waits until it ends by itself: the file with its output, which goes with this, its status, and what it told.
    pub fn end_unread(&mut self) -> (PathBuf, i32, String) {
        let status = self.talk.end();
        (self.folder.path().join("out"), status, self.messages())
    }

    /// Waits until it ends by itself.
    pub fn end(mut self) -> Finished {
        let status = self.talk.end();
        Finished { status, stdout: self.printed(), stderr: self.messages(), took: self.start.elapsed() }
    }
}

impl Finished {
    /// The trace that it printed; it must have ended well.
    pub fn recording(&self) -> Recording {
        assert_eq!(self.status, 0, "{}", self.stderr);
        Recording::of_lines(self.stdout.as_bytes(), &self.stderr)
    }

    /// That it ended well, printed so many lines for calls and says so.
    pub fn assert_lines(&self, lines: usize) {
        assert_eq!(
            (self.status, self.stdout.lines().count()),
            (0, lines),
            "{}\n{}",
            self.stderr,
            self.stdout
        );
        let s = if lines == 1 { "" } else { "s" };
        assert!(self.stderr.ends_with(&format!("gpuprobe: {lines} line{s}, 0 lost\n")), "{}", self.stderr);
    }
}

/// The numbers that a trace tells at its end: lines printed, and calls lost for whatever reason.
pub fn lines_and_lost(reported: &str) -> (u64, u64) {
    let number = |text: &str| text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    let reported = || reported.lines().filter_map(|line| line.strip_prefix("gpuprobe: "));
    let lines = reported().filter(|line| line.contains(" line")).find_map(number);
    // a call without its stack is printed
    let calls = reported().filter(|line| !line.contains(" lost_stack: ") && !line.contains(" lost_name: "));
    let lost = calls.filter_map(|line| number(line.strip_prefix("lost ")?)).sum();
    (lines.unwrap_or_else(|| panic!("it does not tell how much it printed")), lost)
}

/// A workload that has printed that it is ready and waits for a line, and its pid.
pub fn waiting(program: &Path, environment: &[&str], args: &[&str]) -> (Talk, String) {
    // the variables that a test wants go past those that are taken away
    let mut talk = Talk::start(Command::new("env").args(environment).arg(program).args(args));
    let ready = talk.json();
    assert_eq!(ready["ready"], true, "{ready}");
    let pid = pid_of(&ready).to_string();
    (talk, pid)
}

/// Copies of a workload and of its libraries that nobody else uses.
#[derive(Debug)]
pub struct Private {
    /// Where they are.
    pub folder: TempDir,
    /// The workload.
    pub program: PathBuf,
    cuda: Cuda,
}

impl Private {
    /// Of this workload.
    pub fn new(workload: &str, cuda: Cuda) -> Self {
        let (folder, built) = (fixtures::folder(), fixtures::standins(cuda));
        let runtime = built.libcudart.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        fixtures::copies(&built, folder.path(), &[workload, "libcuda.so.1", runtime]);
        Self { program: folder.path().join(workload), folder, cuda }
    }

    /// The options that name its libraries.
    pub fn paths(&self) -> Vec<String> {
        let runtime = format!("libcudart.so.{}", self.cuda.major());
        let path = |name: &str| ["-p".to_owned(), shown(self.folder.path().join(name))];
        ["libcuda.so.1", &runtime].iter().flat_map(|name| path(name)).collect()
    }

    /// Starts it and traces it, by its pid and its libraries, from before its first call. It waits for a line.
    pub fn attached(&self, options: &[&str], environment: &[&str]) -> (Talk, Tracing) {
        let (program, pid) = waiting(&self.program, environment, &[]);
        let paths = self.paths();
        let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
        all.extend(["-d", &pid]);
        all.extend(options);
        (program, Tracing::start(&all))
    }

    /// Takes the symbols out of the workload.
    pub fn strip(&self) {
        assert_eq!(finish(Command::new("strip").arg(&self.program)).status, 0, "strip");
    }

    /// Traces its libraries with these options while it runs: what was traced, and what it printed itself.
    pub fn traced(&self, options: &[&str], environment: &[&str]) -> (Finished, Finished) {
        let paths = self.paths();
        let options: Vec<&str> = paths.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let trace = Tracing::start(&options);
        let program = finish(Command::new("env").args(environment).arg(&self.program));
        assert_eq!(program.status, 0, "{}", program.stderr);
        (trace.stop(), program)
    }
}
