//! The ledger of the stand-in CUPTI, compared with the executions of a trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{Call, Execution, ExecutionKind, Tid};
use serde_json::Value;

use crate::recording::{Recording, number};

/// Two comparisons of CUPTI's clock with that of the host differ by less.
const CLOCK_ERROR_NS: u64 = 50_000;
/// A duration is the difference of two times that were converted together.
const DURATION_ERROR_NS: u64 = 1_000;
/// The stand-in GPU begins so long after a submission, if it is idle.
const START_DELAY_NS: u64 = 2_000;

/// Functions by which `gpu_work` submits, and the kind of what is executed then. A graph launch has any.
const SUBMITTING: [(&str, Option<&str>); 6] = [
    ("cuLaunchKernel", Some("kernel")),
    ("cuMemcpyHtoDAsync_v2", Some("copy")),
    ("cuMemcpyDtoHAsync_v2", Some("copy")),
    ("cuMemcpyDtoDAsync_v2", Some("copy")),
    ("cuMemsetD32Async", Some("memset")),
    ("cuGraphLaunch", None),
];
const CAPTURE: [&str; 2] = ["cuStreamBeginCapture_v2", "cuStreamEndCapture"];
/// A recording must have at least these functions, so that executions can be compared with their calls.
pub const FUNCTIONS: [&str; 9] = [
    SUBMITTING[0].0,
    SUBMITTING[1].0,
    SUBMITTING[2].0,
    SUBMITTING[3].0,
    SUBMITTING[4].0,
    SUBMITTING[5].0,
    CAPTURE[0],
    CAPTURE[1],
    "cuGraphInstantiateWithFlags",
];

/// Something that the stand-in GPU executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub execution: Identity,
    /// When it was submitted, during the call, and executed: CLOCK_MONOTONIC.
    pub submitted_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub is_dropped: bool,
}

/// Everything about an execution except for its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub correlation: u32,
    pub kind: ExecutionKind,
    pub gpu: u32,
    pub context: u32,
    pub stream: u32,
    pub graph: Option<u32>,
}

impl Identity {
    fn of(execution: &Execution) -> Self {
        Self {
            correlation: execution.correlation,
            kind: execution.kind.clone(),
            gpu: execution.gpu,
            context: execution.context,
            stream: execution.stream,
            graph: execution.graph,
        }
    }
}

#[derive(Debug, Default)]
pub struct CuptiLedger {
    pub records: Vec<Record>,
    /// Kinds of records that were enabled or disabled, in order.
    pub changes: Vec<(bool, u64)>,
}

impl CuptiLedger {
    /// Reads the file. Nothing was collected if there is none.
    pub fn read(path: &Path) -> Self {
        let mut ledger = Self::default();
        let text = fs::read_to_string(path).unwrap_or_default();
        // the last line may be incomplete while the program runs
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            match line["change"].as_str() {
                Some(change) => ledger.changes.push((change == "enabled", number(&line["kind"]))),
                None => ledger.records.push(record(&line)),
            }
        }
        ledger
    }

    /// Without the first so many records.
    #[must_use]
    pub fn since(&self, first: usize) -> Self {
        let records = self.records.get(first..).unwrap_or_default().to_vec();
        Self { records, changes: self.changes.clone() }
    }

    /// Without what was submitted after everything in this trace.
    #[must_use]
    pub fn until(&self, trace: &Recording) -> Self {
        let last = trace.executions.iter().map(|it| it.correlation).max().unwrap_or_default();
        let records = self.records.iter().filter(|it| it.execution.correlation <= last).cloned();
        Self { records: records.collect(), changes: self.changes.clone() }
    }

    /// The kinds that are enabled at the end.
    pub fn enabled(&self) -> BTreeSet<u64> {
        let mut enabled = BTreeSet::new();
        for (is_enabled, kind) in &self.changes {
            if *is_enabled {
                enabled.insert(*kind)
            } else {
                enabled.remove(kind)
            };
        }
        enabled
    }

    /// Checks that a trace has exactly the records that were not dropped, with their times. Returns their number.
    pub fn assert_equal(&self, trace: &Recording) -> usize {
        let kept: Vec<&Record> = self.records.iter().filter(|record| !record.is_dropped).collect();
        assert_same(&trace.executions, kept)
    }

    /// Checks that everything in a trace is one of the records, with its times. Returns the number of records that are
    /// not there.
    pub fn assert_contains(&self, trace: &Recording) -> usize {
        let mut by_correlation: BTreeMap<u32, Vec<&Record>> = BTreeMap::new();
        for record in &self.records {
            by_correlation.entry(record.execution.correlation).or_default().push(record);
        }
        // the nodes of a graph differ from each other
        let found = trace.executions.iter().map(|it| {
            let wanted = Identity::of(it);
            let all = by_correlation.get_mut(&it.correlation);
            let found =
                all.and_then(|all| Some(all.swap_remove(all.iter().position(|it| it.execution == wanted)?)));
            found.unwrap_or_else(|| panic!("not in the ledger, or twice in the trace: {it:?}"))
        });
        self.records.len() - assert_same(&trace.executions, found.collect())
    }
}

/// The number of executions that name a call that was made at another time than that at which they were submitted. Works
/// without all calls, but calls that follow each other at once are not distinguished.
pub fn named_at_another_time(ledger: &CuptiLedger, trace: &Recording) -> usize {
    let by_correlation: BTreeMap<u32, &Record> =
        ledger.records.iter().map(|record| (record.execution.correlation, record)).collect();
    let by_id = trace.by_id();
    let is_wrong = |it: &&Execution| {
        let (Some(by), record) = (it.submission, by_correlation[&it.correlation]) else { return false };
        let call = by_id[&by.call];
        // the trace counts time from its start
        let submitted_ns = (it.start_ns + record.submitted_ns).saturating_sub(record.start_ns);
        let end_ns = call.start_ns + call.duration_ns().unwrap_or(0);
        submitted_ns + CLOCK_ERROR_NS < call.start_ns || submitted_ns > end_ns + CLOCK_ERROR_NS
    };
    trace.executions.iter().filter(is_wrong).count()
}

fn assert_same(executions: &[Execution], mut records: Vec<&Record>) -> usize {
    let mut executions: Vec<&Execution> = executions.iter().collect();
    executions.sort_by_key(|it| (it.correlation, it.start_ns));
    records.sort_by_key(|it| (it.execution.correlation, it.start_ns));
    assert_eq!(executions.len(), records.len(), "the number of executions");
    let mut ahead = Vec::new();
    for (execution, record) in executions.iter().zip(&records) {
        assert_eq!(Identity::of(execution), record.execution);
        let duration_ns = record.end_ns - record.start_ns;
        assert!(
            execution.duration_ns().abs_diff(duration_ns) < DURATION_ERROR_NS,
            "{execution:?} took {duration_ns}"
        );
        ahead.push(record.start_ns - execution.start_ns);
    }
    if let (Some(least), Some(most)) = (ahead.iter().min(), ahead.iter().max()) {
        assert!(most - least < CLOCK_ERROR_NS, "the clocks differ by {least} to {most} ns");
    }
    records.len()
}

fn record(line: &Value) -> Record {
    let small = |field: &str| u32::try_from(number(&line[field])).unwrap_or_else(|e| panic!("{line}: {e}"));
    let sizes = |field: &str| {
        let size =
            |i: usize| u32::try_from(number(&line[field][i])).unwrap_or_else(|e| panic!("{line}: {e}"));
        [size(0), size(1), size(2)]
    };
    let kind = match number(&line["kind"]) {
        10 => ExecutionKind::Kernel {
            name: line["name"].as_str().map(|name| Arc::from(readable(name))),
            grid: sizes("grid"),
            block: sizes("block"),
            shared_bytes: small("shared"),
        },
        1 => ExecutionKind::Copy {
            direction: direction(number(&line["copy_kind"])),
            bytes: number(&line["bytes"]),
        },
        2 => ExecutionKind::Memset { bytes: number(&line["bytes"]) },
        51 => ExecutionKind::Graph,
        _ => panic!("gpu_work does not do this: {line}"),
    };
    let graph = Some(small("graph")).filter(|graph| *graph != 0);
    let execution = Identity {
        correlation: small("correlation"),
        kind,
        gpu: small("device"),
        context: small("context"),
        stream: small("stream"),
        graph,
    };
    Record {
        execution,
        submitted_ns: number(&line["submitted"]),
        start_ns: number(&line["start"]),
        end_ns: number(&line["end"]),
        is_dropped: line["dropped"] == true,
    }
}

/// The only CUDA kernel of `gpu_work` with a mangled name.
fn readable(name: &str) -> &str {
    if name == "_Z4normPfi" { "norm(float*, int)" } else { name }
}

/// `CUpti_ActivityMemcpyKind`
fn direction(kind: u64) -> CopyDirection {
    match kind {
        1 => CopyDirection::HostToDevice,
        2 => CopyDirection::DeviceToHost,
        8 => CopyDirection::DeviceToDevice,
        _ => panic!("gpu_work makes no copies of kind {kind}"),
    }
}

/// Checks that every execution names the call that submitted it, if one thread submits: CUPTI numbers its calls in their
/// order. Returns the number of submitting calls without executions, all of which are before or after the others.
pub fn assert_submissions(trace: &Recording) -> usize {
    let calls: Vec<&Call> = submitting_calls(trace);
    let threads: BTreeSet<Tid> = calls.iter().map(|call| call.tid).collect();
    assert!(threads.len() <= 1, "the order of calls of several threads is not known");
    let by_id = trace.by_id();
    let mut by_correlation: BTreeMap<u32, u64> = BTreeMap::new();
    for execution in &trace.executions {
        let submission = execution.submission.unwrap_or_else(|| panic!("not matched: {execution:?}"));
        let call = by_id[&submission.call];
        assert_eq!(call.tid, submission.tid, "{execution:?}");
        assert_is_possible(execution, call);
        let known = by_correlation.insert(execution.correlation, call.id);
        assert!(known.is_none_or(|known| known == call.id), "two calls: {execution:?}");
    }
    let matched: Vec<u64> = by_correlation.into_values().collect();
    let calls: Vec<u64> = calls.iter().map(|call| call.id).collect();
    let first = matched.first().and_then(|first| calls.iter().position(|call| call == first));
    let from_first = calls.get(first.unwrap_or(calls.len())..).unwrap_or_default();
    assert_eq!(from_first.get(..matched.len()), Some(&*matched), "the calls in order");
    calls.len() - matched.len()
}

/// The number of executions that name no call or another one than that which submitted them, if every submitting call
/// has executions. The calls for one stream are numbered in their order.
pub fn misjudged(trace: &Recording) -> usize {
    let mut calls: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for call in submitting_calls(trace) {
        let stream = call.stream.unwrap_or_else(|| panic!("no stream: {call:?}"));
        calls.entry(stream_number(stream)).or_default().push(call.id);
    }
    let mut correlations: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for execution in &trace.executions {
        correlations.entry(execution.stream).or_default().insert(execution.correlation);
    }
    let made: Vec<(u32, usize)> = calls.iter().map(|(stream, all)| (*stream, all.len())).collect();
    let executed: Vec<(u32, usize)> = correlations.iter().map(|(stream, all)| (*stream, all.len())).collect();
    assert_eq!(made, executed, "submissions by stream");
    let right: BTreeMap<u32, u64> = correlations
        .iter()
        .flat_map(|(stream, all)| all.iter().copied().zip(calls[stream].iter().copied()))
        .collect();
    let is_wrong = |it: &&Execution| it.submission.map(|by| by.call) != right.get(&it.correlation).copied();
    trace.executions.iter().filter(is_wrong).count()
}

/// The stand-in CUPTI's number of a stream that was created.
fn stream_number(handle: u64) -> u32 {
    const FIRST: u32 = 13;
    const STEP: u64 = 0x80;
    FIRST + u32::try_from(handle % (1 << 24) / STEP).unwrap_or_else(|e| panic!("{handle:x}: {e}"))
}

/// Checks function and times.
fn assert_is_possible(execution: &Execution, call: &Call) {
    let kind = SUBMITTING.iter().find(|(name, _)| *name == &*call.name).and_then(|(_, kind)| *kind);
    match kind {
        Some(kind) => assert_eq!((kind, execution.graph), (execution.kind.as_str(), None), "{call:?}"),
        None => assert!(execution.graph.is_some(), "{execution:?}: {call:?}"),
    }
    let earliest = call.start_ns + START_DELAY_NS;
    assert!(execution.start_ns + CLOCK_ERROR_NS > earliest, "{execution:?} before {call:?}");
    let queued_ns = execution.submission.map(|it| it.queued_ns);
    assert_eq!(queued_ns, Some(execution.start_ns.saturating_sub(call.start_ns)), "{execution:?}: {call:?}");
}

/// The calls that submitted something, in the order of their starts. What is captured is not submitted.
fn submitting_calls(trace: &Recording) -> Vec<&Call> {
    let mut calls: Vec<&Call> = trace.calls.iter().collect();
    calls.sort_by_key(|call| call.start_ns);
    let mut capturing = BTreeSet::new();
    calls.retain(|call| {
        if *call.name == *CAPTURE[0] {
            capturing.insert(call.tid);
        } else if *call.name == *CAPTURE[1] {
            capturing.remove(&call.tid);
        }
        SUBMITTING.iter().any(|(name, _)| *name == &*call.name) && !capturing.contains(&call.tid)
    });
    calls
}
