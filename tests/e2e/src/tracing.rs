//! Runs `gpuprobe trace`, and the programs that it traces.

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

/// A running `gpuprobe trace` whose output goes to a file. Dropping this ends it.
#[derive(Debug)]
pub struct Tracing {
    talk: Talk,
    folder: TempDir,
    start: Instant,
}

impl Tracing {
    /// Starts one and waits until it has attached its probes.
    pub fn start(options: &[&str]) -> Self {
        let folder = fixtures::folder();
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" >\"$0\""]).arg(folder.path().join("out"));
        shell.arg(fixtures::gpuprobe()).arg("trace").args(options);
        let mut trace = Self { talk: Talk::start(&mut shell), folder, start: Instant::now() };
        until(PATIENCE, "it begins to trace", || {
            let said = trace.talk.stderr();
            assert!(!trace.talk.has_exited() || said.contains(" lines"), "{said}");
            (said.contains("gpuprobe: tracing ") || said.contains("no GPU library to probe yet"))
                .then_some(())
        });
        trace
    }

    pub fn printed(&self) -> String {
        fs::read_to_string(self.folder.path().join("out")).unwrap_or_default()
    }

    /// Its messages on stderr.
    pub fn messages(&self) -> String {
        self.talk.stderr()
    }

    pub fn pid(&self) -> u32 {
        self.talk.pid()
    }

    /// Waits until `look` finds something in the output.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
        until(PATIENCE, what, || look(&self.printed()))
    }

    /// Sends SIGINT, as Ctrl-C does, and waits for its exit.
    pub fn stop(self) -> Finished {
        self.stop_by(Signal::SIGINT)
    }

    pub fn stop_by(mut self, signal: Signal) -> Finished {
        self.talk.signal(signal);
        self.end()
    }

    /// Waits for its exit. Returns the file with its output, which is removed when this is dropped, the status, and
    /// the messages.
    pub fn end_unread(&mut self) -> (PathBuf, i32, String) {
        let status = self.talk.end();
        (self.folder.path().join("out"), status, self.messages())
    }

    /// Waits for its exit.
    pub fn end(mut self) -> Finished {
        let status = self.talk.end();
        Finished { status, stdout: self.printed(), stderr: self.messages(), took: self.start.elapsed() }
    }
}

impl Finished {
    /// The trace that it printed. The status must be 0.
    pub fn recording(&self) -> Recording {
        assert_eq!(self.status, 0, "{}", self.stderr);
        Recording::of_lines(self.stdout.as_bytes(), &self.stderr)
    }

    /// Checks that the status is 0, and that it printed this number of lines for calls and reports the same number.
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

/// The numbers that a trace reports at its end: lines printed, and calls lost for any reason.
pub fn lines_and_lost(reported: &str) -> (u64, u64) {
    let number = |text: &str| text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    let reported = || reported.lines().filter_map(|line| line.strip_prefix("gpuprobe: "));
    let lines = reported().filter(|line| line.contains(" line")).find_map(number);
    // a call without its stack or name is printed
    let is_printed = [" lost_stack: ", " shortened_stack: ", " lost_name: "];
    let calls = reported().filter(|line| !is_printed.iter().any(|cause| line.contains(cause)));
    let lost = calls.filter_map(|line| number(line.strip_prefix("lost ")?)).sum();
    (lines.unwrap_or_else(|| panic!("it does not report the number of lines")), lost)
}

/// Starts a workload that prints that it is ready and waits for a line. Returns it with its pid.
pub fn waiting(program: &Path, environment: &[&str], args: &[&str]) -> (Talk, String) {
    // set by `env`, because some variables are removed from the environment of what is started here
    let mut talk = Talk::start(Command::new("env").args(environment).arg(program).args(args));
    let ready = talk.json();
    assert_eq!(ready["ready"], true, "{ready}");
    let pid = pid_of(&ready).to_string();
    (talk, pid)
}

/// Copies of a workload and of its libraries that no other test uses.
#[derive(Debug)]
pub struct Private {
    pub folder: TempDir,
    pub program: PathBuf,
    cuda: Cuda,
}

impl Private {
    pub fn new(workload: &str, cuda: Cuda) -> Self {
        let (folder, built) = (fixtures::folder(), fixtures::standins(cuda));
        let runtime = built.libcudart.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        fixtures::copies(&built, folder.path(), &[workload, "libcuda.so.1", runtime]);
        Self { program: folder.path().join(workload), folder, cuda }
    }

    pub fn paths(&self) -> Vec<String> {
        let runtime = format!("libcudart.so.{}", self.cuda.major());
        let path = |name: &str| ["-p".to_owned(), shown(self.folder.path().join(name))];
        ["libcuda.so.1", &runtime].iter().flat_map(|name| path(name)).collect()
    }

    /// Starts it and traces it, by its pid and its libraries. It waits for a line before its first call.
    pub fn attached(&self, options: &[&str], environment: &[&str]) -> (Talk, Tracing) {
        let (program, pid) = waiting(&self.program, environment, &[]);
        let paths = self.paths();
        let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
        all.extend(["-d", &pid]);
        all.extend(options);
        (program, Tracing::start(&all))
    }

    pub fn strip(&self) {
        assert_eq!(finish(Command::new("strip").arg(&self.program)).status, 0, "strip");
    }

    /// Runs it while its libraries are traced with these options. Returns the finished trace and the finished
    /// program.
    pub fn traced(&self, options: &[&str], environment: &[&str]) -> (Finished, Finished) {
        let paths = self.paths();
        let options: Vec<&str> = paths.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let trace = Tracing::start(&options);
        let program = finish(Command::new("env").args(environment).arg(&self.program));
        assert_eq!(program.status, 0, "{}", program.stderr);
        (trace.stop(), program)
    }
}
