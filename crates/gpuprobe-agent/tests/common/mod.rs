//! Runs programs on the stand-ins with the agent inside, and reads what it emitted and what the stand-in CUPTI recorded.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpuprobe_event::agent::{
    Activity, ActivityKind, AgentRecord, AgentState, BatchDecoder, BatchHeader, RangeRecord,
};
use gpuprobe_standin::{BuildOptions, Built, Cuda, Prologue, build};
use serde_json::Value;
use tempfile::TempDir;

/// The library, which cargo builds for these tests.
pub(crate) fn agent() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this test");
    program.with_file_name("libgpuprobe_agent.so")
}

/// The stand-ins. The tests of that crate use the same folder.
pub(crate) fn standins() -> Built {
    let options = BuildOptions::new(Prologue::Push, Cuda::Cuda12);
    let name = format!("standin-{:?}-{:?}-{:?}", options.prologue, options.cuda, options.parts);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    build(&dir, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Compiles a C file of these tests into a folder.
pub(crate) fn compile(source: &str, output: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(source)
        .args(flags)
        .arg("-ldl")
        .arg("-o")
        .arg(output);
    let Output { status, stderr, .. } = cc.output().expect("a C compiler");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}

/// A program with the agent inside, and with `tap.c` in gpuprobe's place.
pub(crate) struct Host {
    folder: TempDir,
    command: Command,
}

/// What came of it.
pub(crate) struct Finished {
    pub(crate) stdout: String,
    /// In the order in which the agent emitted them.
    pub(crate) headers: Vec<BatchHeader>,
    pub(crate) records: Vec<AgentRecord>,
    /// The lines of the stand-in CUPTI.
    pub(crate) ledger: Vec<Value>,
}

impl Host {
    pub(crate) fn new(program: &Path, arguments: &[&str]) -> Self {
        Self::with_agents(program, arguments, &[agent()])
    }

    /// With several files that each are an agent.
    pub(crate) fn with_agents(program: &Path, arguments: &[&str], agents: &[PathBuf]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tap = folder.path().join("libtap.so");
        compile("tap.c", &tap, &["-fPIC", "-shared"]);
        let agents: Vec<String> = agents.iter().map(|agent| agent.display().to_string()).collect();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("CUDA_INJECTION64_PATH", &tap)
            .env("NVTX_INJECTION64_PATH", &tap)
            .env("TAP_AGENT", agents.join(":"))
            .env("TAP_OUTPUT", folder.path().join("batches"))
            .env("STANDIN_CUPTI_LEDGER", folder.path().join("ledger"))
            .env_remove("LD_LIBRARY_PATH");
        Self { folder, command }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs the program, which must succeed and print no error.
    pub(crate) fn run(mut self) -> Finished {
        let Output { status, stdout, stderr } = self.command.output().expect("the program");
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success() && stderr.is_empty(), "{:?}: {status}\n{stderr}", self.command);
        let (headers, records) = read_batches(&self.folder.path().join("batches"));
        let ledger = fs::read_to_string(self.folder.path().join("ledger")).unwrap_or_default();
        let ledger = ledger.lines().map(|line| serde_json::from_str(line).expect("a line of the ledger"));
        let stdout = String::from_utf8(stdout).expect("text");
        Finished { stdout, headers, records, ledger: ledger.collect() }
    }
}

fn read_batches(file: &Path) -> (Vec<BatchHeader>, Vec<AgentRecord>) {
    let bytes = fs::read(file).unwrap_or_default();
    let (mut rest, mut headers, mut records) = (bytes.as_slice(), Vec::new(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (batch, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        let mut decoder = BatchDecoder::new(batch).expect("a batch");
        headers.push(decoder.header);
        records.extend(decoder.by_ref());
        assert_eq!(decoder.skipped, 0);
        rest = after;
    }
    (headers, records)
}

/// What identifies a record, without its times.
type Key = (u32, u32, u64, String);

impl Finished {
    /// Changes of the state, without those that were sent again.
    pub(crate) fn states(&self) -> Vec<&AgentState> {
        let mut states = self.all_states();
        states.dedup();
        states
    }

    pub(crate) fn all_states(&self) -> Vec<&AgentState> {
        self.select(|record| if let AgentRecord::State(state) = record { Some(state) } else { None })
    }

    pub(crate) fn activities(&self) -> Vec<&Activity> {
        self.select(|record| if let AgentRecord::Activity(activity) = record { Some(activity) } else { None })
    }

    pub(crate) fn ranges(&self) -> Vec<&RangeRecord> {
        self.select(|record| if let AgentRecord::Range(range) = record { Some(range) } else { None })
    }

    fn select<'r, T>(&'r self, of: impl Fn(&'r AgentRecord) -> Option<T>) -> Vec<T> {
        self.records.iter().filter_map(of).collect()
    }

    pub(crate) fn names(&self) -> BTreeMap<u64, &str> {
        let names = self.select(|record| match record {
            AgentRecord::Name { id, text } => Some((*id, text.as_str())),
            _ => None,
        });
        names.into_iter().collect()
    }

    /// The numbers of the kinds that were enabled or disabled, in order.
    pub(crate) fn changes(&self, change: &str) -> Vec<u64> {
        let lines = self.ledger.iter().filter(|line| line["change"] == change);
        lines.map(|line| number(&line["kind"])).collect()
    }

    /// Lines of records that CUPTI made, or dropped.
    pub(crate) fn ledger_records(&self, dropped: bool) -> impl Iterator<Item = &Value> {
        self.ledger.iter().filter(move |line| line["dropped"] == dropped)
    }

    /// Asserts that the agent emitted exactly what CUPTI recorded, with the right times, and that no batch is missing.
    pub(crate) fn assert_complete(&self) {
        let sequences: Vec<u64> = self.headers.iter().map(|header| header.sequence).collect();
        let expected: Vec<u64> = (1..=sequences.len() as u64).collect();
        assert_eq!(sequences, expected);
        let names = self.names();
        let found: BTreeMap<Key, (u64, u64)> = self
            .activities()
            .into_iter()
            .map(|activity| (key(activity, &names), (activity.start_ns, activity.end_ns)))
            .collect();
        let in_ledger: BTreeMap<Key, (u64, u64)> = self
            .ledger_records(false)
            .map(|line| (ledger_key(line), (number(&line["start"]), number(&line["end"]))))
            .collect();
        assert_eq!(self.activities().len(), found.len());
        assert_eq!(self.ledger_records(false).count(), in_ledger.len());
        let differences: Vec<_> = in_ledger.keys().filter(|key| !found.contains_key(*key)).take(3).collect();
        assert!(
            differences.is_empty(),
            "not emitted: {differences:?}, {} of {}",
            found.len(),
            in_ledger.len()
        );
        assert_eq!(found.len(), in_ledger.len());
        let mut offsets: Vec<u64> = Vec::new();
        for (key, (start, end)) in &in_ledger {
            let (found_start, found_end) = found[key];
            offsets.push(start.abs_diff(found_start));
            // the clocks' distance may be measured again between two records
            let (length, found_length) = (end - start, found_end.saturating_sub(found_start));
            assert!(length.abs_diff(found_length) < 10_000, "{key:?}: {length} {found_length}");
        }
        offsets.sort_unstable();
        // a thread that is interrupted while it reads both clocks measures a wrong distance, but not eight times
        let median = offsets.get(offsets.len() / 2).copied().unwrap_or_default();
        assert!(median < 20_000, "{median} ns");
        assert!(offsets.last().copied().unwrap_or_default() < 5_000_000, "{:?}", offsets.last());
    }
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

fn key(activity: &Activity, names: &BTreeMap<u64, &str>) -> Key {
    let name = if activity.name == 0 { "" } else { names[&activity.name] };
    let kind = match activity.kind {
        ActivityKind::Kernel => 10,
        ActivityKind::Copy if activity.copy_kind == 10 => 22,
        ActivityKind::Copy => 1,
        ActivityKind::Memset => 2,
        ActivityKind::Graph => 51,
    };
    let rest = format!(
        "{} {} {} {} {} {name} {} {:?} {:?} {}",
        activity.device,
        activity.context,
        activity.stream,
        activity.graph,
        activity.copy_kind,
        activity.bytes,
        activity.grid,
        activity.block,
        activity.shared_bytes
    );
    (kind, activity.correlation, activity.graph_node, rest)
}

fn ledger_key(line: &Value) -> Key {
    let of = |name: &str| line.get(name).map_or(0, number);
    let three = |name: &str| {
        let numbers = line.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let numbers: Vec<u64> = numbers.iter().map(number).collect();
        <[u64; 3]>::try_from(numbers).unwrap_or_default()
    };
    let rest = format!(
        "{} {} {} {} {} {} {} {:?} {:?} {}",
        of("device"),
        of("context"),
        of("stream"),
        of("graph"),
        of("copy_kind"),
        line.get("name").and_then(Value::as_str).unwrap_or_default(),
        of("bytes"),
        three("grid"),
        three("block"),
        of("shared")
    );
    (of("kind") as u32, of("correlation") as u32, of("node"), rest)
}
