//! The timeline: the calls of threads, and the calls that submitted operations to streams.

use gpuprobe_analysis::timeline::{Activity, Bin, Row, TimelineReport};

use super::svg::{escape, put};
use crate::timeline::label;
use crate::units::{count, duration};

/// Columns of a row. This is the finest resolution when zoomed.
const COLUMNS: usize = 1500;
/// Rows that are drawn: those with most calls.
const MOST_ROWS: usize = 48;

pub(super) fn timeline(out: &mut String, report: &TimelineReport) {
    if report.rows.is_empty() {
        return;
    }
    out.push_str("<h2>Timeline</h2>\n<p class=\"legend\">");
    for doing in Activity::ALL.into_iter().filter(|doing| *doing != Activity::Kernel || report.has_driver()) {
        let name = doing.as_str();
        put!(out, "<span><i style=\"background:var(--{name})\"></i>{name}</span>");
    }
    let seconds = |ns: u64| ns as f64 / 1e9;
    let (from, span) = (seconds(report.from_ns), seconds(report.to_ns - report.from_ns));
    put!(
        out,
        "</p>\n<div class=\"tools\"><button data-zoom=\"0.5\">zoom in</button><button data-zoom=\"2\">zoom out</button>\
         <button data-zoom=\"0\">all</button><span id=\"view\" class=\"faint\" data-from=\"{from}\" data-span=\"{span}\"></span></div>\n\
         <div class=\"lanes\" id=\"timeline\">\n"
    );
    let mut process = None;
    let (drawn, hidden) = busiest(&report.rows);
    for row in drawn {
        if process != Some(row.tgid) {
            process = Some(row.tgid);
            put!(out, "<div class=\"process\">{} {}</div>\n", row.tgid, escape(&row.process));
        }
        let name = label(&row.lane);
        let bins = row.fitted(report, COLUMNS);
        let calls = count(row.calls, "call", "calls");
        put!(out, "<div class=\"lane\" title=\"{name}: {calls}\">{name}</div>");
        put!(out, "<svg viewBox=\"0 0 {COLUMNS} 10\" preserveAspectRatio=\"none\" role=\"img\">");
        runs(out, &bins, (report.to_ns - report.from_ns).div_ceil(COLUMNS as u64).max(1));
        out.push_str("</svg>\n");
    }
    out.push_str(
        "</div>\n<p>streams show the calls that submitted operations, not when the GPU ran them</p>\n",
    );
    if hidden > 0 {
        put!(out, "<p>{} with fewer calls are not drawn</p>\n", count(hidden as u64, "row", "rows"));
    }
    if report.calls_without_row > 0 {
        let calls = count(report.calls_without_row, "call", "calls");
        put!(out, "<p>{calls} of further threads and streams are not drawn</p>\n");
    }
}

/// The rows with most calls, in their original order, and the number of other rows.
fn busiest(rows: &[Row]) -> (Vec<&Row>, usize) {
    let mut indexed: Vec<_> = rows.iter().enumerate().collect();
    indexed.sort_by_key(|(_, row)| std::cmp::Reverse(row.calls));
    indexed.truncate(MOST_ROWS);
    indexed.sort_by_key(|(at, _)| *at);
    let drawn: Vec<_> = indexed.into_iter().map(|(_, row)| row).collect();
    let hidden = rows.len() - drawn.len();
    (drawn, hidden)
}

/// Draws consecutive columns that look the same as one rectangle.
fn runs(out: &mut String, bins: &[Bin], column_ns: u64) {
    let looks: Vec<_> = bins.iter().map(|bin| look(bin, column_ns)).collect();
    let mut from = 0;
    while from < looks.len() {
        let length = looks[from..].iter().take_while(|look| **look == looks[from]).count();
        if let Some((doing, height)) = looks[from] {
            put!(
                out,
                "<rect class=\"{}\" x=\"{from}\" y=\"{}\" width=\"{length}\" height=\"{height}\"><title>{}: {}</title></rect>",
                doing.as_str(),
                10 - height,
                doing.as_str(),
                duration(bins[from..from + length].iter().flatten().copied().fold(0, u64::saturating_add))
            );
        }
        from += length;
    }
}

/// The activity that took most of a column, and how much of the column was used, in tenths.
fn look(bin: &Bin, column_ns: u64) -> Option<(Activity, u64)> {
    let all = bin.iter().copied().fold(0, u64::saturating_add);
    let most = (0..bin.len()).max_by_key(|i| (bin[*i], std::cmp::Reverse(*i)))?;
    // rounded, because a call that fills its column may reach into the next one by a nanosecond
    let (all_ns, column_ns) = (u128::from(all), u128::from(column_ns.max(1)));
    let height = ((all_ns * 10 + column_ns / 2) / column_ns).clamp(2, 10);
    (all > 0).then_some((Activity::ALL[most], u64::try_from(height).unwrap_or(10)))
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::bins::Bins;
    use gpuprobe_analysis::timeline::Lane;
    use gpuprobe_event::{Tgid, Tid};

    use super::*;

    #[test]
    fn the_rows_with_most_calls_are_drawn_in_their_original_order() {
        let row = |pid: u32| {
            let (lane, bins) = (Lane::Thread(Tid(pid)), Bins::default());
            Row { tgid: Tgid(pid), process: "p".into(), lane, calls: pid.into(), bins }
        };
        let rows: Vec<_> = (1..=60).map(row).collect();
        let report = TimelineReport { from_ns: 5, to_ns: 9, rows, calls_without_row: 3 };
        let mut out = String::new();
        timeline(&mut out, &report);
        let drawn: Vec<u32> = (1..=60).filter(|pid| out.contains(&format!(">thread {pid}<"))).collect();
        assert_eq!(drawn, (13..=60).collect::<Vec<_>>());
        assert!(out.find(">thread 13<") < out.find(">thread 60<"));
        assert!(out.contains("<p>12 rows with fewer calls are not drawn</p>"), "{out}");
        assert!(out.contains("<p>3 calls of further threads and streams are not drawn</p>"), "{out}");
    }
}
