//! The section about several recordings: their clocks, the ranks of the job, and the collectives that ranks came late to.

use gpuprobe_analysis::SummaryReport;
use gpuprobe_analysis::ranks::{Basis, RankFigures};

use super::sections::{MOST_ROWS, end_table, table};
use super::svg::{escape, put};
use crate::summary::rank_tables::{late_collective, offset, sentences};
use crate::units::duration;

pub(super) fn ranks(out: &mut String, summary: &SummaryReport) {
    let Some(report) = &summary.ranks else { return };
    out.push_str("<h2>Stragglers</h2>\n<ul id=\"stragglers\">\n");
    for sentence in sentences(report) {
        put!(out, "<li>{}</li>\n", escape(&sentence));
    }
    for late in &report.latest {
        let communicator = summary.collectives.communicators.get(late.communicator);
        put!(out, "<li>{}</li>\n", escape(&late_collective(late, communicator)));
    }
    out.push_str("</ul>\n");
    table(
        out,
        "ranks",
        &["rank", "pid", "last", "late", "at most", "ahead", "in calls", "waiting", "launching"],
    );
    for rank in report.ranks.iter().take(MOST_ROWS) {
        let RankFigures { late_ns, most_late_ns, ahead_ns, in_calls_ns, waiting_ns, launching_ns, .. } =
            *rank;
        let name = escape(&rank.name);
        let (pid, last) = (rank.pid, rank.last);
        put!(out, "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{pid}</td><td>{last}</td>");
        for ns in [late_ns, most_late_ns, ahead_ns, in_calls_ns, waiting_ns, launching_ns] {
            put!(out, "<td>{}</td>", duration(ns));
        }
        out.push_str("</tr>\n");
    }
    end_table(out, report.ranks.len());
    table(out, "clocks", &["trace", "host", "offset", "within"]);
    for recording in report.recordings.iter().take(MOST_ROWS) {
        let is_compared = recording.basis == Basis::Collectives;
        let within = recording.uncertainty_ns.filter(|_| is_compared).map(duration).unwrap_or_default();
        put!(
            out,
            "<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{within}</td></tr>\n",
            escape(&recording.trace),
            escape(&recording.host),
            offset(recording),
        );
    }
    end_table(out, report.recordings.len());
}
