//! A job of several ranks, each on a host with its own clock, of which one is slow.

use std::borrow::Cow;

use gpuprobe_event::trace::{FORMAT, Meta};
use gpuprobe_event::{Api, Call, Class, Event, Outcome, ProcessChange, ProcessEvent, Rank, Tgid, Tid, Value};

use super::Origin;
use crate::samples::{call, process};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const STREAM: u64 = 0x7100;
const COMM: u64 = 0x5b00;
/// All processes have the same pid: hosts do not know of each other.
pub(super) const PID: Tgid = Tgid(4711);

/// What is generated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub seed: u64,
    pub ranks: usize,
    pub steps: u64,
    /// The slow rank, and by how much it is slow in each step.
    pub slow: (usize, u64),
    /// How much each rank varies in a step.
    pub jitter_ns: u64,
}

/// A generator of numbers (xorshift).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most.max(1)
    }
}

/// The recording of one rank.
#[derive(Debug)]
pub(super) struct Recorded {
    pub meta: Meta,
    pub events: Vec<Event>,
    /// The true time of its time 0.
    pub starts_ns: u64,
    /// By how much its wall clock is ahead of the true time.
    pub ahead_ns: i64,
}

impl Recorded {
    /// Adds a call with the next id.
    pub(super) fn add(&mut self, mut event: Event) {
        if let Event::Call(call) = &mut event {
            call.id = self.events.len() as u64 + 1;
        }
        self.events.push(event);
    }

    pub(super) fn origin(&self) -> Origin {
        Origin::of(&format!("{}.jsonl", self.meta.host), &self.meta)
    }
}

fn made((begin_ns, end_ns): (u64, u64), of: Call) -> Event {
    let outcome = Outcome::Returned { value: 0, duration_ns: end_ns - begin_ns };
    Event::Call(Box::new(Call {
        start_ns: begin_ns,
        outcome,
        tgid: PID,
        tid: Tid(PID.0),
        process: "python".into(),
        ..of
    }))
}

fn nccl(class: Class, name: &'static str, args: Vec<(&'static str, Value)>) -> Call {
    let args = args.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
    Call { class, args: Some(args), ..call(Api::Nccl, name, 0) }
}

pub(super) fn all_reduce() -> Call {
    let args = vec![
        ("count", Value::Uint(1 << 20)),
        ("datatype", Value::Name("ncclFloat32".into())),
        ("op", Value::Name("ncclSum".into())),
        ("comm", Value::Hex(COMM)),
        ("stream", Value::Hex(STREAM)),
    ];
    nccl(Class::Collective, "ncclAllReduce", args)
}

fn synchronize() -> Call {
    Call { class: Class::Sync, stream: Some(STREAM), ..call(Api::Runtime, "cudaStreamSynchronize", 0) }
}

impl Job {
    /// The recordings of all ranks.
    pub(super) fn recorded(&self) -> Vec<Recorded> {
        let mut random = Random::new(self.seed);
        let mut recorded: Vec<_> = (0..self.ranks).map(|rank| self.begun(rank, &mut random)).collect();
        let mut free_ns: Vec<u64> = recorded.iter().map(|_| 20_000 * MS).collect();
        for _ in 0..self.steps {
            // each computes, submits the collective, and waits for it
            let begins_ns: Vec<u64> = (0..self.ranks)
                .map(|rank| {
                    let slow_ns = if rank == self.slow.0 { self.slow.1 } else { 0 };
                    free_ns[rank] + 4 * MS + slow_ns + random.below(self.jitter_ns)
                })
                .collect();
            let all_begun_ns = begins_ns.iter().max().copied().unwrap_or(0);
            let transfer_ns = 150 * US + random.below(40 * US);
            for (rank, begin_ns) in begins_ns.into_iter().enumerate() {
                let submitted_ns = begin_ns + 20 * US + random.below(20 * US);
                let waits_ns = submitted_ns + 5 * US;
                // the host notices the end late
                let ended_ns = all_begun_ns + transfer_ns + 5 * US + random.below(60 * US);
                let of = &mut recorded[rank];
                let local = |ns: u64| ns - of.starts_ns;
                let submit = made((local(begin_ns), local(submitted_ns)), all_reduce());
                let wait = made((local(waits_ns), local(ended_ns.max(waits_ns + US))), synchronize());
                of.add(submit);
                of.add(wait);
                free_ns[rank] = ended_ns;
            }
        }
        recorded
    }

    /// A recording up to the creation of the communicator.
    fn begun(&self, rank: usize, random: &mut Random) -> Recorded {
        let starts_ns = 1_000 * MS + random.below(9_000 * MS);
        let ahead_ns = random.below(20_000 * MS).cast_signed() - 10_000 * MS.cast_signed();
        let unix_ns = 1_700_000_000_000_000_000 + starts_ns.cast_signed() + ahead_ns;
        let start = ProcessEvent {
            tgid: PID,
            tid: Tid(PID.0),
            process: "python".into(),
            rank: Some(Rank { variable: "RANK".to_owned(), number: rank as u32 }),
            ..process(ProcessChange::Start, 5, None)
        };
        let args = vec![
            ("comm", Value::Hex(COMM)),
            ("nranks", Value::Int(self.ranks as i64)),
            ("commId", Value::Hex(0xfeed)),
            ("rank", Value::Int(rank as i64)),
        ];
        let begin_ns = 19_000 * MS - starts_ns;
        let init = made((begin_ns, begin_ns + MS), nccl(Class::Comm, "ncclCommInitRank", args));
        let meta = Meta {
            format: FORMAT,
            host: format!("node{}", rank + 1),
            start_unix: unix_ns as f64 / 1e9,
            ..Meta::default()
        };
        let mut recorded = Recorded { meta, events: vec![Event::Process(start)], starts_ns, ahead_ns };
        recorded.add(init);
        recorded
    }
}
