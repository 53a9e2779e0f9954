//! The timeline of a recording as text: one row for each thread and each stream.

use std::fmt::Write;

use gpuprobe_analysis::timeline::{Activity, Bin, Lane, TimelineReport};

use crate::gpu_op_text::stream;
use crate::units::{count, duration, fitted, printable, seconds};

/// The smallest number of columns for time, on any terminal.
const LEAST_COLUMNS: usize = 20;
const LONGEST_LABEL: usize = 28;
/// Columns between two times above the rows.
const TICK_COLUMNS: usize = 16;

/// The characters of each activity: for a column that is mostly used by calls, and for one that is less so.
const GLYPHS: [(char, char); Activity::ALL.len()] =
    [('M', 'm'), ('T', 't'), ('L', 'l'), ('S', 's'), ('K', 'k'), ('O', 'o'), ('G', 'g')];

/// The timeline as text, at most `width` columns wide unless that is too narrow.
pub fn timeline(report: &TimelineReport, width: usize) -> String {
    let mut out = String::new();
    if report.rows.is_empty() {
        out.push_str("no calls in this time\n");
        return out;
    }
    let labels: Vec<String> = report.rows.iter().map(|row| label(&row.lane)).collect();
    let margin = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0) + 3;
    let columns = width.saturating_sub(margin).max(LEAST_COLUMNS);
    let span_ns = report.to_ns - report.from_ns;
    let column_ns = span_ns.div_ceil(columns as u64).max(1);
    line(
        &mut out,
        &format!(
            "{} from {}, a column is {}",
            duration(span_ns),
            seconds(report.from_ns),
            duration(column_ns)
        ),
    );
    line(&mut out, &format!("{:margin$}{}", "", ticks(report.from_ns, span_ns, columns)));
    let mut process = None;
    for (row, label) in report.rows.iter().zip(&labels) {
        if process != Some(row.tgid) {
            process = Some(row.tgid);
            line(&mut out, &format!("{} {}", row.tgid, fitted(&printable(&row.process), LONGEST_LABEL)));
        }
        let glyphs: String = row.fitted(report, columns).iter().map(|bin| glyph(bin, column_ns)).collect();
        line(&mut out, &format!("  {label:<0$} {glyphs}", margin - 3));
    }
    let legend: Vec<_> =
        report.activities().map(|doing| format!("{} {}", GLYPHS[doing as usize].0, doing.as_str())).collect();
    let mut notes = vec![format!("{}; small: less than half of the column", legend.join("  "))];
    if report.rows.iter().any(|row| matches!(row.lane, Lane::Stream(_))) {
        notes.push("streams show the calls that submitted operations, not when the GPU ran them".to_owned());
    }
    if report.has_gpu() {
        notes
            .push("GPUs show when they executed: G CUDA kernels and graphs, T copies and memsets".to_owned());
    }
    if report.calls_without_row > 0 {
        let calls = count(report.calls_without_row, "call", "calls");
        notes.push(format!("{calls} of further threads and streams are not shown"));
    }
    notes.iter().for_each(|note| wrapped(&mut out, note, width.max(margin + LEAST_COLUMNS)));
    out
}

/// Lines no wider than this, cut between words.
fn wrapped(out: &mut String, text: &str, width: usize) {
    let mut rest = text;
    while rest.chars().count() > width {
        let end = rest.char_indices().nth(width + 1).map_or(rest.len(), |(at, _)| at);
        let Some(at) = rest[..end].rfind(' ').filter(|at| *at > 0) else { break };
        line(out, &rest[..at]);
        rest = rest[at..].trim_start();
    }
    line(out, rest);
}

/// Appends a line without spaces at its end. Writing into a `String` cannot fail.
fn line(out: &mut String, text: &str) {
    let written = writeln!(out, "{}", text.trim_end());
    debug_assert!(written.is_ok());
}

/// The label of a row.
pub(crate) fn label(lane: &Lane) -> String {
    match lane {
        Lane::Thread(tid) => format!("thread {tid}"),
        Lane::Driver(tid) => format!("driver {tid}"),
        Lane::Stream(handle) => stream(*handle).into_owned(),
        Lane::Gpu { gpu, stream } => format!("GPU {gpu}, stream {stream}"),
    }
}

/// The character of the activity that took most of a column.
fn glyph(bin: &Bin, column_ns: u64) -> char {
    let most = (0..bin.len()).max_by_key(|i| (bin[*i], std::cmp::Reverse(*i))).unwrap_or(0);
    let all = bin.iter().copied().fold(0, u64::saturating_add);
    let (large, small) = GLYPHS[most];
    match all {
        0 => '.',
        _ if all >= column_ns / 2 => large,
        _ => small,
    }
}

/// Times above the columns that begin at them.
fn ticks(from_ns: u64, span_ns: u64, columns: usize) -> String {
    let mut ticks = String::new();
    for column in (0..columns).step_by(TICK_COLUMNS) {
        if columns - column < TICK_COLUMNS && column > 0 {
            break;
        }
        let at = from_ns + (u128::from(span_ns) * column as u128 / columns as u128) as u64;
        let tick = format!("|{}", seconds(at));
        ticks += &format!("{tick:<TICK_COLUMNS$}");
    }
    ticks
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::bins::Bins;
    use gpuprobe_analysis::timeline::Row;
    use gpuprobe_event::{Tgid, Tid};

    use super::*;

    const MS: u64 = 1_000_000;
    const FROM: u64 = 2_000 * MS;

    fn report() -> TimelineReport {
        let mut bins = Bins::default();
        let mut add = |doing: Activity, from_ns: u64, to_ns: u64| {
            for (times, bin) in bins.between(FROM + from_ns, FROM + to_ns) {
                let bin: &mut Bin = bin;
                bin[doing as usize] += times.end.min(FROM + to_ns) - times.start.max(FROM + from_ns);
            }
        };
        add(Activity::Memory, 0, MS - MS / 20);
        (4..20).for_each(|i| add(Activity::Launch, i * MS + MS / 20, (i + 1) * MS - MS / 20));
        add(Activity::Sync, 30 * MS + MS / 2, 30 * MS + MS / 2 + 1000);
        let row =
            |lane| Row { tgid: Tgid(7), process: "py\x1b[2Jthon".into(), lane, calls: 9, bins: bins.clone() };
        let rows = vec![row(Lane::Thread(Tid(7))), row(Lane::Stream(0))];
        TimelineReport { from_ns: FROM, to_ns: FROM + 40 * MS, rows, calls_without_row: 3 }
    }

    #[test]
    fn rows_are_aligned_with_their_times() {
        let text = timeline(&report(), 57);
        let expected = "\
40.0 ms from 2.000000 s, a column is 1.0 ms
                 |2.000000 s     |2.016000 s
7 py\\u{1b}[2Jthon
  thread 7       M...LLLLLLLLLLLLLLLL..........s.........
  default stream M...LLLLLLLLLLLLLLLL..........s.........
M memory  T transfer  L launch  S sync  O other; small:
less than half of the column
streams show the calls that submitted operations, not
when the GPU ran them
3 calls of further threads and streams are not shown
";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_empty_timeline_says_so_and_a_narrow_terminal_does_not_fail() {
        assert_eq!(timeline(&TimelineReport { rows: Vec::new(), ..report() }, 80), "no calls in this time\n");
        let narrow = timeline(&report(), 0);
        // labels and the smallest number of columns for time
        assert!(narrow.lines().skip(2).all(|line| line.chars().count() <= 17 + LEAST_COLUMNS), "{narrow}");
        assert!(narrow.ends_with(" shown\n"), "{narrow}");
    }
}
