//! Records of launches without a return probe, which come when their thread makes its next call.

use gpuprobe_event::{Call, Outcome, Tid};

use super::GpuOpReplay;
use super::tests::{at, fed, idle_times, launch, wait};

fn by(tid: u32, call: Call) -> Call {
    Call { tid: Tid(tid), ..call }
}

#[test]
fn a_late_record_begins_no_gap_and_ends_no_idle_time() {
    let calls = [
        at(launch("k", 5), 0, 10),
        at(wait(Some(5)), 200, 50),
        at(launch("k", 5), 300, 10),
        at(wait(Some(5)), 400, 50),
        // submitted before the second wait
        by(2, at(launch("k", 5), 320, 10)),
        at(launch("k", 5), 500, 10),
        // submitted before the last launch
        by(2, at(launch("k", 5), 460, 10)),
        at(launch("k", 5), 520, 10),
    ];
    assert_eq!(idle_times(&calls), [(5, vec![(250, 300), (450, 500)])]);
    let gaps = fed(&calls).gaps;
    let longest: Vec<_> = gaps.longest.iter().map(|gap| (gap.since_ns, gap.ns)).collect();
    assert_eq!(longest, [(250, 50), (450, 50), (510, 10)], "each begins with what was last");
}

#[test]
fn the_last_operation_is_the_one_that_began_last() {
    let mut replay = GpuOpReplay::default();
    replay.feed(&at(launch("later", 5), 300, 10));
    replay.feed(&by(2, at(launch("earlier", 5), 100, 10)));
    let all = replay.last_operations(&[], 1000);
    let ages: Vec<_> = all.into_values().flatten().map(|op| (op.operation, op.age_ns)).collect();
    assert_eq!(ages, [("later".to_owned(), 700)]);
    let deferred = by(3, at(launch("deferred", 5), 400, 10));
    let last = |later: &[Call]| {
        replay.last_operations(later, 1000).into_values().flatten().next().unwrap().operation
    };
    assert_eq!(
        (last(&[deferred]), last(&[])),
        ("deferred".to_owned(), "later".to_owned()),
        "which is not kept"
    );
}

#[test]
fn a_launch_inside_one_whose_end_is_unknown_counts_once() {
    let outer = Call { id: 1, outcome: Outcome::Unobserved, ..at(launch("k", 5), 0, 0) };
    let inner = |id| Call { id, parent: Some(1), nested: true, ..at(launch("k", 5), 2, 5) };
    assert_eq!(fed(&[inner(2), inner(3), outer.clone()]).kernels[0].totals.launches, 1);
    let unfinished = Call { outcome: Outcome::Unfinished, ..outer };
    assert_eq!(fed(&[inner(2), unfinished]).kernels.len(), 0, "it has not returned");
}

#[test]
fn launches_without_a_return_probe_are_counted_by_kernel() {
    let unprobed = Call { return_probed: false, ..at(launch("k", 5), 0, 10) };
    let totals = fed(&[unprobed, at(launch("k", 5), 100, 10)]).kernels.remove(0).totals;
    assert_eq!((totals.launches, totals.unprobed_returns), (2, 1));
}
