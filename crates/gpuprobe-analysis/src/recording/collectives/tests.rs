use std::borrow::Cow;

use gpuprobe_event::{Api, LossCause, LossEvent, Value};

use super::*;
use crate::recording::summary::Summary;
use crate::samples::{call, inside, process, unfinished};

const ID: u64 = 0xfeed;

fn nccl(class: Class, name: &'static str, pid: u32, args: Vec<(&'static str, Value)>) -> Call {
    let args = args.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
    Call { class, tgid: Tgid(pid), tid: Tid(pid), args: Some(args), ..call(Api::Nccl, name, 0) }
}

/// The handle that the process of a rank has for the communicator.
fn handle(pid: u32) -> u64 {
    0x5b00 + u64::from(pid)
}

fn init(pid: u32, rank: i64, ranks: i64, id: Value) -> Call {
    let args = vec![
        ("comm", Value::Hex(handle(pid))),
        ("nranks", Value::Int(ranks)),
        ("commId", id),
        ("rank", Value::Int(rank)),
    ];
    nccl(Class::Comm, "ncclCommInitRank", pid, args)
}

fn all_reduce(pid: u32, count: u64) -> Call {
    let args = vec![
        ("count", Value::Uint(count)),
        ("datatype", Value::Name("ncclFloat32".into())),
        ("op", Value::Name("ncclSum".into())),
        ("comm", Value::Hex(handle(pid))),
    ];
    nccl(Class::Collective, "ncclAllReduce", pid, args)
}

fn all_gather(pid: u32, count: u64) -> Call {
    let args = vec![
        ("sendcount", Value::Uint(count)),
        ("datatype", Value::Name("ncclInt8".into())),
        ("comm", Value::Hex(handle(pid))),
    ];
    nccl(Class::Collective, "ncclAllGather", pid, args)
}

#[derive(Default)]
struct Job(CollectiveAccount);

impl Job {
    /// Ranks 0 to `ranks` are the processes 100 and following.
    fn of(ranks: u32) -> Self {
        let mut job = Self::default();
        for rank in 0..ranks {
            job.feed(init(100 + rank, rank.into(), ranks.into(), Value::Hex(ID)));
        }
        job
    }

    fn feed(&mut self, call: Call) {
        self.0.feed(&Event::Call(Box::new(call)));
    }

    fn all(&mut self, pids: impl IntoIterator<Item = u32>, call: impl Fn(u32) -> Call) {
        pids.into_iter().for_each(|pid| self.feed(call(pid)));
    }

    fn only(&self) -> Communicator {
        let mut report = self.0.report();
        assert_eq!((report.communicators.len(), report.others), (1, 0));
        report.communicators.remove(0)
    }

    fn sizes(&self) -> Vec<usize> {
        self.0.report().communicators.iter().map(|communicator| communicator.ranks.len()).collect()
    }
}

fn counts(communicator: &Communicator) -> Vec<(Option<u32>, u64)> {
    communicator.ranks.iter().map(|rank| (rank.rank, rank.collectives)).collect()
}

#[test]
fn ranks_with_equal_sequences_do_not_differ() {
    let mut job = Job::of(3);
    for step in 0..1000 {
        // each in another order
        job.all((0..3).map(|n| 100 + (n + step) % 3), |pid| all_reduce(pid, u64::from(step)));
    }
    let communicator = job.only();
    assert_eq!((communicator.id, communicator.size, communicator.is_complete), (Some(ID), Some(3), true));
    assert_eq!(counts(&communicator), [(Some(0), 1000), (Some(1), 1000), (Some(2), 1000)]);
    let comparison = &communicator.comparison;
    assert_eq!((comparison.most, comparison.at_most), (1000, 3));
    assert!(!comparison.finds_differences() && !comparison.is_partial);
    let hashes: Vec<_> = communicator.ranks.iter().map(|rank| rank.sequence_hash).collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    assert_eq!(
        communicator.ranks[0].last.iter().map(|c| c.count).collect::<Vec<_>>(),
        [996, 997, 998, 999].map(Some)
    );
    assert!(job.0.kept < 1000, "what every rank has made is dropped");
}

#[test]
fn a_rank_that_is_behind_is_named_with_its_next_collective() {
    let mut job = Job::of(8);
    for step in 0..40 {
        job.all(100..108, |pid| all_reduce(pid, step));
    }
    job.all((100..108).filter(|pid| *pid != 103), |pid| all_gather(pid, 77));
    let comparison = job.only().comparison;
    assert_eq!((comparison.most, comparison.at_most), (41, 7));
    assert_eq!(comparison.behind, [Behind { rank: Some(3), pid: Tgid(103), collectives: 40 }]);
    let next = comparison.next.unwrap();
    assert_eq!(
        (next.function, next.count, next.datatype()),
        ("ncclAllGather", Some(77), Some("int8".into()))
    );
    assert_eq!(comparison.differing, []);
}

#[test]
fn a_rank_that_differs_is_named_also_if_it_was_first() {
    for odd in [100, 102, 107] {
        for is_first in [true, false] {
            let mut job = Job::of(8);
            job.all(100..108, |pid| all_reduce(pid, 1));
            if is_first {
                job.feed(all_gather(odd, 5));
            }
            job.all((100..108).filter(|pid| *pid != odd), |pid| all_reduce(pid, 5));
            if !is_first {
                job.feed(all_gather(odd, 5));
            }
            job.all((100..108).filter(|pid| *pid != odd), |pid| all_reduce(pid, 6));
            let comparison = job.only().comparison;
            let [differing] = &comparison.differing[..] else { panic!("{comparison:?}") };
            assert_eq!((differing.pid, differing.number, differing.others), (Tgid(odd), 2, 7));
            assert_eq!(
                (differing.made.function, differing.others_made.function),
                ("ncclAllGather", "ncclAllReduce")
            );
            assert_eq!((comparison.most, comparison.at_most, differing.collectives), (3, 7, 2));
            assert_eq!(comparison.behind, []);
        }
    }
}

#[test]
fn a_skipped_collective_is_a_difference_in_size() {
    let mut job = Job::of(4);
    for step in 0..20 {
        job.all((100..104).filter(|pid| *pid != 101 || step != 16), |pid| all_reduce(pid, 1000 + step));
    }
    let comparison = job.only().comparison;
    let [differing] = &comparison.differing[..] else { panic!("{comparison:?}") };
    assert_eq!((differing.rank, differing.number, differing.others), (Some(1), 17, 3));
    assert_eq!((differing.made.count, differing.others_made.count), (Some(1017), Some(1016)));
    assert_eq!((comparison.most, differing.collectives), (20, 19));
}

#[test]
fn several_differences_are_each_found_where_they_begin() {
    let mut job = Job::of(8);
    job.all(100..108, |pid| all_reduce(pid, 1));
    job.feed(all_reduce(105, 99));
    job.all((100..108).filter(|pid| *pid != 105), |pid| all_reduce(pid, 2));
    job.feed(all_reduce(106, 98));
    job.all([100, 101, 102, 103, 104, 107], |pid| all_reduce(pid, 3));
    job.feed(all_gather(105, 3));
    let comparison = job.only().comparison;
    let found: Vec<_> = comparison.differing.iter().map(|d| (d.rank, d.number, d.others)).collect();
    assert_eq!(found, [(Some(5), 2, 7), (Some(6), 3, 6)]);
    assert_eq!(comparison.differing[1].others_made.count, Some(3));
}

#[test]
fn ranks_without_a_readable_id_are_joined_by_order_and_size() {
    let mut job = Job::default();
    for pid in [100, 101] {
        job.feed(init(pid, i64::from(pid) - 100, 2, Value::Unread));
        job.feed(all_reduce(pid, 1));
    }
    // another job of the same program
    for pid in [200, 201] {
        job.feed(init(pid, i64::from(pid) - 200, 2, Value::Unread));
        job.feed(all_reduce(pid, 1));
        job.feed(all_reduce(pid, 1));
    }
    job.feed(init(300, 0, 3, Value::Unread));
    assert_eq!(job.sizes(), [2, 2, 1]);
    assert!(job.0.report().communicators.iter().all(|c| !c.comparison.finds_differences()));
}

#[test]
fn communicators_with_the_same_id_are_joined_in_their_order() {
    let mut job = Job::of(2);
    job.all(100..102, |pid| all_reduce(pid, 1));
    for pid in [101, 100] {
        job.feed(init(pid, i64::from(pid) - 100, 2, Value::Hex(ID)));
        job.feed(all_gather(pid, 1));
    }
    let communicators = job.0.report().communicators;
    let made: Vec<_> = communicators.iter().map(counts).collect();
    assert_eq!(made, [[(Some(0), 1), (Some(1), 1)], [(Some(0), 1), (Some(1), 1)]]);
    assert!(communicators.iter().all(|c| c.id == Some(ID) && !c.comparison.finds_differences()));
}

#[test]
fn communicators_of_one_process_and_parts_of_them() {
    let mut job = Job::default();
    let handles = Value::Struct(vec![("0".into(), Value::Hex(0xa0)), ("1".into(), Value::Hex(0xa1))]);
    let args = vec![("comm", handles), ("ndev", Value::Int(3))];
    job.feed(nccl(Class::Comm, "ncclCommInitAll", 100, args));
    let on = |handle: u64| {
        let mut made = all_reduce(100, 8);
        made.args.as_mut().unwrap()[3].1 = Value::Hex(handle);
        made
    };
    [0xa1, 0xa0, 0xee, 0xa0].into_iter().for_each(|handle| job.feed(on(handle)));
    assert_eq!(counts(&job.only()), [(Some(0), 2), (Some(1), 1), (None, 1)]);
    // ranks 0 and 1 of color 5, the third has no part
    for (handle, color, part) in [(0xa0, 5, 0xb0), (0xa1, 5, 0xb1), (0xee, -1, 0)] {
        let args = vec![
            ("comm", Value::Hex(handle)),
            ("color", Value::Int(color)),
            ("key", Value::Int(0)),
            ("newcomm", Value::Hex(part)),
        ];
        job.feed(nccl(Class::Comm, "ncclCommSplit", 100, args));
    }
    job.feed(on(0xb0));
    assert_eq!(job.sizes(), [3, 2]);
}

#[test]
fn parts_are_joined_across_processes() {
    let mut job = Job::of(4);
    for pid in 100..104 {
        let split = |color: i64, made: u64| {
            let args = vec![
                ("comm", Value::Hex(handle(pid))),
                ("color", Value::Int(color)),
                ("newcomm", Value::Hex(made)),
            ];
            nccl(Class::Comm, "ncclCommSplit", pid, args)
        };
        job.feed(split(i64::from(pid % 2), 0xb0));
        job.feed(split(0, 0xb1));
    }
    assert_eq!(job.sizes(), [4, 2, 4, 2]);
}

#[test]
fn a_communicator_from_before_the_recording_is_counted_and_not_compared() {
    let mut job = Job::default();
    job.feed(all_reduce(100, 1));
    job.feed(all_reduce(101, 1));
    job.feed(all_reduce(101, 1));
    let report = job.0.report();
    assert_eq!(report.communicators.len(), 2);
    assert!(report.communicators.iter().all(|c| !c.is_complete && !c.comparison.finds_differences()));
}

#[test]
fn only_collectives_that_took_place_count_and_each_once() {
    let mut job = Job::of(1);
    let status = |status| Call { status: Some(status), ..all_reduce(100, 1) };
    job.feed(status(0));
    job.feed(status(7));
    job.feed(status(5));
    job.feed(unfinished(all_reduce(100, 1)));
    assert_eq!(counts(&job.only()), [(Some(0), 3)]);
    // the inner call ends first
    job.feed(inside(Call { id: 8, ..all_reduce(100, 1) }, 7));
    job.feed(Call { id: 7, ..all_reduce(100, 1) });
    assert_eq!(counts(&job.only()), [(Some(0), 4)]);
    // entries and returns
    let begun = |call: Call| Call { outcome: Outcome::Begun, status: None, ..call };
    job.feed(begun(Call { id: 10, ..all_reduce(100, 1) }));
    job.feed(begun(inside(Call { id: 11, ..all_reduce(100, 1) }, 10)));
    job.feed(inside(Call { id: 11, ..all_reduce(100, 1) }, 10));
    job.feed(Call { id: 10, ..all_reduce(100, 1) });
    job.feed(begun(Call { id: 12, ..all_reduce(100, 1) }));
    assert_eq!(counts(&job.only()), [(Some(0), 6)]);
}

#[test]
fn a_summary_has_the_collectives_of_open_calls_on_request() {
    let mut summary = Summary::default();
    for call in [init(100, 0, 2, Value::Hex(ID)), init(101, 1, 2, Value::Hex(ID))] {
        summary.feed(&Event::Call(Box::new(call)));
    }
    let open = [unfinished(all_reduce(101, 1))];
    let behind = |collectives: Collectives| collectives.communicators[0].comparison.behind.len();
    assert_eq!(behind(summary.collectives_with(&open)), 1);
    assert_eq!(behind(summary.report().collectives), 0, "the call counts when it returns");
}

#[test]
fn point_to_point_operations_and_variants_of_functions() {
    let mut job = Job::of(1);
    let send = |name| nccl(Class::P2p, name, 100, vec![("comm", Value::Hex(handle(100)))]);
    job.feed(send("ncclSend"));
    job.feed(send("pncclSend"));
    job.feed(send("ncclRecv"));
    job.feed(Call { name: "ncclAllReduceConfig".into(), ..all_reduce(100, 1) });
    job.feed(Call { name: "pncclAllReduce".into(), ..all_reduce(100, 1) });
    let rank = job.only().ranks.remove(0);
    assert_eq!((rank.collectives, &rank.functions), (2, &BTreeMap::from([("ncclAllReduce", 2)])));
    assert_eq!(rank.point_to_point, BTreeMap::from([("ncclRecv", 1), ("ncclSend", 2)]));
}

#[test]
fn a_handle_can_be_used_again() {
    let mut job = Job::of(1);
    job.feed(all_reduce(100, 1));
    job.feed(nccl(Class::Comm, "ncclCommDestroy", 100, vec![("comm", Value::Hex(handle(100)))]));
    job.feed(init(100, 0, 1, Value::Hex(ID + 1)));
    job.feed(all_reduce(100, 1));
    job.feed(all_reduce(100, 1));
    // another process with the same number
    job.0.feed(&Event::Process(process(ProcessChange::Exit, 5, Some(0))));
    job.feed(all_reduce(100, 1));
    let found = job.0.report().communicators;
    assert_eq!(found.iter().map(|c| c.ranks[0].collectives).collect::<Vec<_>>(), [1, 2, 1]);
    assert!(!found[2].is_complete);
}

#[test]
fn lost_calls_are_noted() {
    let mut job = Job::of(1);
    let lost = |cause| Event::Loss(LossEvent { at_ns: 0, cause, count: 1 });
    job.0.feed(&lost(LossCause::LostName));
    assert!(!job.0.report().is_incomplete);
    job.0.feed(&lost(LossCause::RingFull));
    assert!(job.0.report().is_incomplete);
}

#[test]
fn a_rank_far_behind_is_counted_and_noted_as_not_compared() {
    let mut job = Job::of(2);
    (0..10_000).for_each(|step| job.feed(all_reduce(100, step)));
    assert!(job.0.kept <= 4096);
    job.feed(all_reduce(101, 0));
    let comparison = job.only().comparison;
    assert_eq!(comparison.behind, [Behind { rank: Some(1), pid: Tgid(101), collectives: 1 }]);
    assert!(comparison.is_partial && comparison.next.is_none());
}

#[test]
fn any_input_takes_bounded_memory() {
    let mut job = Job::default();
    for n in 0..20_000_u32 {
        job.feed(init(n, i64::from(n), 1 << 20, Value::Hex(u64::from(n % 600))));
        job.feed(all_reduce(n, u64::from(n)));
        job.feed(nccl(Class::Collective, "ncclAllReduce", n, vec![("comm", Value::Unread)]));
        job.feed(nccl(
            Class::Comm,
            "ncclCommInitAll",
            n,
            vec![("comm", Value::Hex(1)), ("ndev", Value::Int(-1))],
        ));
        job.feed(nccl(Class::Collective, "noSuchFunction", n, Vec::new()));
    }
    let report = job.0.report();
    assert!(report.communicators.len() <= MOST_COMMUNICATORS && job.0.kept <= MOST_KEPT + MOST_RANKS);
    let ranks = report.communicators.iter().flat_map(|c| &c.ranks);
    let counted: u64 = ranks.map(|rank| rank.collectives).sum();
    assert!(report.communicators.iter().map(|c| c.ranks.len()).sum::<usize>() <= MOST_RANKS);
    assert_eq!(counted + report.others, 40_000);
    assert!(report.communicators.iter().any(|c| c.comparison.is_partial));
}
