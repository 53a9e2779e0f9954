//! Communicators of NCCL as text: what they are, and sentences about ranks that differ.

use std::collections::BTreeMap;

use gpuprobe_analysis::{Collective, Communicator, CommunicatorRank, Differing};
use gpuprobe_event::Tgid;

use crate::units::{count, grouped};

/// Ranks that one sentence names.
const MOST_NAMED: usize = 8;

/// One sentence for the ranks of a communicator that have made fewer collectives than others, and one for each rank
/// that made other collectives. None if all ranks agree.
pub fn collective_sentences(communicator: &Communicator) -> Vec<String> {
    let name = communicator_name(communicator);
    let differing = &communicator.comparison.differing;
    let mut sentences: Vec<_> = differing
        .iter()
        .take(MOST_NAMED)
        .map(|rank| format!("{name}: {}", differs(communicator, rank)))
        .collect();
    if let Some(more) = differing.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        sentences.push(format!("{name}: {} too", count_ranks(more, "differs", "differ")));
    }
    if communicator.comparison.is_partial {
        sentences
            .push(format!("{name}: some collectives were not compared, because ranks were too far apart"));
    }
    sentences.extend(behind(communicator).map(|behind| format!("{name}: {behind}")));
    sentences
}

/// `communicator of 8 ranks`.
pub(crate) fn communicator_name(communicator: &Communicator) -> String {
    let observed = communicator.ranks.len() as u64;
    match communicator.size.map(u64::from) {
        Some(size) if size > observed => format!("communicator of {size} ranks, {observed} observed"),
        Some(size) => format!("communicator of {}", count(size, "rank", "ranks")),
        None if communicator.is_complete => {
            format!("part of a communicator, {} observed", count(observed, "rank", "ranks"))
        }
        None => {
            let pid = communicator.ranks.first().map_or(Tgid(0), |rank| rank.pid);
            format!("communicator of pid {pid}, made before the recording")
        }
    }
}

/// How many collectives each rank made: `41`, or `40 to 41`.
pub(crate) fn made_by_each(communicator: &Communicator) -> String {
    let made = || communicator.ranks.iter().map(|rank| rank.collectives);
    match (made().min().unwrap_or(0), made().max().unwrap_or(0)) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// The functions of all ranks with the number of their calls, most first.
pub(crate) fn functions(communicator: &Communicator) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let all = |rank: &CommunicatorRank| rank.functions.clone().into_iter().chain(rank.point_to_point.clone());
    for (function, n) in communicator.ranks.iter().flat_map(all) {
        let sum = sums.entry(function).or_default();
        *sum = sum.saturating_add(n);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    sums.iter().map(|(function, n)| format!("{function} {n}")).collect::<Vec<_>>().join(", ")
}

fn behind(communicator: &Communicator) -> Option<String> {
    let comparison = &communicator.comparison;
    let (named, more) = comparison.behind.split_at(comparison.behind.len().min(MOST_NAMED));
    if named.is_empty() {
        return None;
    }
    let most = format!(
        "{} {}",
        count_ranks(comparison.at_most, "made", "made"),
        count(comparison.most, "collective", "collectives")
    );
    let fewer = named.iter().map(|rank| format!("{} made {}", who(rank.rank, rank.pid), rank.collectives));
    let more = (!more.is_empty()).then(|| count_ranks(more.len(), "made fewer", "made fewer"));
    let list: Vec<_> = std::iter::once(most).chain(fewer).chain(more).collect();
    let next = comparison.next.map(|next| format!("; the next would be {}", described(&next, false)));
    Some(list.join(", ") + &next.unwrap_or_default())
}

fn differs(communicator: &Communicator, rank: &Differing) -> String {
    let is_same = described(&rank.made, false) == described(&rank.others_made, false);
    let (made, others_made) = (described(&rank.made, is_same), described(&rank.others_made, is_same));
    let have = count_ranks(rank.others, "has", "have");
    let who = who(rank.rank, rank.pid);
    let most = communicator.comparison.most;
    let total = match rank.collectives == most {
        true => String::new(),
        false => {
            format!("; it made {}, the others {most}", count(rank.collectives, "collective", "collectives"))
        }
    };
    format!("{who} differs at collective {}: {made} where {have} {others_made}{total}", rank.number)
}

fn count_ranks(ranks: usize, one: &str, many: &str) -> String {
    format!("{} {}", count(ranks as u64, "rank", "ranks"), if ranks == 1 { one } else { many })
}

fn who(rank: Option<u32>, pid: Tgid) -> String {
    match rank {
        Some(rank) => format!("rank {rank} (pid {pid})"),
        None => format!("pid {pid}"),
    }
}

/// `ncclAllReduce of 1,048,576 float32`; with all arguments ` (sum)` or ` (root 3)` follows.
pub(crate) fn described(made: &Collective, all_arguments: bool) -> String {
    let elements = match (made.count, made.datatype()) {
        (Some(count), Some(datatype)) => format!(" of {} {datatype}", grouped(count)),
        (Some(count), None) => format!(" of {}", grouped(count)),
        (None, datatype) => datatype.map_or_else(String::new, |datatype| format!(" of {datatype}")),
    };
    let root = made.root.map(|root| format!("root {root}"));
    let more: Vec<_> = made.reduction().into_iter().chain(root).collect();
    match all_arguments && !more.is_empty() {
        true => format!("{}{elements} ({})", made.function, more.join(", ")),
        false => format!("{}{elements}", made.function),
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::{Behind, Comparison};

    use super::*;

    fn communicator(size: Option<u32>, is_complete: bool, comparison: Comparison) -> Communicator {
        Communicator { id: None, size, is_complete, ranks: Vec::new(), comparison }
    }

    fn behind(ranks: u32) -> Comparison {
        let rank = |rank| Behind { rank: Some(rank), pid: Tgid(30 + rank), collectives: 40 };
        Comparison { most: 41, at_most: 1, behind: (1..=ranks).map(rank).collect(), ..Comparison::default() }
    }

    #[test]
    fn a_communicator_is_named_by_what_is_known() {
        let name =
            |size, is_complete| communicator_name(&communicator(size, is_complete, Comparison::default()));
        assert_eq!(name(Some(8), true), "communicator of 8 ranks, 0 observed");
        assert_eq!(name(Some(0), true), "communicator of 0 ranks");
        assert_eq!(name(None, true), "part of a communicator, 0 ranks observed");
        assert_eq!(name(None, false), "communicator of pid 0, made before the recording");
    }

    #[test]
    fn a_sentence_names_few_ranks() {
        let sentences = collective_sentences(&communicator(Some(0), true, behind(1)));
        assert_eq!(
            sentences,
            ["communicator of 0 ranks: 1 rank made 41 collectives, rank 1 (pid 31) made 40"]
        );
        let sentences = collective_sentences(&communicator(Some(0), true, behind(20)));
        assert!(sentences[0].ends_with("rank 8 (pid 38) made 40, 12 ranks made fewer"), "{sentences:?}");
        let partial = Comparison { is_partial: true, ..Comparison::default() };
        assert_eq!(collective_sentences(&communicator(Some(2), true, partial)).len(), 1);
        assert!(collective_sentences(&communicator(Some(2), true, Comparison::default())).is_empty());
    }
}
