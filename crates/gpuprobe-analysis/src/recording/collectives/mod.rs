//! Collectives of NCCL by communicator and rank, from recorded calls. The ranks of a communicator must make the same
//! collectives in the same order, so the ones that differ are candidates for the cause of a hang.
//!
//! A collective counts when its call succeeds, or has begun and not returned. The ranks of a communicator are joined by
//! its unique id. If that was not read, they are joined by the order in which their processes made communicators of
//! that size. Memory is bounded for any input.

pub(crate) mod collective;
mod comparison;
mod creation;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use gpuprobe_event::{Call, Class, Event, Figures, Outcome, ProcessChange, Tgid, Tid};
use serde::{Serialize, Serializer};

pub use self::collective::Collective;
pub use self::comparison::{Behind, Communicator, Comparison, Differing};
use self::creation::{CreationOrder, GroupKey, Joining};
use self::sequence::{Sequences, Step};

/// Communicators that are distinguished.
const MOST_COMMUNICATORS: usize = 512;
/// Ranks of all communicators.
const MOST_RANKS: usize = 8192;
/// Collectives that are kept for comparisons, over all communicators.
const MOST_KEPT: usize = 1 << 17;
/// Threads and processes with state of their own.
const MOST_THREADS: usize = 1 << 16;
/// The last collectives of a rank that are reported.
const LAST: usize = 4;

/// The collectives of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Collectives {
    /// In the order in which they were first seen.
    pub communicators: Vec<Communicator>,
    /// Collectives of further communicators.
    pub others: u64,
    /// Calls were lost, so counts may be too low, and ranks may seem to differ.
    pub is_incomplete: bool,
}

impl Collectives {
    pub fn is_empty(&self) -> bool {
        self.communicators.is_empty() && self.others == 0
    }
}

/// One rank of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommunicatorRank {
    /// Its number in the communicator, if that is known.
    pub rank: Option<u32>,
    pub pid: Tgid,
    pub process: Arc<str>,
    /// Collectives that it made.
    pub collectives: u64,
    /// The same by function.
    pub functions: BTreeMap<&'static str, u64>,
    /// Point-to-point operations by function. They do not count as collectives.
    pub point_to_point: BTreeMap<&'static str, u64>,
    /// The last collectives, in order.
    pub last: VecDeque<Collective>,
    /// A hash of all its collectives in order. Equal sequences have equal hashes on every host.
    #[serde(serialize_with = "as_hex")]
    pub sequence_hash: u64,
}

fn as_hex<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:#x}"))
}

/// A collective in the sequence of a rank. The numbers are those of this account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadeCollective {
    pub communicator: usize,
    /// The rank.
    pub member: usize,
    /// How many collectives the rank had made before.
    pub place: u64,
    pub made: Collective,
}

/// A rank and its sequence.
#[derive(Clone, Debug)]
struct Member {
    rank: CommunicatorRank,
    branch: usize,
    is_unchecked: bool,
}

/// A communicator with the ranks that were observed.
#[derive(Clone, Debug)]
struct Group {
    key: GroupKey,
    /// The number of ranks that it was made for.
    size: Option<u32>,
    members: Vec<Member>,
    sequences: Sequences,
}

/// The calls of a thread that must not count again.
#[derive(Clone, Debug, Default)]
struct ThreadCalls {
    /// Calls that counted when they began, outer ones first.
    open: Vec<u64>,
    /// The call around the last one that counted.
    outer: Option<u64>,
}

/// Collects [`Collectives`] from events.
#[derive(Clone, Debug, Default)]
pub struct CollectiveAccount {
    groups: Vec<Group>,
    by_key: HashMap<GroupKey, usize>,
    /// The communicator and the member of a handle.
    handles: HashMap<(Tgid, u64), (usize, usize)>,
    creations: HashMap<Tgid, CreationOrder>,
    threads: HashMap<(Tgid, Tid), ThreadCalls>,
    ranks: usize,
    kept: usize,
    others: u64,
    is_incomplete: bool,
}

impl CollectiveAccount {
    pub fn feed(&mut self, event: &Event) {
        match event {
            Event::Call(call) => {
                self.feed_call(call);
            }
            Event::Process(change) if change.change != ProcessChange::Start => self.clear(change.tgid),
            Event::Loss(loss) => self.is_incomplete |= loss.cause.affects().contains(&Figures::Events),
            _ => {}
        }
    }

    /// The collectives up to now.
    pub fn report(&self) -> Collectives {
        Collectives {
            communicators: self.groups.iter().map(Communicator::of).collect(),
            others: self.others,
            is_incomplete: self.is_incomplete,
        }
    }

    /// Takes in a call, and returns the collective that it made.
    pub(crate) fn feed_call(&mut self, call: &Call) -> Option<MadeCollective> {
        match call.class {
            Class::Comm => self.communicator_call(call),
            Class::Collective | Class::P2p if took_place(call) && !self.counts_already(call) => {
                return self.count(call);
            }
            _ => {}
        }
        None
    }

    /// The ranks that a communicator was made for, if that is known, and those that were observed.
    pub(crate) fn size_of(&self, communicator: usize) -> (Option<u32>, usize) {
        self.groups.get(communicator).map_or((None, 0), |group| (group.size, group.members.len()))
    }

    /// The number of a rank in its communicator.
    pub(crate) fn rank_of(&self, communicator: usize, member: usize) -> Option<u32> {
        self.groups.get(communicator)?.members.get(member)?.rank.rank
    }

    /// A process exited, or runs another program. What it did stays.
    fn clear(&mut self, tgid: Tgid) {
        self.handles.retain(|(of, _), _| *of != tgid);
        self.threads.retain(|(of, _), _| *of != tgid);
        self.creations.remove(&tgid);
    }

    /// Whether a call counted when it began, or is part of a call that counts: `ncclBcast` calls `ncclBroadcast`.
    fn counts_already(&mut self, call: &Call) -> bool {
        const MOST_OPEN: usize = 8;
        let key = (call.tgid, call.tid);
        if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&key) {
            return false;
        }
        let thread = self.threads.entry(key).or_default();
        if call.outcome == Outcome::Begun {
            // ids of a thread are ascending, so calls that it jumped out of are not between these
            let outer = call.parent.and_then(|parent| thread.open.iter().position(|open| *open == parent));
            thread.open.truncate(outer.map_or(0, |outer| outer + 1).min(MOST_OPEN));
            thread.open.push(call.id);
            return outer.is_some();
        }
        if thread.open.contains(&call.id) || thread.outer == Some(call.id) {
            return true;
        }
        thread.outer = call.parent;
        false
    }

    fn count(&mut self, call: &Call) -> Option<MadeCollective> {
        let made = Collective::of(call);
        let Some((at, member)) = self.member_of(call) else {
            self.others = self.others.saturating_add(u64::from(made.is_some()));
            return None;
        };
        let group = self.groups.get_mut(at)?;
        let Member { rank, branch, is_unchecked } = group.members.get_mut(member)?;
        let Some(made) = made else {
            let function = collective::function(call).unwrap_or_default();
            *rank.point_to_point.entry(function).or_default() += 1;
            return None;
        };
        let place = rank.collectives;
        match group.sequences.step(*branch, rank.collectives, made, &mut self.kept, MOST_KEPT) {
            Step::On(on) => *branch = on,
            Step::Unchecked => *is_unchecked = true,
        }
        let on = *branch;
        rank.collectives += 1;
        *rank.functions.entry(made.function).or_default() += 1;
        if rank.last.len() == LAST {
            rank.last.pop_front();
        }
        rank.last.push_back(made);
        rank.sequence_hash = made.add_to(rank.sequence_hash);
        if group.sequences.is_long(on) {
            let least = group.members.iter().map(|member| member.rank.collectives).min().unwrap_or(0);
            self.kept -= group.sequences.forget_before(least);
        }
        Some(MadeCollective { communicator: at, member, place, made })
    }

    /// The rank that a call belongs to. A communicator whose creation was not observed is one of its own.
    fn member_of(&mut self, call: &Call) -> Option<(usize, usize)> {
        let handle = collective::handle(call, "comm")?;
        if let Some(known) = self.handles.get(&(call.tgid, handle)) {
            return Some(*known);
        }
        let all = self.creations.get_mut(&call.tgid).and_then(CreationOrder::take_unread);
        let joining = all.unwrap_or(Joining {
            key: GroupKey::Handle { pid: call.tgid, handle },
            size: None,
            rank: None,
        });
        self.join(call, handle, joining)
    }

    /// Makes a process a rank of a communicator.
    fn join(&mut self, call: &Call, handle: u64, joining: Joining) -> Option<(usize, usize)> {
        let at = match self.by_key.get(&joining.key) {
            _ if self.ranks >= MOST_RANKS => return None,
            Some(known) => *known,
            None if self.groups.len() >= MOST_COMMUNICATORS => return None,
            None => {
                let (key, size) = (joining.key.clone(), joining.size);
                self.groups.push(Group { key, size, members: Vec::new(), sequences: Sequences::default() });
                self.by_key.insert(joining.key, self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        let group = self.groups.get_mut(at)?;
        let rank = CommunicatorRank {
            rank: joining.rank,
            pid: call.tgid,
            process: Arc::clone(&call.process),
            collectives: 0,
            functions: BTreeMap::new(),
            point_to_point: BTreeMap::new(),
            last: VecDeque::new(),
            sequence_hash: 0xcbf2_9ce4_8422_2325,
        };
        group.members.push(Member { rank, branch: 0, is_unchecked: false });
        self.ranks += 1;
        let place = (at, group.members.len() - 1);
        self.handles.insert((call.tgid, handle), place);
        Some(place)
    }
}

/// Whether a call did something, or may still do it: it has not failed. A communicator that does not block its callers
/// answers `ncclInProgress`.
fn took_place(call: &Call) -> bool {
    const IN_PROGRESS: i64 = 7;
    match call.outcome {
        Outcome::Returned { .. } => call.status.is_none_or(|status| status == 0 || status == IN_PROGRESS),
        Outcome::Unfinished | Outcome::Begun | Outcome::Unobserved => true,
        Outcome::Instant => false,
    }
}
