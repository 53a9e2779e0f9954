use gpuprobe_event::agent::{Activity, AgentState, Collection, GraphRecords, RangeKind, RangeRecord};
use gpuprobe_event::{AgentEvent, Execution, ExecutionKind, Tid};

use super::*;
use crate::samples::{launch, of_kernel, process};

const ORIGIN_NS: u64 = 1_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const PID: Tgid = Tgid(100);

/// All calls are known when executions are.
fn records() -> AgentRecords {
    let mut records = AgentRecords::new(ORIGIN_NS);
    records.calls_are_known(u64::MAX);
    records
}

fn fed(to: &mut AgentRecords, sequence: u64, now_ns: u64, records: Vec<AgentRecord>) -> Vec<Event> {
    let header = BatchHeader { sequence, ..BatchHeader::default() };
    to.batch((PID, &Arc::from("app")), &header, records, now_ns, |name| format!("{name}()"))
}

fn state(collection: Collection, begin_ns: u64, end_ns: u64) -> AgentRecord {
    AgentRecord::State(AgentState {
        collection,
        graphs: GraphRecords::Whole,
        code: 0,
        tid: 5,
        begin_ns: ORIGIN_NS + begin_ns,
        end_ns: ORIGIN_NS + end_ns,
        text: "libcupti.so.13".to_owned(),
    })
}

fn kernel(correlation: u32, start_ns: u64) -> AgentRecord {
    let (start_ns, name) = (ORIGIN_NS + start_ns, 9);
    AgentRecord::Activity(Activity {
        correlation,
        start_ns,
        end_ns: start_ns + 50,
        name,
        ..Activity::default()
    })
}

fn name() -> AgentRecord {
    AgentRecord::Name { id: 9, text: "add".to_owned() }
}

fn launched(id: u64, start_ns: u64) -> Call {
    Call { id, start_ns, ..of_kernel(launch("cuLaunchKernel", None), Some("add()")) }
}

fn executions(events: Vec<Event>) -> Vec<Execution> {
    let execution = |event| match event {
        Event::Execution(execution) => Some(*execution),
        _ => None,
    };
    events.into_iter().filter_map(execution).collect()
}

fn launches(events: Vec<Event>) -> Vec<Option<u64>> {
    executions(events).into_iter().map(|one| one.submission.map(|by| by.call)).collect()
}

#[test]
fn a_state_that_is_sent_again_changes_nothing() {
    let mut records = records();
    let collecting = || vec![state(Collection::Collecting, 10, 20)];
    assert_eq!(fed(&mut records, 1, 0, collecting()).len(), 1);
    records.call(&launched(1, 1000));
    fed(&mut records, 2, SECOND_NS, vec![kernel(5, 7_000), name()]);
    assert_eq!(fed(&mut records, 3, SECOND_NS, collecting()), []);
    assert_eq!(launches(records.finish()), [Some(1)]);
}

#[test]
fn many_calls_that_are_read_together_with_the_beginning_have_their_executions() {
    const CALLS: u32 = 1 << 13;
    let mut records = records();
    let mut report = vec![state(Collection::Collecting, 10, 20), name()];
    report.extend((1..=CALLS).map(|id| kernel(id, u64::from(id) * 1000 + 100)));
    records.announce(PID, &report);
    (1..=CALLS).for_each(|id| records.call(&launched(id.into(), u64::from(id) * 1000)));
    let mut events = fed(&mut records, 1, 0, report);
    events.extend(records.finish());
    assert_eq!(launches(events), (1..=CALLS).map(|id| Some(id.into())).collect::<Vec<_>>());
}

#[test]
fn executions_are_given_out_when_they_have_settled_and_have_their_names() {
    let mut records = records();
    let began = fed(&mut records, 1, 0, vec![state(Collection::Collecting, 10, 20)]);
    assert!(matches!(&began[..], [Event::Agent(it)] if matches!(**it, AgentEvent { begin_ns: 10, .. })));
    records.call(&launched(1, 1000));
    records.call(&launched(2, 9000));
    fed(&mut records, 2, SECOND_NS, vec![kernel(8, 15_000), kernel(5, 7_000)]);
    assert_eq!(records.settled(SECOND_NS + 1), []);
    assert_eq!(records.settled(3 * SECOND_NS), [], "the name may still come");
    fed(&mut records, 3, 3 * SECOND_NS, vec![name()]);
    let executed = executions(records.settled(3 * SECOND_NS));
    let shown: Vec<_> =
        executed.iter().map(|one| (one.correlation, one.submission.map(|by| by.call))).collect();
    assert_eq!(shown, [(5, Some(1)), (8, Some(2))]);
    assert_eq!((executed[0].start_ns, executed[0].duration_ns()), (7_000, 50));
    assert_eq!(executed[0].submission.map(|by| (by.tid, by.queued_ns)), Some((Tid(100), 6_000)));
    assert_eq!(executed[0].kind.title(), "add()");
    assert_eq!(records.without_times(), 0);
}

#[test]
fn a_name_that_does_not_come_is_unknown() {
    let mut records = records();
    fed(&mut records, 1, 0, vec![kernel(5, 7_000)]);
    assert_eq!(records.settled(4 * SECOND_NS), []);
    let executed = executions(records.settled(5 * SECOND_NS));
    assert!(matches!(executed[0].kind, ExecutionKind::Kernel { name: None, .. }));
}

#[test]
fn correlation_ids_count_on_where_32_bits_end() {
    let mut records = records();
    fed(&mut records, 1, 0, vec![state(Collection::Collecting, 0, 0), name()]);
    let ids: Vec<_> = (0..20_u32).map(|at| (u32::MAX - 30).wrapping_add(at * 3)).collect();
    for at in 0..20_u32 {
        records.call(&launched(at.into(), u64::from(at) * 10_000 + 1));
    }
    // in any order
    let mut batch: Vec<_> =
        ids.iter().zip(0_u64..).map(|(id, at)| kernel(*id, at * 10_000 + 5_000)).collect();
    batch.reverse();
    fed(&mut records, 2, SECOND_NS, batch);
    assert_eq!(launches(records.finish()), (0..20).map(Some).collect::<Vec<_>>());
}

#[test]
fn a_second_collection_does_not_match_the_submissions_between() {
    let mut records = records();
    fed(&mut records, 1, 0, vec![state(Collection::Collecting, 0, 0), name()]);
    (0..30).for_each(|at| records.call(&launched(at, at * 10_000 + 1)));
    let first = (0..10).map(|at| kernel(at * 2, u64::from(at) * 10_000 + 5_000)).collect();
    fed(&mut records, 2, SECOND_NS, first);
    fed(&mut records, 3, SECOND_NS, vec![state(Collection::Stopped, 95_000, 99_000)]);
    assert_eq!(launches(records.settled(3 * SECOND_NS)), (0..10).map(Some).collect::<Vec<_>>());
    (30..40).for_each(|at| records.call(&launched(at, at * 10_000 + 1)));
    let again = fed(&mut records, 4, SECOND_NS, vec![state(Collection::Collecting, 399_000, 399_500)]);
    assert!(matches!(&again[..], [Event::Agent(_)]));
    (40..50).for_each(|at| records.call(&launched(at, at * 10_000 + 1)));
    let second = (40..50).map(|at| kernel(at * 2, u64::from(at) * 10_000 + 5_000)).collect();
    fed(&mut records, 5, 5 * SECOND_NS, second);
    assert_eq!(launches(records.finish()), (40..50).map(Some).collect::<Vec<_>>());
}

#[test]
fn executions_wait_until_their_calls_are_known() {
    let mut records = AgentRecords::new(ORIGIN_NS);
    fed(&mut records, 1, 0, vec![name(), kernel(1, 5_000), kernel(2, 9_000)]);
    records.call(&launched(1, 1_000));
    records.calls_are_known(6_000);
    let calls = |events| executions(events).iter().map(|one| one.submission.map(|by| by.call)).collect();
    let first: Vec<_> = calls(records.settled(3 * SECOND_NS));
    records.call(&launched(2, 7_000));
    records.calls_are_known(20_000);
    let second: Vec<_> = calls(records.settled(3 * SECOND_NS));
    assert_eq!((first, second), (vec![Some(1)], vec![Some(2)]));
}

#[test]
fn executions_without_times_are_counted() {
    let mut records = records();
    let without = Activity { correlation: 1, ..Activity::default() };
    fed(&mut records, 1, 0, vec![AgentRecord::Activity(without)]);
    assert_eq!((records.finish(), records.without_times()), (Vec::new(), 1));
}

#[test]
fn ranges_wait_for_their_names_and_keep_their_order() {
    let mut records = records();
    let range = |name, at: u64| {
        let (start_ns, end_ns) = (ORIGIN_NS + at, ORIGIN_NS + at + 5);
        let kind = RangeKind::Nested;
        AgentRecord::Range(RangeRecord { kind, tid: 7, start_ns, end_ns, domain: 0, name, color: 0 })
    };
    fed(&mut records, 1, 0, vec![range(9, 100), range(8, 200)]);
    fed(&mut records, 2, 0, vec![name()]);
    let shown = |events: Vec<Event>| -> Vec<_> {
        let range = |event| match event {
            Event::Range(range) => (range.name.to_string(), range.start_ns, range.end_ns),
            other => panic!("{other:?}"),
        };
        events.into_iter().map(range).collect()
    };
    assert_eq!(shown(records.settled(1)), [("add()".to_owned(), 100, 105)]);
    assert_eq!(shown(records.settled(5 * SECOND_NS)), [(String::new(), 200, 205)]);
}

#[test]
fn what_a_process_left_is_given_out_when_it_exits() {
    let mut records = records();
    fed(&mut records, 1, 0, vec![name(), kernel(1, 5)]);
    let exit = process(ProcessChange::Exit, 100, Some(0));
    assert_eq!(executions(records.process(&exit)).len(), 1);
    assert_eq!(records.finish(), []);
}

#[test]
fn very_many_waiting_activities_are_matched_at_once() {
    let mut records = records();
    let many = (0..200_000).map(|at| kernel(at, u64::from(at) * 100)).collect();
    assert_eq!(executions(fed(&mut records, 1, 0, many)).len(), 200_000);
}
