//! What threads did over time, and when streams were given work.

use gpuprobe_analysis::timeline::{Bin, Doing, Row, TimelineReport};

use super::svg::{escape, put};
use crate::timeline::label;
use crate::units::{count, duration};

/// Columns of a row: as fine as it can be zoomed.
const COLUMNS: usize = 1500;
/// Rows that are drawn, those with most calls.
const MOST_ROWS: usize = 48;

pub(super) fn timeline(out: &mut String, report: &TimelineReport) {
    if report.rows.is_empty() {
        return;
    }
    out.push_str("<h2>Timeline</h2>\n<p class=\"legend\">");
    for doing in Doing::ALL.into_iter().filter(|doing| *doing != Doing::Kernel || report.has_driver()) {
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
            put!(out, "<div class=\"who\">{} {}</div>\n", row.tgid, escape(&row.process));
        }
        let name = label(&row.lane);
        let bins = row.fitted(report, COLUMNS);
        let calls = count(row.calls, "call", "calls");
        put!(out, "<div class=\"lane\" title=\"{name}: {calls}\">{name}</div>");
        put!(out, "<svg viewBox=\"0 0 {COLUMNS} 10\" preserveAspectRatio=\"none\" role=\"img\">");
        runs(out, &bins, (report.to_ns - report.from_ns).div_ceil(COLUMNS as u64).max(1));
        out.push_str("</svg>\n");
    }
    out.push_str("</div>\n<p>streams show the calls that gave them work, not when the GPU did it</p>\n");
    if hidden > 0 {
        put!(out, "<p>{} with fewer calls not drawn</p>\n", count(hidden as u64, "row", "rows"));
    }
    if report.left_out > 0 {
        let calls = count(report.left_out, "call", "calls");
        put!(out, "<p>{calls} of further threads and streams not drawn</p>\n");
    }
}

/// The rows with most calls, in the order in which they were, and how many are not among them.
fn busiest(rows: &[Row]) -> (Vec<&Row>, usize) {
    let mut numbered: Vec<_> = rows.iter().enumerate().collect();
    numbered.sort_by_key(|(_, row)| std::cmp::Reverse(row.calls));
    numbered.truncate(MOST_ROWS);
    numbered.sort_by_key(|(at, _)| *at);
    let drawn: Vec<_> = numbered.into_iter().map(|(_, row)| row).collect();
    let hidden = rows.len() - drawn.len();
    (drawn, hidden)
}

/// Columns that look the same are one rectangle.
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

/// What most of a column was, and how much of it was taken up, in tenths.
fn look(bin: &Bin, column_ns: u64) -> Option<(Doing, u64)> {
    let all = bin.iter().copied().fold(0, u64::saturating_add);
    let most = (0..bin.len()).max_by_key(|i| (bin[*i], std::cmp::Reverse(*i)))?;
    // rounded: of a column that is taken up by one call its neighbours may have a nanosecond
    let (all_ns, column_ns) = (u128::from(all), u128::from(column_ns.max(1)));
    let height = ((all_ns * 10 + column_ns / 2) / column_ns).clamp(2, 10);
    (all > 0).then_some((Doing::ALL[most], u64::try_from(height).unwrap_or(10)))
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::bins::Bins;
    use gpuprobe_analysis::timeline::Lane;
    use gpuprobe_event::{Tgid, Tid};

    use super::*;

    #[test]
    fn the_rows_with_most_calls_are_drawn_in_the_order_of_processes() {
        let row = |pid: u32| {
            let (lane, bins) = (Lane::Thread(Tid(pid)), Bins::default());
            Row { tgid: Tgid(pid), process: "p".into(), lane, calls: pid.into(), bins }
        };
        let rows: Vec<_> = (1..=60).map(row).collect();
        let report = TimelineReport { from_ns: 5, to_ns: 9, rows, left_out: 3 };
        let mut out = String::new();
        timeline(&mut out, &report);
        let drawn: Vec<u32> = (1..=60).filter(|pid| out.contains(&format!(">thread {pid}<"))).collect();
        assert_eq!(drawn, (13..=60).collect::<Vec<_>>());
        assert!(out.find(">thread 13<") < out.find(">thread 60<"));
        assert!(out.contains("<p>12 rows with fewer calls not drawn</p>"), "{out}");
        assert!(out.contains("<p>3 calls of further threads and streams not drawn</p>"), "{out}");
    }
}
