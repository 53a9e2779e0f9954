//! How communicators are made, and which ranks of several processes belong together.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Call, Outcome, Tgid, Value};

use super::collective::{function, handle, number, value};
use super::{CollectiveAccount, Group, MOST_THREADS, took_place};

/// Splits and sizes of communicators that are distinguished in one process.
const MOST_ORDERS: usize = 1024;
/// The color of a rank that takes no part in a split.
const NO_COLOR: i32 = -1;

/// What the ranks of one communicator have in common. `round` is higher if the rank had joined one before: with
/// `NCCL_COMM_ID` all communicators of a job have the same id, and there may be several jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum GroupKey {
    /// The hash of the unique id, which all ranks got from one of them.
    Id { id: u64, size: u32, round: u32 },
    /// The order in which processes of one name made communicators of one size.
    Order { process: Arc<str>, size: u32, order: u32, round: u32 },
    /// All ranks are in one process.
    Process { pid: Tgid, call: u64 },
    /// A part of another communicator.
    Part { of: usize, function: &'static str, order: u32, color: i32 },
    /// The creation was not observed.
    Handle { pid: Tgid, handle: u64 },
}

/// A rank that joins a communicator.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    pub key: GroupKey,
    pub size: Option<u32>,
    pub rank: Option<u32>,
}

/// What one process has made so far.
#[derive(Clone, Debug, Default)]
pub(super) struct CreationOrder {
    /// Communicators without a known id, by size.
    by_size: HashMap<u32, u32>,
    /// Parts, by the communicator and rank that they were made from.
    parts: HashMap<((usize, usize), &'static str), u32>,
    /// A communicator of this process some of whose handles were not read, and how many.
    unread: Option<(Joining, u32)>,
}

impl CreationOrder {
    /// The communicator that an unknown handle belongs to.
    pub(super) fn take_unread(&mut self) -> Option<Joining> {
        let (joining, left) = self.unread.as_mut()?;
        *left = left.checked_sub(1)?;
        Some(joining.clone())
    }

    fn next_of_size(&mut self, size: u32) -> u32 {
        if self.by_size.len() >= MOST_ORDERS && !self.by_size.contains_key(&size) {
            return 0;
        }
        next(self.by_size.entry(size).or_default())
    }

    fn next_part(&mut self, of: ((usize, usize), &'static str)) -> u32 {
        if self.parts.len() >= MOST_ORDERS && !self.parts.contains_key(&of) {
            return 0;
        }
        next(self.parts.entry(of).or_default())
    }
}

fn next(counter: &mut u32) -> u32 {
    let order = *counter;
    *counter = counter.saturating_add(1);
    order
}

impl CollectiveAccount {
    /// A call that makes or ends communicators. It must have returned: only then the handle is known.
    pub(super) fn communicator_call(&mut self, call: &Call) {
        if !matches!(call.outcome, Outcome::Returned { .. }) || !took_place(call) {
            return;
        }
        match function(call) {
            Some("ncclCommInitRank") => self.rank_made(call, ["comm", "rank", "commId"]),
            Some("ncclCommInitRankScalable") => self.rank_made(call, ["newcomm", "myrank", "commIds"]),
            Some("ncclCommInitAll") => self.all_made(call),
            Some(function @ ("ncclCommSplit" | "ncclCommShrink")) => self.part_made(call, function),
            Some("ncclCommDestroy" | "ncclCommAbort") => {
                if let Some(handle) = handle(call, "comm") {
                    self.handles.remove(&(call.tgid, handle));
                }
            }
            _ => {}
        }
    }

    /// One rank was made. The names are those of the arguments for the new handle, the rank and the id.
    fn rank_made(&mut self, call: &Call, [made, rank, id]: [&str; 3]) {
        let unsigned = |name| number(call, name).and_then(|n| u32::try_from(n).ok());
        let (Some(handle), Some(size), Some(rank)) = (handle(call, made), unsigned("nranks"), unsigned(rank))
        else {
            return;
        };
        let key = match super::collective::handle(call, id) {
            Some(id) => self.free_round(rank, |round| GroupKey::Id { id, size, round }),
            None => {
                let Some(order) = self.order(call.tgid).map(|order| order.next_of_size(size)) else { return };
                let process = &call.process;
                self.free_round(rank, |round| GroupKey::Order {
                    process: Arc::clone(process),
                    size,
                    order,
                    round,
                })
            }
        };
        self.join(call, handle, Joining { key, size: Some(size), rank: Some(rank) });
    }

    /// The first round whose communicator does not have this rank yet.
    fn free_round(&self, rank: u32, key: impl Fn(u32) -> GroupKey) -> GroupKey {
        let has_rank = |group: &Group| group.members.iter().any(|member| member.rank.rank == Some(rank));
        let is_taken =
            |key: &GroupKey| self.by_key.get(key).and_then(|at| self.groups.get(*at)).is_some_and(has_rank);
        // each round that is taken is a communicator, of which there are not many
        (0..u32::MAX).map(&key).find(|key| !is_taken(key)).unwrap_or_else(|| key(u32::MAX))
    }

    fn all_made(&mut self, call: &Call) {
        let Some(size) = number(call, "ndev").and_then(|n| u32::try_from(n).ok()) else { return };
        let Some(Value::Struct(handles)) = value(call, "comm") else { return };
        let key = GroupKey::Process { pid: call.tgid, call: call.id };
        let mut read = 0;
        for (rank, (_, value)) in (0..size).zip(handles) {
            if let Value::Hex(handle) = value {
                let joining = Joining { key: key.clone(), size: Some(size), rank: Some(rank) };
                self.join(call, *handle, joining);
                read += 1;
            }
        }
        let unread = Joining { key, size: Some(size), rank: None };
        if let Some(order) = self.order(call.tgid) {
            order.unread = Some((unread, size.saturating_sub(read)));
        }
    }

    fn part_made(&mut self, call: &Call, function: &'static str) {
        let parent = handle(call, "comm").and_then(|comm| self.handles.get(&(call.tgid, comm)).copied());
        let (Some(parent), Some(handle)) = (parent, handle(call, "newcomm")) else { return };
        let Some(order) = self.order(call.tgid).map(|order| order.next_part((parent, function))) else {
            return;
        };
        let color = number(call, "color").unwrap_or(0);
        if color != NO_COLOR {
            let key = GroupKey::Part { of: parent.0, function, order, color };
            self.join(call, handle, Joining { key, size: None, rank: None });
        }
    }

    fn order(&mut self, tgid: Tgid) -> Option<&mut CreationOrder> {
        if self.creations.len() >= MOST_THREADS && !self.creations.contains_key(&tgid) {
            return None;
        }
        Some(self.creations.entry(tgid).or_default())
    }
}
