use std::sync::Arc;

use gpuprobe_event::agent::{Activity, ActivityKind};
use gpuprobe_event::counters::CopyDirection;

use super::*;
use crate::executions::submission::SubmittedOp;

/// A program in which the GPU executes each submission a little later; the host waits for it every `wait` of them.
struct Program {
    host_ns: u64,
    gpu_ns: u64,
    submissions: Vec<Submission>,
    executed: Vec<Correlated>,
    correlation: u32,
}

const LAUNCH_NS: u64 = 4_000;
const LATENCY_NS: u64 = 6_000;

fn launch_of(name: &str) -> SubmittedOp {
    SubmittedOp::Kernel { name: Some(Arc::from(name)), grid: Some([1, 1, 1]), block: None, kernels: 1 }
}

fn kernel(name: &str) -> (Activity, Option<Arc<str>>) {
    (Activity { grid: [1, 1, 1], block: [32, 1, 1], ..Activity::default() }, Some(Arc::from(name)))
}

impl Program {
    fn new() -> Self {
        let (submissions, executed) = (Vec::new(), Vec::new());
        Self { host_ns: 1_000_000, gpu_ns: 0, submissions, executed, correlation: 10 }
    }

    fn submit(&mut self, op: SubmittedOp, activities: Vec<(Activity, Option<Arc<str>>)>, gpu_ns: u64) {
        self.submit_on(7, op, activities, gpu_ns);
    }

    fn submit_on(&mut self, tid: u32, op: SubmittedOp, of: Vec<(Activity, Option<Arc<str>>)>, gpu_ns: u64) {
        let (start_ns, call) = (self.host_ns, self.submissions.len() as u64);
        self.host_ns += LAUNCH_NS;
        self.submissions.push(Submission {
            call,
            tid: Tid(tid),
            start_ns,
            end_ns: self.host_ns,
            stream: None,
            op,
        });
        let mut at_ns = self.gpu_ns.max(start_ns + LATENCY_NS);
        self.correlation = self.correlation.wrapping_add(3);
        let correlation = self.correlation;
        let activities: Vec<_> = of
            .into_iter()
            .map(|(activity, name)| {
                let start_ns = at_ns;
                at_ns += gpu_ns;
                (Activity { correlation, start_ns, end_ns: at_ns, ..activity }, name)
            })
            .collect();
        self.gpu_ns = at_ns;
        self.executed.push(Correlated { id: self.executed.len() as u64, activities });
    }

    fn launch(&mut self, name: &str, gpu_ns: u64) {
        self.submit(launch_of(name), vec![kernel(name)], gpu_ns);
    }

    fn wait(&mut self) {
        self.host_ns = self.host_ns.max(self.gpu_ns) + 2_000;
    }

    /// Matches everything at once, without these submissions and executions; pairs of execution and submission.
    fn matched(
        &self,
        matcher: &mut Matcher,
        is_submission_lost: impl Fn(usize) -> bool,
        is_execution_lost: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Option<u64>)> {
        let kept = self.submissions.iter().enumerate().filter(|(at, _)| !is_submission_lost(*at));
        kept.for_each(|(_, submission)| matcher.submitted(submission.clone()));
        let executed = self.executed.iter().enumerate();
        let executed: Vec<_> = executed
            .filter(|(at, one)| !is_execution_lost(*at) && !one.activities.is_empty())
            .map(|(at, one)| (at, one.clone()))
            .collect();
        let (at, executed): (Vec<_>, Vec<_>) =
            executed.into_iter().map(|(at, one)| (at, Correlated { id: at as u64, ..one })).unzip();
        let found = matcher.matched(&executed, executed.len());
        at.into_iter().zip(found.into_iter().map(|found| found.map(|found| found.call))).collect()
    }
}

/// Collection began before everything.
fn collecting() -> Matcher {
    let mut matcher = Matcher::default();
    matcher.began(0, 0);
    matcher
}

fn right(pairs: &[(usize, Option<u64>)]) -> usize {
    pairs.iter().filter(|(at, call)| *call == Some(*at as u64)).count()
}

fn wrong(pairs: &[(usize, Option<u64>)]) -> usize {
    pairs.iter().filter(|(at, call)| call.is_some_and(|call| call != *at as u64)).count()
}

/// A loop of one CUDA kernel, in which the host waits for the GPU every so often.
fn same_kernel(count: usize, wait_every: usize, gpu_ns: u64) -> Program {
    let mut program = Program::new();
    for at in 0..count {
        program.launch("same", gpu_ns);
        if (at + 1) % wait_every == 0 {
            program.wait();
        }
    }
    program
}

/// Different CUDA kernels, copies and memsets, in an irregular order.
fn mixed(count: usize) -> Program {
    let mut program = Program::new();
    let mut random = 12_345_u64;
    for _ in 0..count {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match random >> 60 {
            0 => {
                let bytes = 1 + (random >> 40 & 7) * 512;
                let copy = Activity { kind: ActivityKind::Copy, copy_kind: 1, bytes, ..Activity::default() };
                let op = SubmittedOp::Copy { direction: CopyDirection::HostToDevice, bytes: Some(bytes) };
                program.submit(op, vec![(copy, None)], 3_000);
            }
            1 => {
                let memset = Activity { kind: ActivityKind::Memset, bytes: 64, ..Activity::default() };
                program.submit(SubmittedOp::Memset { bytes: Some(64) }, vec![(memset, None)], 1_000);
            }
            // the driver finds that nothing has to be done
            2 => {
                let op = SubmittedOp::Copy { direction: CopyDirection::HostToHost, bytes: Some(77) };
                program.submit(op, Vec::new(), 0);
            }
            kind => program.launch(["a", "b", "c"][kind as usize % 3], 1_000 + kind * 700),
        }
        if random >> 30 & 31 == 0 {
            program.wait();
        }
    }
    program
}

#[test]
fn everything_is_matched_if_nothing_is_lost() {
    for program in [same_kernel(5000, 10, 2_000), same_kernel(5000, 5000, 9_000)] {
        let pairs = program.matched(&mut collecting(), |_| false, |_| false);
        assert_eq!((right(&pairs), pairs.len()), (5000, 5000));
    }
}

#[test]
fn submissions_without_executions_are_skipped() {
    let pairs = mixed(5000).matched(&mut collecting(), |_| false, |_| false);
    assert!(right(&pairs) * 1000 >= pairs.len() * 999, "{} of {}", right(&pairs), pairs.len());
}

#[test]
fn collection_can_begin_in_the_middle_of_a_loop_of_one_kernel() {
    for (wait_every, gpu_ns) in [(1, 2_000), (7, 2_000), (50, 9_000)] {
        for taken_up in [0, 1, 13, 29] {
            let program = same_kernel(3000, wait_every, gpu_ns);
            // it took effect at one of thirty calls
            let (begin, effect, end) = (1000, 1000 + taken_up, 1029);
            let mut matcher = Matcher::default();
            matcher.began(program.submissions[begin].start_ns, program.submissions[end].start_ns);
            let pairs = program.matched(&mut matcher, |_| false, |at| at < effect);
            assert_eq!(
                (right(&pairs), pairs.len()),
                (3000 - effect, 3000 - effect),
                "{wait_every} {taken_up}"
            );
        }
    }
}

#[test]
fn submissions_that_arrive_after_the_beginning_are_dropped_if_they_are_from_before() {
    let program = same_kernel(10, 1, 1000);
    let mut matcher = Matcher::default();
    matcher.began(program.submissions[5].start_ns, program.submissions[5].start_ns);
    matcher.ended(program.submissions[7].start_ns);
    let pairs = program.matched(&mut matcher, |_| false, |at| !(5..=7).contains(&at));
    assert_eq!(pairs, [(5, Some(5)), (6, Some(6)), (7, Some(7))]);
    assert_eq!(matcher.slots.len(), 3);
}

#[test]
fn lost_submissions_leave_only_their_executions_unmatched() {
    let lost = |at: usize| (1000..1300).contains(&at) || at == 2000;
    let pairs = mixed(5000).matched(&mut collecting(), lost, |_| false);
    assert!(wrong(&pairs) < 20, "{} wrong", wrong(&pairs));
    assert!(right(&pairs) + 500 > pairs.len(), "{} of {}", right(&pairs), pairs.len());
    // of one kernel, many positions fit
    let program = same_kernel(3000, 10, 2_000);
    let mut matcher = collecting();
    let before = program.matched(&mut matcher, |at| at >= 1000, |at| at >= 1000);
    assert_eq!(right(&before), 1000);
    matcher.lost_submissions(program.submissions[1000].start_ns, program.submissions[1099].end_ns);
    let pairs = program.matched(&mut matcher, |at| at < 1100, |at| at < 1000);
    assert_eq!((right(&pairs), wrong(&pairs)), (0, 0));
}

#[test]
fn lost_executions_do_not_shift_the_others() {
    let lost = |at: usize| (1000..1400).contains(&at) || at == 2000;
    let pairs = mixed(5000).matched(&mut collecting(), |_| false, lost);
    assert!(wrong(&pairs) < 20, "{} wrong", wrong(&pairs));
    assert!(right(&pairs) + 40 > pairs.len(), "{} of {}", right(&pairs), pairs.len());
    let program = same_kernel(3000, 10, 2_000);
    let mut matcher = collecting();
    let before = program.matched(&mut matcher, |at| at >= 1000, |at| at >= 1000);
    assert_eq!(right(&before), 1000);
    matcher.lost_executions(program.submissions[1400].start_ns);
    let pairs = program.matched(&mut matcher, |at| at < 1000, |at| at < 1400);
    assert_eq!((right(&pairs), wrong(&pairs)), (1600, 0));
}

#[test]
fn overlapping_calls_of_two_threads_may_have_their_ids_in_either_order() {
    let mut program = Program::new();
    for at in 0..2000 {
        let name = ["x", "y"][at % 2];
        program.submit_on(at as u32 % 2, launch_of(name), vec![kernel(name)], 5_000);
    }
    for at in (0..2000).step_by(2).filter(|at| at % 3 == 0) {
        // the second call begins during the first and gets its id before it
        program.submissions[at + 1].start_ns = program.submissions[at].start_ns + 1;
        program.executed.swap(at, at + 1);
    }
    let pairs = program.matched(&mut collecting(), |_| false, |_| false);
    let right = pairs.iter().filter(|(at, call)| {
        let call = call.unwrap_or(u64::MAX) as usize;
        let swapped = at - at % 2;
        let expected = if swapped % 3 == 0 { swapped + 1 - at % 2 } else { *at };
        call == expected
    });
    assert_eq!(right.count(), 2000);
}

#[test]
fn all_nodes_of_a_graph_belong_to_its_launch_also_if_they_arrive_later() {
    let mut program = Program::new();
    let node = |name: &str| (Activity { graph: 3, ..kernel(name).0 }, Some(Arc::from(name)));
    for _ in 0..3 {
        program.launch("before", 1_000);
        let nodes = vec![node("n"); 500];
        program.submit(SubmittedOp::Graph { contents: None }, nodes, 100);
    }
    let mut matcher = Matcher::default();
    let pairs = program.matched(&mut matcher, |_| false, |_| false);
    assert_eq!(right(&pairs), 6);
    let more = [Correlated { id: 3, activities: vec![node("n"); 20] }];
    assert_eq!(matcher.matched(&more, 1)[0].map(|found| found.call), Some(3));
}

#[test]
fn an_execution_that_arrives_late_finds_its_submission_between_its_neighbours() {
    let mut program = Program::new();
    program.launch("a", 1_000);
    program.launch("long", 1_000);
    program.launch("b", 1_000);
    program.launch("long", 1_000);
    let mut matcher = Matcher::default();
    let pairs = program.matched(&mut matcher, |_| false, |at| at == 1);
    assert_eq!(right(&pairs), 3);
    let late = matcher.matched(&program.executed[1..2], 1);
    assert_eq!(late[0].map(|found| found.call), Some(1));
    // it is not given away twice
    assert_eq!(matcher.matched(&program.executed[..2], 2).len(), 2);
}

#[test]
fn an_execution_never_starts_before_its_submission() {
    let mut program = Program::new();
    program.launch("a", 1_000);
    program.host_ns += 1_000_000;
    program.launch("a", 1_000);
    let pairs = program.matched(&mut collecting(), |at| at == 0, |_| false);
    assert_eq!(pairs, [(0, None), (1, Some(1))]);
}

#[test]
fn unknown_names_match_anything_and_known_ones_do_not() {
    let fits = |submitted: Option<&str>, executed: Option<&str>| {
        let name = submitted.map(Arc::from);
        let op = SubmittedOp::Kernel { name, grid: None, block: None, kernels: 1 };
        let submission = Submission { call: 1, tid: Tid(1), start_ns: 0, end_ns: 1, stream: None, op };
        let activities = vec![(Activity::default(), executed.map(Arc::from))];
        Correlated { id: 1, activities }.fits(&submission, 0)
    };
    assert!(fits(None, Some("a")) && fits(Some("a"), None) && fits(Some("a"), Some("a")));
    assert!(fits(Some("void a<int>()"), Some("_Z1aIiEvv")), "a name that could not be demangled");
    assert!(!fits(Some("a"), Some("b")));
    let long = |end: &str| "x".repeat(4000) + end;
    assert!(fits(Some(&long("...~1")), Some(&long("yyy"))), "names are cut at different places");
}

#[test]
fn memory_and_time_are_bounded_for_executions_that_fit_nothing() {
    let mut program = Program::new();
    for _ in 0..Matcher::MOST_SUBMISSIONS + 5000 {
        program.submit(launch_of("submitted"), vec![kernel("executed")], 10);
    }
    let mut matcher = collecting();
    let pairs = program.matched(&mut matcher, |_| false, |_| false);
    assert_eq!(pairs.iter().filter(|(_, call)| call.is_some()).count(), 0);
    assert!(matcher.slots.len() <= Matcher::MOST_SUBMISSIONS && matcher.recent.len() <= Matcher::MOST_RECENT);
}
