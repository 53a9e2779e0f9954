//! The workload `gpu_work`, and what its CUPTI and gpuprobe record of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::cupti_ledger::{CuptiLedger, FUNCTIONS};
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::{Outcome, Recording, Run, Talk, fixtures, tiers};
use gpuprobe_event::agent::{Collection, LIBRARY};
use gpuprobe_standin::Cuda;
use serde_json::Value;
use tempfile::TempDir;

/// Kinds of records that are enabled while nodes of graphs are recorded: kernels, copies, memsets and copies between GPUs.
pub(crate) const KINDS: usize = 4;

/// The options of gpuprobe for a tier, with the functions that are compared.
pub(crate) fn options<'a>(tier: &'a str, gpu_time: &'a str) -> Vec<&'a str> {
    [tiers::options(tier, &FUNCTIONS), vec![gpu_time]].concat()
}

/// `libgpuprobe_agent.so`, next to the binary under test.
pub(crate) fn agent() -> PathBuf {
    let binary = fixtures::gpuprobe().canonicalize().unwrap();
    let agent = binary.with_file_name(LIBRARY);
    assert!(agent.is_file(), "{} is not built", agent.display());
    agent
}

/// `gpu_work` with arguments, an environment and a ledger of its own.
pub(crate) struct Work {
    folder: TempDir,
    libraries: PathBuf,
    args: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Work {
    pub(crate) fn new(args: &[&str]) -> Self {
        let libraries = fixtures::standins(Cuda::Cuda12).dir;
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { folder: fixtures::folder(), args, environment: Vec::new(), libraries }.with_libraries_in_path()
    }

    /// The same in a folder without a libcupti.
    pub(crate) fn without_cupti(mut self) -> Self {
        fixtures::copies(
            &fixtures::standins(Cuda::Cuda12),
            self.folder(),
            &["libcuda.so.1", "libcudart.so.12", "gpu_work"],
        );
        self.libraries = self.folder().to_owned();
        self.with_libraries_in_path()
    }

    fn with_libraries_in_path(self) -> Self {
        let (libraries, ledger) = (shown(&self.libraries), shown(self.ledger_path()));
        self.env("LD_LIBRARY_PATH", &libraries).env("STANDIN_CUPTI_LEDGER", &ledger)
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ledger_path(&self) -> PathBuf {
        self.at("ledger.jsonl")
    }

    pub(crate) fn ledger(&self) -> CuptiLedger {
        CuptiLedger::read(&self.ledger_path())
    }

    fn program(&self) -> PathBuf {
        self.libraries.join("gpu_work")
    }

    /// The command under `gpuprobe run`.
    pub(crate) fn under(&self, options: &[&str]) -> Run {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let run = Run::new(self.program()).options(options).args(&args);
        self.environment.iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// Runs it under `gpuprobe run`. Its own result must be that of a run without gpuprobe.
    pub(crate) fn run(&self, options: &[&str]) -> Outcome {
        let outcome = self.under(options).outcome();
        let stderr = &outcome.finished.stderr;
        assert_eq!(outcome.finished.status, 0, "{stderr}");
        assert!(!stderr.contains("stand-in"), "{stderr}");
        assert_eq!(without_pid(outcome.printed()), self.result_alone());
        outcome.trace.assert_ended();
        outcome
    }

    /// What it prints without gpuprobe and without the agent.
    pub(crate) fn result_alone(&self) -> Value {
        let quick = self.args.iter().filter(|arg| !["--wait", "--fork"].contains(&arg.as_str()));
        let quick: Vec<&String> = quick.collect();
        let mut command = Command::new(self.program());
        // pauses do not change the result
        for pair in quick.chunks(2).filter(|pair| !["--pause", "--hold"].contains(&pair[0].as_str())) {
            command.args(pair);
        }
        let finished = finish(&mut command);
        assert_eq!(finished.status, 0, "{}", finished.stderr);
        without_pid(finished.json().remove(0))
    }

    /// Starts it with the agent loaded, and nothing attached.
    pub(crate) fn start(&self) -> Talk {
        self.start_with_agent(&agent())
    }

    pub(crate) fn start_with_agent(&self, agent: &Path) -> Talk {
        let mut command = Command::new("env");
        command.args(self.environment.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(format!("CUDA_INJECTION64_PATH={}", agent.display()));
        Talk::start(command.arg(self.program()).args(&self.args))
    }

    /// Waits until its CUPTI collects, or does not any more.
    pub(crate) fn until_collecting(&self, is_collecting: bool) {
        let kinds = if is_collecting { KINDS } else { 0 };
        until(PATIENCE, "CUPTI collects", || (self.ledger().enabled().len() == kinds).then_some(()));
    }

    /// Lets a started one go on to its end. Its own result must be that of a run without the agent; how much it does
    /// until a line arrives is never the same.
    pub(crate) fn finish(&self, talk: &mut Talk) {
        let (status, printed) = talk.finish();
        assert_eq!(status, 0, "{}", talk.stderr());
        if !self.args.iter().any(|arg| arg == "--until-line") {
            assert_eq!(without_pid(printed), self.result_alone(), "{}", talk.stderr());
        }
    }
}

fn without_pid(mut printed: Value) -> Value {
    printed["pid"].take();
    printed
}

/// Starts `gpuprobe record` of a process.
pub(crate) fn record(program: &Talk, options: &[&str], trace: &Path) -> Talk {
    let (pid, output) = (program.pid().to_string(), shown(trace));
    let words = [&["record", "-d", &pid, "-o", &output], options].concat();
    Talk::start(&mut gpuprobe(&words))
}

/// What the agents of a trace did, in order.
pub(crate) fn collections(trace: &Recording) -> Vec<Collection> {
    trace.agent_states.iter().map(|state| state.collection).collect()
}

/// What was lost, by cause.
pub(crate) fn lost(trace: &Recording, cause: &str) -> u64 {
    trace.assert_ended().lost.get(cause).copied().unwrap_or(0)
}

/// Checks a recording that gpuprobe ended: everything that was collected is there. On a busy host the Linux kernel may take
/// so long to remove a probe that gpuprobe does not wait for the agent's last records; then these are not there. Returns
/// the number of executions.
pub(crate) fn assert_recorded(ledger: &CuptiLedger, trace: &Recording) -> usize {
    trace.assert_ended();
    match collections(trace)[..] {
        [Collection::Collecting, Collection::Stopped] => ledger.assert_equal(trace),
        [Collection::Collecting] => ledger.until(trace).assert_equal(trace),
        _ => panic!("{:?}", trace.agent_states),
    }
}
