//! Compares the ranks of a communicator: which ones have made fewer collectives, and which ones other collectives.

use std::cmp::Reverse;

use gpuprobe_event::Tgid;
use serde::{Serialize, Serializer};

use super::collective::Collective;
use super::creation::GroupKey;
use super::{CommunicatorRank, Group, Member};

/// A communicator with the ranks that were observed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Communicator {
    /// The hash of its unique id, which NCCL's log calls `commId`.
    #[serde(serialize_with = "as_hex")]
    pub id: Option<u64>,
    /// The number of ranks that it was made for, of which other hosts may have some.
    pub size: Option<u32>,
    /// Its creation was observed, so counts begin at its first collective.
    pub is_complete: bool,
    /// The ranks that were observed, by number.
    pub ranks: Vec<CommunicatorRank>,
    pub comparison: Comparison,
}

fn as_hex<S: Serializer>(number: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => serializer.collect_str(&format_args!("{number:#x}")),
        None => serializer.serialize_none(),
    }
}

/// How the ranks of a communicator differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The most collectives that a rank has made, without the ranks in `differing`, and how many have made them.
    pub most: u64,
    pub at_most: usize,
    /// Ranks that have made fewer of the same collectives, fewest first.
    pub behind: Vec<Behind>,
    /// What the first of them would make next.
    pub next: Option<Collective>,
    /// Ranks that made another collective than most others, the earliest first.
    pub differing: Vec<Differing>,
    /// Some collectives could not be compared, because ranks were too far apart or differed in too many ways.
    pub is_partial: bool,
}

impl Comparison {
    pub fn finds_differences(&self) -> bool {
        !self.behind.is_empty() || !self.differing.is_empty()
    }
}

/// A rank that has made fewer collectives than others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Behind {
    pub rank: Option<u32>,
    pub pid: Tgid,
    pub collectives: u64,
}

/// A rank that made another collective than others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differing {
    pub rank: Option<u32>,
    pub pid: Tgid,
    /// The number of the first collective that differs, from 1.
    pub number: u64,
    pub made: Collective,
    /// What the others made.
    pub others_made: Collective,
    /// How many of them.
    pub others: usize,
    /// How many it made in all.
    pub collectives: u64,
}

impl Communicator {
    pub(super) fn of(group: &Group) -> Self {
        let mut ranks: Vec<_> = group.members.iter().map(|member| member.rank.clone()).collect();
        ranks.sort_by_key(|rank| (rank.rank.is_none(), rank.rank, rank.pid));
        Self {
            id: match group.key {
                GroupKey::Id { id, .. } => Some(id),
                _ => None,
            },
            size: group.size,
            is_complete: !matches!(group.key, GroupKey::Handle { .. }),
            ranks,
            comparison: compare(group),
        }
    }
}

fn compare(group: &Group) -> Comparison {
    let common = common_path(group);
    let mut comparison = Comparison {
        is_partial: group.members.iter().any(|member| member.is_unchecked),
        ..Comparison::default()
    };
    let mut agreeing = Vec::new();
    for member in &group.members {
        match difference(group, member, &common) {
            Some(differing) => comparison.differing.push(differing),
            None => agreeing.push(&member.rank),
        }
    }
    comparison.differing.sort_by_key(|rank| (rank.number, rank.rank, rank.pid));
    comparison.most = agreeing.iter().map(|rank| rank.collectives).max().unwrap_or(0);
    let is_behind = |rank: &&&CommunicatorRank| rank.collectives < comparison.most;
    comparison.behind = agreeing
        .iter()
        .filter(is_behind)
        .map(|rank| Behind { rank: rank.rank, pid: rank.pid, collectives: rank.collectives })
        .collect();
    comparison.at_most = agreeing.len() - comparison.behind.len();
    comparison.behind.sort_by_key(|rank| (rank.collectives, rank.rank, rank.pid));
    comparison.next =
        comparison.behind.first().and_then(|rank| group.sequences.at(&common, rank.collectives));
    comparison
}

/// The path of branches that most ranks took at every difference. If as many took another one, the first that was seen.
fn common_path(group: &Group) -> Vec<usize> {
    let paths: Vec<_> = group.members.iter().map(|member| group.sequences.path(member.branch)).collect();
    let through = |branch: usize| paths.iter().filter(|path| path.contains(&branch)).count();
    let mut common = vec![0];
    loop {
        let on = common.last().copied().unwrap_or(0);
        // the differences of this branch in order
        let children = group.sequences.branches.iter().enumerate();
        let mut children: Vec<_> = children
            .filter(|(_, branch)| branch.parent == Some(on))
            .map(|(child, branch)| (branch.start, Reverse(through(child)), child))
            .collect();
        children.sort_unstable();
        let taken = children.iter().find(|(start, Reverse(ranks), _)| {
            let stay = group.members.iter().zip(&paths).filter(|(member, path)| {
                let next = path.iter().position(|branch| *branch == on).and_then(|at| path.get(at + 1));
                let left_at = next.and_then(|next| group.sequences.branches.get(*next)).map(|b| b.start);
                path.contains(&on)
                    && left_at.is_none_or(|left| left > *start)
                    && member.rank.collectives > *start
            });
            *ranks > stay.count()
        });
        match taken {
            Some((_, _, child)) => common.push(*child),
            None => return common,
        }
    }
}

/// Where a rank left the path of most others.
fn difference(group: &Group, member: &Member, common: &[usize]) -> Option<Differing> {
    let branches = &group.sequences.branches;
    let path = group.sequences.path(member.branch);
    let shared = path.iter().zip(common).take_while(|(own, others)| own == others).count();
    let own = path.get(shared).and_then(|branch| branches.get(*branch));
    let others = common.get(shared).and_then(|branch| branches.get(*branch));
    let (number, made, others_made) = match (own, others) {
        (None, None) => return None,
        // the others went on where this rank left, or left later
        (Some(own), others) if others.is_none_or(|others| others.start > own.start) => {
            let (made, instead) = own.first?;
            (own.start, made, instead)
        }
        // both left in the same place
        (Some(own), Some(others)) if own.start == others.start => (own.start, own.first?.0, others.first?.0),
        // the others left where this rank went on, if it got there
        (_, Some(others)) if member.rank.collectives > others.start => {
            let (made, instead) = others.first?;
            (others.start, instead, made)
        }
        _ => return None,
    };
    let is_common = |other: &&Member| {
        let on = |path: &[usize]| group.sequences.branch_at(path, number);
        other.rank.collectives > number && on(&group.sequences.path(other.branch)) == on(common)
    };
    Some(Differing {
        rank: member.rank.rank,
        pid: member.rank.pid,
        number: number + 1,
        made,
        others_made,
        others: group.members.iter().filter(is_common).count(),
        collectives: member.rank.collectives,
    })
}
