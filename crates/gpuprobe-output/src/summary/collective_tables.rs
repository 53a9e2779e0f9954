//! The section about collectives: a table of communicators, and the ranks that differ.

use gpuprobe_analysis::Collectives;

use super::layout::{NameTable, SummaryOptions, line, wrapped};
use super::quality::{Quality, marked};
use crate::collective_text::{collective_sentences, communicator_name, functions, made_by_each};
use crate::units::count;

/// Sentences that are shown.
const MOST_SENTENCES: usize = 16;

pub(super) fn collectives(
    out: &mut String,
    collectives: &Collectives,
    options: &SummaryOptions,
    quality: Quality,
) {
    if collectives.is_empty() {
        return;
    }
    let all = &collectives.communicators;
    let (shown, more) = all.split_at(all.len().min(options.few()));
    let titles = [&marked("collectives", quality), "of each rank", "calls"];
    let mut table = NameTable::new(&titles, &["calls"], &["calls"]);
    for communicator in shown {
        let name = communicator_name(communicator);
        table.push(vec![name, made_by_each(communicator), functions(communicator)]);
    }
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        let more = count(more.len() as u64, "more communicator", "more communicators");
        line(out, format_args!("and {more}"));
    }
    if collectives.others > 0 {
        let others = count(collectives.others, "collective", "collectives");
        line(out, format_args!("{others} of further communicators"));
    }
    let sentences: Vec<_> = all.iter().flat_map(collective_sentences).collect();
    for sentence in sentences.iter().take(MOST_SENTENCES) {
        line(
            out,
            format_args!("{}", wrapped(sentence, options.width.saturating_sub(2)).replace("\n", "\n  ")),
        );
    }
    if let Some(more) = sentences.len().checked_sub(MOST_SENTENCES).filter(|more| *more > 0) {
        line(out, format_args!("and {}", count(more as u64, "more difference", "more differences")));
    }
}
