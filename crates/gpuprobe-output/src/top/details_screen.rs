//! One process in detail.

use std::rc::Rc;

use gpuprobe_analysis::view::{Details, ProcessId, ProcessRow};

use super::canvas::{Canvas, Ink};
use super::figures::{estimated, growth, or_dash, percent, rate, short_bytes, short_duration};
use super::{Shown, TopScreens};
use crate::curve;
use crate::units::{count, grouped};

/// Columns of a call site's curve.
const CURVE: usize = 20;

/// A table of the details: numbers, and a text that may be long.
struct Table {
    title: &'static str,
    /// Headings of the numbers, from left to right.
    headings: Vec<&'static str>,
    rows: Vec<Row>,
}

struct Row {
    numbers: Vec<String>,
    text: String,
    ink: Ink,
}

impl TopScreens {
    pub(super) fn draw_details(&mut self, id: ProcessId, shown: &Shown<'_>, canvas: &mut Canvas<'_>) {
        let last = canvas.height().saturating_sub(1);
        let row = shown.view.processes.iter().find(|row| row.id == id);
        let (Some(row), Some(details)) = (row, shown.details) else {
            canvas.text(
                0,
                0,
                canvas.width(),
                &format!("Process {} is no longer listed.", id.pid),
                Ink::Strong,
            );
            draw_problem(shown, canvas);
            canvas.text(0, last, canvas.width(), "Esc back  q quit", Ink::Faint);
            return;
        };
        let lines = lines(details, canvas);
        let first = draw_head(row, shown, canvas);
        let rows = usize::from(last.saturating_sub(first));
        self.scrolled = self.scrolled.min(lines.len().saturating_sub(rows));
        for (y, line) in (first..last).zip(lines.iter().skip(self.scrolled)) {
            line.draw(canvas, y);
        }
        let more = lines.len().saturating_sub(self.scrolled + rows);
        let paused = if self.is_paused { "PAUSED  " } else { "" };
        let below = if more > 0 { format!("  ({more} more lines below)") } else { String::new() };
        let keys = format!("{paused}Esc back  Up Down PgUp PgDn scroll  p pause  ? help  q quit{below}");
        canvas.text(0, last, canvas.width(), &keys, Ink::Faint);
    }
}

/// Why there are no new figures, in the second line. Returns the row after it.
fn draw_problem(shown: &Shown<'_>, canvas: &mut Canvas<'_>) -> u16 {
    match shown.problem {
        Some(problem) => {
            canvas.text(0, 1, canvas.width(), problem, Ink::Alarm);
            2
        }
        None => 1,
    }
}

/// Returns the row after the head.
fn draw_head(row: &ProcessRow, shown: &Shown<'_>, canvas: &mut Canvas<'_>) -> u16 {
    let width = canvas.width();
    let x = canvas.text(0, 0, width, &format!("{} ({})", row.name, row.id.pid), Ink::Strong);
    let mut parts = vec![format!("{} live", short_bytes(row.live_bytes))];
    parts.push(format!("peak {}", short_bytes(row.peak_bytes)));
    parts.extend(row.growth_per_second.map(|bytes| format!("growth {}/s", growth(bytes))));
    parts.push(format!("{} launches", estimated(grouped(row.launches), row.has_estimated_launches)));
    let in_calls = |share| estimated(percent(share), row.has_estimated_calls);
    parts.extend(row.calls_share.map(|share| format!("{}% in calls", in_calls(share))));
    parts.extend(row.container.as_ref().map(|container| format!("in {container}")));
    parts.extend(shown.view.host_name(row.id.host).map(str::to_owned));
    parts.extend(row.has_exited.then(|| "exited".to_owned()));
    canvas.text(x + 2, 0, width, &parts.join(", "), Ink::Plain);
    let y = draw_problem(shown, canvas);
    if let Some(call) = &row.pending {
        let text = format!("in {} for {}", call.function, short_duration(call.age_ns));
        canvas.text(0, y, width, &text, Ink::Warning);
    }
    y + 1
}

/// A line of the list.
enum Drawn {
    Empty,
    Title(String),
    /// Numbers with the width of each, and a text.
    Row(Row, Rc<[u16]>),
}

impl Drawn {
    fn draw(&self, canvas: &mut Canvas<'_>, y: u16) {
        let width = canvas.width();
        match self {
            Self::Empty => {}
            Self::Title(title) => {
                canvas.text(0, y, width, title, Ink::Strong);
            }
            Self::Row(row, widths) => draw_row(canvas, y, row, widths),
        }
    }
}

fn draw_row(canvas: &mut Canvas<'_>, y: u16, row: &Row, widths: &[u16]) {
    let mut x = 1;
    for (number, width) in row.numbers.iter().zip(widths) {
        canvas.right(x, y, *width, number, row.ink);
        x += width + 2;
    }
    canvas.text(x, y, canvas.width(), &row.text, row.ink);
}

fn lines(details: &Details, canvas: &Canvas<'_>) -> Vec<Drawn> {
    let mut lines = Vec::new();
    for table in [kernels(details), sites(details, canvas), copies(details), calls(details), errors(details)]
    {
        if table.rows.is_empty() {
            continue;
        }
        lines.push(Drawn::Title(table.title.to_owned()));
        let numbers = table.headings.iter().map(|heading| (*heading).to_owned()).collect();
        let headings = Row { numbers, text: String::new(), ink: Ink::Faint };
        let widths = widths(std::iter::once(&headings).chain(&table.rows));
        let rows = std::iter::once(headings).chain(table.rows);
        lines.extend(rows.map(|row| Drawn::Row(row, Rc::clone(&widths))));
        lines.push(Drawn::Empty);
    }
    lines.extend(streams(details));
    if lines.is_empty() {
        lines.push(Drawn::Title("Nothing was observed yet.".to_owned()));
    }
    lines
}

/// The width that each number needs.
fn widths<'a>(rows: impl Iterator<Item = &'a Row>) -> Rc<[u16]> {
    let mut widths: Vec<u16> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.numbers.len()), 0);
        for (width, number) in widths.iter_mut().zip(&row.numbers) {
            *width = (*width).max(u16::try_from(number.len()).unwrap_or(u16::MAX));
        }
    }
    widths.into()
}

fn plain(numbers: Vec<String>, text: String) -> Row {
    Row { numbers, text, ink: Ink::Plain }
}

fn kernels(details: &Details) -> Table {
    let has_gpu_time = details.kernels.iter().any(|kernel| kernel.gpu_share.is_some());
    let rows = details.kernels.iter().map(|kernel| {
        let mut numbers = vec![
            estimated(grouped(kernel.launches), kernel.is_estimated),
            or_dash(kernel.launches_per_second.map(|n| estimated(rate(n), kernel.is_estimated))),
            estimated(grouped(kernel.in_graphs), kernel.is_estimated && kernel.in_graphs > 0),
            or_dash(kernel.mean_call_ns.map(short_duration)),
        ];
        if has_gpu_time {
            numbers.push(or_dash(kernel.mean_gpu_ns.map(short_duration)));
            numbers.push(or_dash(kernel.gpu_share.map(|share| format!("{}%", percent(share)))));
        }
        plain(numbers, kernel.kernel.clone())
    });
    let mut headings = vec!["launches", "/s", "in graphs", "mean call"];
    if has_gpu_time {
        headings.extend(["mean on GPU", "of GPU time"]);
    }
    Table { title: "Kernels", headings, rows: rows.collect() }
}

fn sites(details: &Details, canvas: &Canvas<'_>) -> Table {
    let mut rows: Vec<_> = details
        .sites
        .iter()
        .map(|site| {
            let curve = curve::line(&site.curve, CURVE, canvas.strokes);
            let numbers = vec![
                short_bytes(site.live_bytes),
                grouped(site.allocations),
                or_dash(site.growth_per_second.map(growth)),
            ];
            let text = format!("{curve:<CURVE$} {:<12} {}", site.verdict, site.name);
            Row { numbers, text, ink: if site.is_suspect { Ink::Alarm } else { Ink::Plain } }
        })
        .collect();
    if details.other_sites > 0 {
        let text = format!("in {}", count(details.other_sites as u64, "other call site", "other call sites"));
        rows.push(plain(vec![short_bytes(details.other_site_bytes), String::new(), String::new()], text));
    }
    Table { title: "Live memory by call site", headings: vec!["live", "blocks", "growth/s"], rows }
}

fn copies(details: &Details) -> Table {
    let rows = details.copies.iter().map(|copy| {
        let numbers = vec![
            estimated(grouped(copy.copies), copy.is_estimated),
            or_dash(copy.copies_per_second.map(|n| estimated(rate(n), copy.is_estimated))),
            estimated(short_bytes(copy.bytes), copy.is_estimated),
            or_dash(
                copy.bytes_per_second
                    .map(|bytes| estimated(format!("{}/s", short_bytes(bytes as u64)), copy.is_estimated)),
            ),
        ];
        Row {
            ink: if copy.errors > 0 { Ink::Warning } else { Ink::Plain },
            ..plain(numbers, copy.what.clone())
        }
    });
    let headings = vec!["copies", "/s", "bytes", "bandwidth"];
    Table { title: "Copies", headings, rows: rows.collect() }
}

fn calls(details: &Details) -> Table {
    let below = |ns: Option<u64>| or_dash(ns.map(|ns| format!("<{}", short_duration(ns))));
    let rows = details.calls.iter().map(|call| {
        let numbers = vec![
            estimated(grouped(call.calls), call.is_estimated),
            or_dash(call.calls_per_second.map(|n| estimated(rate(n), call.is_estimated))),
            or_dash(call.mean_ns.map(short_duration)),
            below(call.p50_below_ns),
            below(call.p99_below_ns),
            estimated(grouped(call.errors), call.is_estimated && call.errors > 0),
        ];
        Row {
            ink: if call.errors > 0 { Ink::Warning } else { Ink::Plain },
            ..plain(numbers, call.function.clone())
        }
    });
    let headings = vec!["calls", "/s", "mean", "50%", "99%", "errors"];
    Table { title: "Calls, by total time", headings, rows: rows.collect() }
}

fn errors(details: &Details) -> Table {
    let rows = details.errors.iter().map(|error| Row {
        numbers: vec![estimated(grouped(error.count), error.is_estimated)],
        text: format!("{} in {}", error.error, error.function),
        ink: Ink::Warning,
    });
    Table { title: "Errors", headings: vec!["times"], rows: rows.collect() }
}

fn streams(details: &Details) -> Vec<Drawn> {
    let streams = &details.streams;
    if streams.streams == 0 {
        return Vec::new();
    }
    let totals = [
        (streams.gaps_after_sync, streams.after_sync_ns, "gaps after a wait"),
        (streams.gaps_after_launch, streams.after_launch_ns, "gaps after a launch"),
    ];
    let total =
        |(gaps, ns, what): (u64, u64, &str)| plain(vec![grouped(gaps), short_duration(ns)], what.to_owned());
    let mut rows: Vec<_> = totals.into_iter().map(total).collect();
    for gap in &details.gaps {
        let meanwhile = gap.meanwhile.as_ref().map(|function| format!(", meanwhile {function}"));
        let text = format!("gap on stream {}{}", gap.stream, meanwhile.unwrap_or_default());
        rows.push(plain(vec![String::new(), short_duration(gap.ns)], text));
    }
    let widths = widths(rows.iter());
    let mut lines = vec![Drawn::Title(format!("Streams: {}", streams.streams))];
    lines.extend(rows.into_iter().map(|row| Drawn::Row(row, Rc::clone(&widths))));
    lines
}
