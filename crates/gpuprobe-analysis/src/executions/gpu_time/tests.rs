use gpuprobe_event::agent::GraphRecords;
use gpuprobe_event::{Api, SubmittingCall};

use super::*;
use crate::samples::{call, process, took};

const PID: Tgid = Tgid(100);
const THREAD: Tid = Tid(100);

pub(super) fn kernel(name: &str, start_ns: u64, end_ns: u64, queued_ns: Option<u64>) -> Execution {
    Execution {
        id: 0,
        tgid: PID,
        process: "app".into(),
        kind: ExecutionKind::Kernel {
            name: Some(name.into()),
            grid: [1, 1, 1],
            block: [1, 1, 1],
            shared_bytes: 0,
        },
        start_ns,
        end_ns,
        gpu: 0,
        context: 1,
        stream: 7,
        correlation: 1,
        graph: None,
        submission: queued_ns.map(|queued_ns| SubmittingCall { call: 1, tid: THREAD, queued_ns }),
    }
}

fn agent(collection: Collection, begin_ns: u64, end_ns: u64) -> Event {
    Event::Agent(Box::new(AgentEvent {
        id: 0,
        tgid: PID,
        tid: Tid(5),
        process: "app".into(),
        begin_ns,
        end_ns,
        collection,
        graphs: GraphRecords::Whole,
        code: 0,
        text: "libcupti.so".into(),
    }))
}

fn executed(execution: Execution) -> Event {
    Event::Execution(Box::new(execution))
}

fn range(name: &str, start_ns: u64, end_ns: u64) -> Event {
    Event::Range(Box::new(RangeEvent {
        id: 0,
        tgid: PID,
        tid: THREAD,
        process: "app".into(),
        kind: RangeKind::Nested,
        start_ns,
        end_ns,
        domain: None,
        name: name.into(),
        color: 0,
    }))
}

fn waited(start_ns: u64, ns: u64) -> Event {
    Event::Call(Box::new(Call { start_ns, ..took(call(Api::Runtime, "cudaStreamSynchronize", 0), ns) }))
}

fn fed(events: impl IntoIterator<Item = Event>) -> GpuTime {
    let mut account = GpuTimeAccount::default();
    events.into_iter().for_each(|event| account.feed(&event));
    account.report()
}

#[test]
fn nothing_gives_an_empty_report() {
    assert!(fed([]).is_empty());
}

#[test]
fn time_is_summed_by_kernel_and_copies_have_their_bandwidth() {
    let copy = |bytes, ns| Execution {
        kind: ExecutionKind::Copy { direction: CopyDirection::HostToDevice, bytes },
        ..kernel("", 0, ns, None)
    };
    let whole = Execution { kind: ExecutionKind::Graph, graph: Some(3), ..kernel("", 100, 150, Some(9)) };
    let unnamed = ExecutionKind::Kernel { name: None, grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    let report = fed([
        executed(kernel("a", 0, 10, Some(5))),
        executed(kernel("b", 10, 40, Some(5))),
        executed(kernel("a", 40, 70, None)),
        executed(copy(1000, 500)),
        executed(copy(3000, 1500)),
        executed(whole),
        executed(Execution { kind: unnamed, ..kernel("", 0, 1, None) }),
    ]);
    let rows: Vec<_> =
        report.kernels.iter().map(|row| (&*row.kernel, row.executions, row.total_ns)).collect();
    assert_eq!(rows, [("a", 2, 40), ("b", 1, 30), ("unknown", 1, 1)]);
    assert_eq!((report.kernels[0].min_ns, report.kernels[0].max_ns), (10, 30));
    assert_eq!(report.copies[0].bandwidth(), Some(2e9));
    assert_eq!(report.graphs.as_ref().map(|row| row.total_ns), Some(50));
    assert_eq!((report.executions, report.unmatched), (7, 4));
    assert_eq!(report.queueing.map(|delay| (delay.executions, delay.max_ns)), Some((3, 9)));
    assert_eq!(report.total_ns(), 40 + 30 + 1 + 2000 + 50);
}

#[test]
fn quantiles_of_executions_that_took_nearly_the_same_fit_their_mean() {
    let took = |ns| executed(kernel("a", 0, ns, None));
    let row = &fed((48_000..48_200).map(took)).kernels[0];
    let (mean, p50, p99) = (row.mean_ns().unwrap(), row.p50_ns.unwrap(), row.p99_ns.unwrap());
    assert!(mean.abs_diff(p50) <= 2 && mean < p99 && p99 <= row.max_ns, "{mean} {p50} {p99}");
}

#[test]
fn busy_time_is_that_of_the_union_over_the_time_covered() {
    let other_stream = |start, end| Execution { stream: 8, ..kernel("b", start, end, None) };
    let report = fed([
        agent(Collection::Collecting, 900, 1000),
        executed(kernel("a", 1100, 1300, None)),
        executed(other_stream(1200, 1500)),
        agent(Collection::Stopped, 2000, 2100),
        agent(Collection::Collecting, 5000, 5000),
        executed(kernel("a", 5100, 5200, None)),
        Event::Process(process(ProcessChange::Exit, 9000, Some(0))),
    ]);
    let gpu = &report.gpus[0];
    assert_eq!((gpu.busy_ns, gpu.covered_ns, gpu.executions), (500, 1000 + 200, 3));
    let streams: Vec<_> = gpu.streams.iter().map(|row| (row.stream, row.busy_ns)).collect();
    assert_eq!(streams, [(7, 300), (8, 300)]);
    assert_eq!((report.agents[0].state, report.agents[0].covered_ns), ("collecting", 1200));
    assert_eq!(report.idle, [], "nothing is known about the time between two collections");
}

#[test]
fn idle_time_is_divided_among_what_the_submitting_thread_did() {
    let report = fed([
        agent(Collection::Collecting, 0, 0),
        waited(50, 10),
        executed(kernel("a", 100, 200, Some(10))),
        waited(150, 100),
        // submitted at 400, after 150 ns outside of calls
        executed(kernel("a", 420, 500, Some(20))),
        executed(kernel("a", 600, 700, None)),
    ]);
    let rows: Vec<_> = report.idle.iter().map(|row| (row.host, row.idle_ns, row.times)).collect();
    use HostActivity::{In, Outside, Submitted, Unknown};
    let expected =
        [(Outside, 150, 1), (Unknown, 100, 1), (In("cudaStreamSynchronize"), 50, 1), (Submitted, 20, 1)];
    assert_eq!(rows, expected);
}

#[test]
fn gpu_time_is_grouped_by_the_innermost_range_of_the_submission() {
    let submitted_at = |at: u64, ns: u64| executed(kernel("a", at + 1000, at + 1000 + ns, Some(1000)));
    let report = fed([
        submitted_at(15, 1),
        range("inner", 20, 30),
        submitted_at(25, 2),
        range("outer", 10, 40),
        submitted_at(26, 4),
        submitted_at(35, 8),
        submitted_at(90, 16),
    ]);
    let rows: Vec<_> = report.ranges.iter().map(|row| (&*row.name, row.executions, row.gpu_ns)).collect();
    assert_eq!(rows, [("outer", 2, 9), ("inner", 2, 6)]);
}

#[test]
fn a_refusal_is_reported_without_any_execution() {
    let report = fed([agent(Collection::Refused, 10, 20)]);
    assert_eq!((report.agents[0].state, report.agents[0].covered_ns), ("refused", 0));
    assert!(!report.is_empty());
}

#[test]
fn memory_is_bounded_and_nothing_overflows() {
    let mut account = GpuTimeAccount::default();
    for at in 0..5000_u32 {
        let mut one = kernel(&format!("k{at}"), 0, u64::MAX, Some(u64::MAX));
        (one.gpu, one.stream, one.tgid) = (at, at, Tgid(at));
        account.feed(&executed(one));
        account.feed(&range(&format!("r{at}"), 0, u64::MAX));
    }
    let report = account.report();
    assert!(report.kernels.len() <= GpuTimeAccount::MOST_KERNELS + 2);
    assert_eq!(report.kernels.iter().map(|row| row.executions).sum::<u64>(), 5000);
    assert!(report.gpus.len() <= GpuTimeAccount::MOST_GPUS && report.ranges.len() <= 2048);
}
