//! The section about collectives: the ranks that differ, and a table of all ranks.

use gpuprobe_analysis::{Collectives, Communicator, CommunicatorRank};

use super::sections::{MOST_ROWS, end_table, table};
use super::svg::{escape, put};
use crate::collective_text::{collective_sentences, communicator_name};

pub(super) fn collectives(out: &mut String, collectives: &Collectives) {
    if collectives.is_empty() {
        return;
    }
    out.push_str("<h2>Collectives</h2>\n");
    let sentences: Vec<_> = collectives.communicators.iter().flat_map(collective_sentences).collect();
    if !sentences.is_empty() {
        out.push_str("<ul id=\"collective-differences\">\n");
        for sentence in sentences.iter().take(MOST_ROWS) {
            put!(out, "<li class=\"bad\">{}</li>\n", escape(sentence));
        }
        out.push_str("</ul>\n");
    }
    if collectives.is_incomplete {
        out.push_str("<p>calls were lost: counts may be too low, and ranks may seem to differ</p>\n");
    }
    table(out, "collectives", &["communicator", "rank", "process", "collectives", "point to point"]);
    let ranks =
        || collectives.communicators.iter().flat_map(|of| of.ranks.iter().map(move |rank| (of, rank)));
    ranks().take(MOST_ROWS).for_each(|(communicator, rank)| row(out, communicator, rank));
    end_table(out, ranks().count());
}

fn row(out: &mut String, communicator: &Communicator, rank: &CommunicatorRank) {
    let name = communicator_name(communicator);
    let id = communicator.id.map_or_else(String::new, |id| format!("commId {id:#x}"));
    let number = rank.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
    let point_to_point = rank.point_to_point.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
    put!(
        out,
        "<tr data-name=\"{name}\"><td class=\"name\" title=\"{id}\">{name}</td><td>{number}</td><td>{} {}</td><td>{}</td><td>{point_to_point}</td></tr>\n",
        rank.pid,
        escape(&rank.process),
        rank.collectives,
    );
}
