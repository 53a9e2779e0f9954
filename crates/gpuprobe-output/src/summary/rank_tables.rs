//! The sections about several recordings: their clocks, the ranks of the job, and the collectives that ranks came late to.

use gpuprobe_analysis::ranks::{AlignedRecording, Basis, LateCollective, RankFigures, RanksReport};
use gpuprobe_analysis::{Collectives, Communicator};

use super::layout::{NameTable, SummaryOptions, heading, line, name, wrapped};
use crate::collective_text::{communicator_name, described};
use crate::units::{count, duration, grouped, seconds};

/// Ranks that are shown of many.
const FEW_RANKS: usize = 16;

pub(super) fn ranks(
    out: &mut String,
    report: Option<&RanksReport>,
    collectives: &Collectives,
    options: &SummaryOptions,
) {
    let Some(report) = report else { return };
    clocks(out, &report.recordings, options);
    heading(out, "Stragglers");
    for sentence in sentences(report) {
        let text = wrapped(&sentence, options.width.saturating_sub(2)).replace('\n', "\n  ");
        line(out, format_args!("{text}"));
    }
    figures(out, report, options);
    latest(out, &report.latest, collectives, options);
}

/// The clocks of the recordings.
fn clocks(out: &mut String, recordings: &[AlignedRecording], options: &SummaryOptions) {
    let titles = ["clocks", "host", "offset", "within", "at least", "at most", "collectives"];
    let mut table = NameTable::new(&titles, &["host"], &["at least", "at most", "collectives"]);
    for recording in recordings {
        let time = |ns: Option<i64>| ns.map_or_else(|| "-".to_owned(), signed);
        let is_compared = recording.basis == Basis::Collectives;
        let within = recording.uncertainty_ns.filter(|_| is_compared).map(duration);
        table.push(vec![
            name(&recording.trace),
            name(&recording.host),
            offset(recording),
            within.unwrap_or_else(|| "-".to_owned()),
            time(recording.least_offset_ns.filter(|_| is_compared)),
            time(recording.most_offset_ns.filter(|_| is_compared)),
            if is_compared { grouped(recording.collectives) } else { "-".to_owned() },
        ]);
    }
    out.push('\n');
    table.write(out, options);
}

/// The correction of a clock, or why it has none.
pub(crate) fn offset(recording: &AlignedRecording) -> String {
    match recording.basis {
        Basis::First => "reference".to_owned(),
        Basis::SameHost => "same host".to_owned(),
        Basis::Collectives => signed(recording.offset_ns),
        Basis::UnixTime => "Unix time only".to_owned(),
    }
}

/// `+2.350012 s`
fn signed(ns: i64) -> String {
    format!("{}{}", if ns < 0 { '-' } else { '+' }, seconds(ns.unsigned_abs()))
}

/// What the figures are based on, and who came last most often.
pub(crate) fn sentences(report: &RanksReport) -> Vec<String> {
    let of = |n: u64| format!("{} of {}", grouped(n), count_grouped(report.collectives));
    let mut sentences = Vec::new();
    if report.collectives == 0 {
        sentences.push("no collective was made by two ranks of these recordings".to_owned());
    }
    if let Some(first) = report.ranks.first().filter(|rank| rank.last > 0) {
        let average = duration(first.late_ns / first.last);
        sentences.push(format!(
            "{} came last to {}, {average} late on average",
            name(&first.name),
            of(first.last)
        ));
    }
    if report.undecided > 0 {
        sentences.push(format!("in {} no rank was later than the clocks may be off", of(report.undecided)));
    }
    if report.on_gpu < report.collectives {
        let rest = match report.on_gpu {
            0 => String::new(),
            some => format!(" in {}, otherwise when its CUDA kernel starts", of(report.collectives - some)),
        };
        sentences.push(format!("a rank comes when it makes the call{rest}"));
    }
    if report.contradicting > 0 {
        sentences.push(format!(
            "warning: {} ended on a rank before another one had begun, by up to {}: clocks drift, or were set",
            count(report.contradicting, "collective", "collectives"),
            duration(report.most_contradicting_ns)
        ));
    }
    for (n, why) in [
        (report.differing, "not compared: ranks made different ones"),
        (report.given_up, "not compared on all ranks: some made them much later in their recordings"),
    ] {
        if n > 0 {
            sentences.push(format!("{}: {why}", count(n, "collective", "collectives")));
        }
    }
    if report.other_processes > 0 {
        let calls = count(report.other_processes, "call or collective", "calls and collectives");
        sentences.push(format!("{calls} of further processes are not in the table"));
    }
    sentences
}

fn count_grouped(n: u64) -> String {
    format!("{} {}", grouped(n), if n == 1 { "collective" } else { "collectives" })
}

fn figures(out: &mut String, report: &RanksReport, options: &SummaryOptions) {
    let most = if options.rows == 0 { usize::MAX } else { FEW_RANKS };
    let titles = ["ranks", "pid", "last", "late", "at most", "ahead", "in calls", "waiting", "launching"];
    let mut table = NameTable::new(&titles, &[], &["ahead", "pid", "launching"]);
    let time = |ns: u64| if ns == 0 { "-".to_owned() } else { duration(ns) };
    for rank in report.ranks.iter().take(most) {
        let RankFigures { late_ns, most_late_ns, ahead_ns, in_calls_ns, waiting_ns, launching_ns, .. } =
            *rank;
        let mut row = vec![name(&rank.name), rank.pid.to_string(), grouped(rank.last)];
        row.extend([late_ns, most_late_ns, ahead_ns, in_calls_ns, waiting_ns, launching_ns].map(time));
        table.push(row);
    }
    out.push('\n');
    table.write(out, options);
    let more = report.ranks.len().saturating_sub(most) as u64;
    if more > 0 {
        line(out, format_args!("and {}; --rows 0 shows all", count(more, "more", "more")));
    }
}

fn latest(out: &mut String, latest: &[LateCollective], collectives: &Collectives, options: &SummaryOptions) {
    if latest.is_empty() {
        return;
    }
    heading(out, "Latest arrivals");
    for late in latest.iter().take(options.few().max(3)) {
        let text = late_collective(late, collectives.communicators.get(late.communicator));
        let text = wrapped(&text, options.width.saturating_sub(2)).replace('\n', "\n  ");
        line(out, format_args!("{text}"));
    }
}

/// `at 3.201000 s: node3 rank 2 was 6.1 ms late to ncclAllReduce of 1,024 float32, number 17 of a communicator of 4 ranks`
pub(crate) fn late_collective(late: &LateCollective, communicator: Option<&Communicator>) -> String {
    let who = late.arrivals.first().map_or_else(String::new, |last| name(&last.name));
    let of = communicator.map_or_else(String::new, |of| format!(" of a {}", communicator_name(of)));
    format!(
        "at {}: {who} was {} late to {}, number {}{of}",
        seconds(late.at_ns),
        duration(late.late_ns),
        described(&late.collective, false),
        grouped(late.number),
    )
}
