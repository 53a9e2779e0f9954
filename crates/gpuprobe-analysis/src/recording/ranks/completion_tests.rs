use std::borrow::Cow;
use std::sync::Arc;

use gpuprobe_event::{Api, Call, Class, Event, Execution, ExecutionKind, SubmittingCall, Tid, Value};

use super::completion::{Completions, Progress, Token};
use super::generated::{PID, all_reduce};
use crate::samples::{call, captured, inside, launch, took};

const NCCL: u64 = 0x7100;
const COMPUTE: u64 = 0x7200;
const EVENT: u64 = 0xe0;

fn token(place: u64) -> Token {
    Token { communicator: 0, member: 0, place }
}

#[derive(Default)]
struct Process {
    completions: Completions,
    now_ns: u64,
    ids: u64,
}

impl Process {
    /// A call that begins now and takes so long.
    fn call(&mut self, ns: u64, call: Call) -> Call {
        self.ids += 1;
        let start_ns = self.now_ns;
        self.now_ns += ns;
        Call { id: self.ids, start_ns, tgid: PID, tid: Tid(PID.0), ..took(call, ns) }
    }

    fn feed(&mut self, call: Call) -> Vec<(Token, Progress)> {
        let mut out = Vec::new();
        self.completions.feed(&Event::Call(Box::new(call)), &mut out);
        out
    }

    fn collective(&mut self, place: u64) {
        let call = self.call(1000, all_reduce());
        self.completions.made(&call, token(place));
        assert_eq!(self.feed(call), []);
    }

    fn sync(&mut self, ns: u64, name: &'static str, stream: Option<u64>) -> Vec<(Token, Progress)> {
        let call = self.call(ns, Call { class: Class::Sync, stream, ..call(Api::Runtime, name, 0) });
        self.feed(call)
    }

    fn with_event(&mut self, name: &'static str, stream: Option<u64>) -> Vec<(Token, Progress)> {
        let args = Some(vec![(Cow::Borrowed("event"), Value::Hex(EVENT))]);
        let call = self.call(20_000, Call { stream, args, ..call(Api::Runtime, name, 0) });
        self.feed(call)
    }
}

fn ended(places: &[u64], at_ns: u64, waited: bool) -> Vec<(Token, Progress)> {
    places.iter().map(|place| (token(*place), Progress::Ended { at_ns, waited })).collect()
}

#[test]
fn a_wait_for_the_stream_ends_what_was_submitted_before_it_began() {
    let mut process = Process::default();
    (0..2).for_each(|place| process.collective(place));
    assert_eq!(process.sync(50_000, "cudaStreamSynchronize", Some(COMPUTE)), []);
    assert_eq!(process.sync(50_000, "cudaStreamSynchronize", Some(NCCL)), ended(&[0, 1], 102_000, true));
    assert_eq!(process.sync(50_000, "cudaStreamSynchronize", Some(NCCL)), []);
    process.collective(2);
    assert_eq!(process.sync(100, "cudaStreamQuery", Some(NCCL)), ended(&[2], 153_100, false));
    process.collective(3);
    assert_eq!(process.sync(9_000, "cudaDeviceSynchronize", None), ended(&[3], 163_100, false), "too short");
    // another thread submits while this one waits
    let wait = process.call(
        90_000,
        Call { class: Class::Sync, stream: Some(NCCL), ..call(Api::Runtime, "cudaStreamSynchronize", 0) },
    );
    process.now_ns -= 50_000;
    process.collective(4);
    assert_eq!(process.feed(wait), []);
}

#[test]
fn a_stream_that_waits_for_an_event_has_waited_for_what_was_before_the_event() {
    let mut process = Process::default();
    process.collective(0);
    assert_eq!(process.with_event("cudaEventRecord", Some(NCCL)), []);
    process.collective(1);
    assert_eq!(process.with_event("cudaStreamWaitEvent", Some(COMPUTE)), []);
    let at_ns = process.now_ns + 30_000;
    assert_eq!(process.sync(30_000, "cudaStreamSynchronize", Some(COMPUTE)), ended(&[0], at_ns, true));
    assert_eq!(process.with_event("cudaEventRecord", Some(NCCL)), []);
    let at_ns = process.now_ns + 20_000;
    assert_eq!(process.with_event("cudaEventSynchronize", None), ended(&[1], at_ns, true));
}

#[test]
fn several_ranks_in_a_process_are_on_several_gpus() {
    let mut process = Process::default();
    process.collective(0);
    let call = process.call(1000, all_reduce());
    process.completions.made(&call, Token { member: 1, ..token(0) });
    assert_eq!(process.sync(50_000, "cudaDeviceSynchronize", None), []);
    assert_eq!(process.sync(50_000, "cudaStreamSynchronize", Some(NCCL)).len(), 2);
}

#[test]
fn a_group_submits_its_collectives_when_it_ends() {
    let mut process = Process::default();
    let group = |name| Call { class: Class::Group, ..call(Api::Nccl, name, 0) };
    let start = process.call(10, group("ncclGroupStart"));
    assert_eq!(process.feed(start), []);
    (0..2).for_each(|place| process.collective(place));
    assert_eq!(process.sync(50_000, "cudaStreamSynchronize", Some(NCCL)), []);
    let begun = Progress::Begun { at_ns: process.now_ns };
    let end = process.call(10, group("ncclGroupEnd"));
    assert_eq!(process.feed(end), [(token(0), begun), (token(1), begun)]);
    let at_ns = process.now_ns + 50_000;
    assert_eq!(process.sync(50_000, "cudaStreamSynchronize", Some(NCCL)), ended(&[0, 1], at_ns, true));
}

#[test]
fn the_execution_of_its_launch_is_that_of_a_collective_and_captured_ones_have_none() {
    for is_captured in [false, true] {
        let mut process = Process::default();
        let made = process.call(1000, all_reduce());
        let inner = process.call(10, inside(launch("cuLaunchKernelEx", Some(NCCL)), made.id));
        let inner = if is_captured { captured(inner) } else { inner };
        let by = SubmittingCall { call: inner.id, tid: Tid(PID.0), queued_ns: 1 };
        assert_eq!(process.feed(inner), []);
        process.completions.made(&made, token(0));
        let execution = Execution {
            id: 9,
            tgid: PID,
            process: Arc::from("python"),
            kind: ExecutionKind::Graph,
            start_ns: 70_000,
            end_ns: 80_000,
            gpu: 0,
            context: 1,
            stream: 7,
            correlation: 1,
            graph: None,
            submission: Some(by),
        };
        let mut out = Vec::new();
        process.completions.feed(&Event::Execution(Box::new(execution)), &mut out);
        let expected =
            (!is_captured).then_some((token(0), Progress::Ran { start_ns: 70_000, end_ns: 80_000 }));
        assert_eq!(out, Vec::from_iter(expected));
        let waited = process.sync(50_000, "cudaStreamSynchronize", Some(NCCL));
        assert_eq!(waited.is_empty(), is_captured, "nothing was submitted: {waited:?}");
    }
}
