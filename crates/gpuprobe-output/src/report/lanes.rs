//! The timeline: the calls of threads, and the calls that submitted operations to streams.

use std::collections::HashMap;

use gpuprobe_analysis::timeline::{Activity, Bin, Lane, Row, TimelineReport};
use gpuprobe_analysis::{ReplayReport, StreamIdle};
use gpuprobe_event::Tgid;

use super::svg::{escape, put};
use crate::kmod_text::per_cent;
use crate::timeline::label;
use crate::units::{count, duration};

/// Buttons and what can be done with the timeline, up to its first row.
const HOW_TO: &str = "</p>\n<div class=\"tools\"><button data-zoom=\"0.5\">zoom in</button>\
    <button data-zoom=\"2\">zoom out</button><button data-zoom=\"0\">all</button><span id=\"view\" class=\"faint\"></span></div>\n\
    <p>Zoom in to see individual calls; click one for its arguments and stack. Zoom: <kbd>Ctrl</kbd> or <kbd>Shift</kbd> + wheel, \
    double click, or <kbd>+</kbd> <kbd>-</kbd>; <kbd>0</kbd> shows all. Move: drag, or <kbd>&larr;</kbd> <kbd>&rarr;</kbd>. \
    <kbd>n</kbd> <kbd>p</kbd>: next and previous call in the row, <kbd>Enter</kbd>: zoom to the call, <kbd>Esc</kbd>: close it. \
    Keys work after a click on the timeline.</p>\n\
    <div class=\"lanes\" id=\"timeline\" tabindex=\"0\" aria-label=\"timeline\">\n\
    <div class=\"lane\">time</div><div id=\"axis\" class=\"axis\"></div>\n";
/// Columns of the bins of a row.
const COLUMNS: usize = 1500;
/// Rows that are drawn: those with most calls.
const MOST_ROWS: usize = 48;

/// The rows that are drawn.
#[derive(Debug, Default)]
pub(super) struct Drawn<'a> {
    rows: Vec<&'a Row>,
    /// The number of rows that are not drawn.
    hidden: usize,
    /// The numbers of rows on the page.
    pub(super) index: HashMap<(Tgid, Lane), usize>,
    /// The idle times of the streams that are drawn, with the numbers of their rows.
    pub(super) idle: Vec<(&'a StreamIdle, usize)>,
    /// The length of the recording.
    span_ns: u64,
    executions_left_out: u64,
}

impl<'a> Drawn<'a> {
    pub(super) fn new(report: &'a ReplayReport) -> Self {
        let (rows, hidden) = busiest(&report.timeline.rows);
        let (span_ns, executions_left_out) = (report.summary.span_ns(), report.executions.left_out);
        let mut drawn = Self { hidden, span_ns, executions_left_out, ..Self::default() };
        let mut number = 0;
        for row in &rows {
            drawn.index.insert((row.tgid, row.lane), number);
            number += 1;
            let idle = |idle: &&StreamIdle| idle.tgid == row.tgid && row.lane == Lane::Stream(idle.stream);
            if let Some(idle) = report.summary.idle.streams.iter().find(idle) {
                drawn.idle.push((idle, number));
                number += 1;
            }
        }
        drawn.rows = rows;
        drawn
    }

    fn idle_of(&self, row: &Row) -> Option<(&'a StreamIdle, usize)> {
        let at = self.index.get(&(row.tgid, row.lane))? + 1;
        self.idle.iter().find(|(_, number)| *number == at).copied()
    }
}

pub(super) fn timeline(out: &mut String, report: &TimelineReport, drawn: &Drawn<'_>) {
    if report.rows.is_empty() {
        return;
    }
    out.push_str("<h2>Timeline</h2>\n<p class=\"legend\">");
    for doing in report.activities() {
        let name = doing.as_str();
        put!(out, "<span><i style=\"background:var(--{name})\"></i>{name}</span>");
    }
    if !drawn.idle.is_empty() {
        out.push_str("<span><i style=\"background:var(--idle)\"></i>idle</span>");
    }
    out.push_str(HOW_TO);
    let mut process = None;
    for row in &drawn.rows {
        if process != Some(row.tgid) {
            process = Some(row.tgid);
            put!(out, "<div class=\"process\">{} {}</div>\n", row.tgid, escape(&row.process));
        }
        let name = label(&row.lane);
        let bins = row.fitted(report, COLUMNS);
        let calls = match row.lane {
            Lane::Gpu { .. } => count(row.calls, "execution", "executions"),
            Lane::Thread(_) | Lane::Driver(_) | Lane::Stream(_) => count(row.calls, "call", "calls"),
        };
        put!(out, "<div class=\"lane\" title=\"{name}: {calls}\">{name}</div>");
        match row.lane {
            Lane::Gpu { .. } => {
                put!(out, "<div class=\"track\" data-left=\"{}\">", drawn.executions_left_out)
            }
            Lane::Thread(_) | Lane::Driver(_) | Lane::Stream(_) => out.push_str("<div class=\"track\">"),
        }
        put!(out, "<svg viewBox=\"0 0 {COLUMNS} 10\" preserveAspectRatio=\"none\" role=\"img\">");
        runs(out, &bins, (report.to_ns - report.from_ns).div_ceil(COLUMNS as u64).max(1));
        out.push_str("</svg></div>\n");
        if let Some((idle, _)) = drawn.idle_of(row) {
            idle_lane(out, idle, report, drawn.span_ns);
        }
    }
    out.push_str(
        "</div>\n<div id=\"call\" aria-live=\"polite\" hidden></div>\n\
         <p>streams show the calls that submitted operations, not when the GPU ran them</p>\n",
    );
    if report.has_gpu() {
        out.push_str("<p>GPUs show when they executed CUDA kernels and graphs (gpu), copies and memsets (transfer)</p>\n");
    }
    if !drawn.idle.is_empty() {
        out.push_str(
            "<p>idle: from the end of a wait for the stream, or for its GPU, to the next operation submitted to it; \
             a stream may be idle for longer, because calls do not show when the GPU finishes</p>\n",
        );
    }
    if drawn.hidden > 0 {
        put!(out, "<p>{} with fewer calls are not drawn</p>\n", count(drawn.hidden as u64, "row", "rows"));
    }
    if report.calls_without_row > 0 {
        let calls = count(report.calls_without_row, "call", "calls");
        put!(out, "<p>{calls} of further threads and streams are not drawn</p>\n");
    }
}

/// The idle time of a stream; the script draws it.
fn idle_lane(out: &mut String, idle: &StreamIdle, report: &TimelineReport, span_ns: u64) {
    let share = per_cent(idle.idle_ns, span_ns);
    let times = count(idle.times, "time", "times");
    put!(
        out,
        "<div class=\"lane\" title=\"idle {} in all, {times}; {share} of the recording\">idle {share}</div>\
         <div class=\"track idle\" data-left=\"{}\"><svg viewBox=\"0 0 {COLUMNS} 10\" preserveAspectRatio=\"none\" role=\"img\">",
        duration(idle.idle_ns),
        idle.times.saturating_sub(idle.spans.len() as u64)
    );
    let column_ns = (report.to_ns - report.from_ns).div_ceil(COLUMNS as u64).max(1);
    let columns = idle.columns((report.from_ns, report.to_ns), COLUMNS);
    let looks: Vec<_> = columns.iter().map(|ns| height(*ns, column_ns)).collect();
    let mut from = 0;
    for run in looks.chunk_by(|a, b| a == b) {
        if let Some(height) = run[0] {
            put!(
                out,
                "<rect class=\"idle\" x=\"{from}\" y=\"{}\" width=\"{}\" height=\"{height}\"/>",
                10 - height,
                run.len()
            );
        }
        from += run.len();
    }
    out.push_str("</svg></div>\n");
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
    Some((Activity::ALL[most], height(all, column_ns)?))
}

/// How much of a column was used, in tenths; `None` if nothing.
fn height(ns: u64, column_ns: u64) -> Option<u64> {
    // rounded, because a call that fills its column may reach into the next one by a nanosecond
    let (all_ns, column_ns) = (u128::from(ns), u128::from(column_ns.max(1)));
    let height = ((all_ns * 10 + column_ns / 2) / column_ns).clamp(2, 10);
    (ns > 0).then(|| u64::try_from(height).unwrap_or(10))
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::bins::Bins;
    use gpuprobe_analysis::timeline::Lane;
    use gpuprobe_event::{Tgid, Tid};

    use super::*;

    fn drawn(timeline: TimelineReport) -> String {
        let mut report = gpuprobe_analysis::Replay::default().finish(None);
        report.summary.idle.streams =
            vec![StreamIdle { tgid: Tgid(1), stream: 7, idle_ns: 1, times: 3, ..StreamIdle::default() }];
        (report.summary.first_ns, report.summary.last_ns) = (Some(5), Some(9));
        report.timeline = timeline;
        let mut out = String::new();
        super::timeline(&mut out, &report.timeline, &Drawn::new(&report));
        out
    }

    #[test]
    fn a_stream_is_followed_by_its_idle_time() {
        let row = |handle: u64| {
            let (lane, bins) = (Lane::Stream(handle), Bins::default());
            Row { tgid: Tgid(1), process: "p".into(), lane, calls: 1, bins }
        };
        let out =
            drawn(TimelineReport { from_ns: 5, to_ns: 9, rows: vec![row(7), row(8)], calls_without_row: 0 });
        let title = "title=\"idle 1 ns in all, 3 times; 25.0% of the recording\">idle 25.0%<";
        assert_eq!((out.matches(title).count(), out.matches(">idle 2").count()), (1, 1), "{out}");
    }

    #[test]
    fn the_rows_with_most_calls_are_drawn_in_their_original_order() {
        let row = |pid: u32| {
            let (lane, bins) = (Lane::Thread(Tid(pid)), Bins::default());
            Row { tgid: Tgid(pid), process: "p".into(), lane, calls: pid.into(), bins }
        };
        let rows: Vec<_> = (1..=60).map(row).collect();
        let out = drawn(TimelineReport { from_ns: 5, to_ns: 9, rows, calls_without_row: 3 });
        let drawn: Vec<u32> = (1..=60).filter(|pid| out.contains(&format!(">thread {pid}<"))).collect();
        assert_eq!(drawn, (13..=60).collect::<Vec<_>>());
        assert!(out.find(">thread 13<") < out.find(">thread 60<"));
        assert!(out.contains("<p>12 rows with fewer calls are not drawn</p>"), "{out}");
        assert!(out.contains("<p>3 calls of further threads and streams are not drawn</p>"), "{out}");
    }
}
