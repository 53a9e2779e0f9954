//! Who holds GPU memory, from which line, and what grows: a table for people.

use std::fmt::Write;

use gpuprobe_analysis::leaks::Verdict;
use gpuprobe_analysis::{Judgement, MemoryReport, PlaceMemory, ProcessPlaces};

use crate::curve::{self, Strokes};
use crate::table::{Align, room, rows};
use crate::timestamp::timestamp;
use crate::units::{age, bytes, count, fitted, printable};

/// Places of one process in the table; the others are summed up.
const MOST_PLACES: usize = 25;
/// The least that a place's name needs.
const LEAST_NAME: usize = 24;
const CURVE: usize = 16;
/// What makes a report incomplete though nothing was lost, beside the words for losses.
pub(crate) const NOT_FOLLOWED: &str = "not_followed";

/// How it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// The whole way to each place.
    pub ways: bool,
    /// How curves are drawn.
    pub strokes: Strokes,
    /// How far local time is ahead of UTC.
    pub utc_offset_seconds: i32,
}

/// The report as text.
pub fn memory(report: &MemoryReport, unix_seconds: f64, options: &MemoryOptions) -> String {
    let mut out = timestamp(unix_seconds, options.utc_offset_seconds);
    out.push('\n');
    let is_complete = report.is_complete();
    for process in &report.processes {
        out.push('\n');
        head(&mut out, process);
        table(&mut out, process, is_complete, options);
        suspects(&mut out, process, is_complete, options);
        if options.ways {
            ways(&mut out, process, options);
        }
    }
    if report.processes.is_empty() {
        out.push_str("\nno GPU memory was allocated in the time watched\n");
    }
    missing(&mut out, report);
    out
}

/// Appends a line. Writing into a `String` cannot fail.
fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = writeln!(out, "{text}");
    debug_assert!(written.is_ok());
}

fn head(out: &mut String, process: &ProcessPlaces) {
    let name = printable(&process.name);
    let container = process.container.as_ref().map(|c| format!(" in {}", printable(&c.shown())));
    let container = container.unwrap_or_default();
    let holds = if process.has_ended { "held at its end" } else { "holds" };
    let watched = process.ends_ns.last().map_or(0, |end| end.saturating_sub(process.began_ns));
    line(
        out,
        format_args!(
            "{name} ({}){container} {holds} {} in {}, watched for {}",
            process.pid,
            bytes(process.live.bytes),
            count(process.live.count, "allocation", "allocations"),
            age(watched)
        ),
    );
}

/// A column: its title, how it is aligned, and what stands in it.
type Column = (&'static str, Align, fn(&PlaceMemory, Strokes) -> String);

/// Those before the verdict and the place, in the order in which they give way on a narrow terminal: the last first.
const COLUMNS: [Column; 6] = [
    ("live", Align::Right, |p, _| bytes(p.live.bytes)),
    ("allocs", Align::Right, |p, _| p.allocations.to_string()),
    ("frees", Align::Right, |p, _| p.frees.to_string()),
    ("growth", Align::Right, |p, _| growth(&p.judgement)),
    ("oldest", Align::Right, |p, _| p.oldest_age_ns.map_or_else(|| "-".to_owned(), age)),
    ("over time", Align::Left, |p, strokes| curve::line(&p.curve, CURVE, strokes)),
];

fn growth(judgement: &Judgement) -> String {
    match judgement.growth.bytes {
        0 => "-".to_owned(),
        grown => format!("+{}", bytes(grown)),
    }
}

fn table(out: &mut String, process: &ProcessPlaces, is_complete: bool, options: &MemoryOptions) {
    let places = &process.places[..process.places.len().min(MOST_PLACES)];
    if !places.is_empty() {
        let mut shown = COLUMNS.len();
        let mut table = cells(places, shown, is_complete, options.strokes);
        while shown > 1 && room(&table, options.width) < LEAST_NAME {
            shown -= 1;
            table = cells(places, shown, is_complete, options.strokes);
        }
        let room = room(&table, options.width).max(LEAST_NAME);
        let names = places.iter().map(|place| fitted(&printable(&place.name), room).into_owned());
        for (row, name) in table.iter_mut().zip(std::iter::once("place".to_owned()).chain(names)) {
            row.push(name);
        }
        let mut align: Vec<Align> = COLUMNS[..shown].iter().map(|column| column.1).collect();
        align.extend([Align::Left, Align::Left]);
        rows(out, "  ", &align, &table);
    }
    let rest = process.places[places.len()..].iter().filter(|p| p.live.count > 0);
    let (mut other, mut sites) = (process.other, process.other_sites);
    for place in rest {
        other.count = other.count.saturating_add(place.live.count);
        other.bytes = other.bytes.saturating_add(place.live.bytes);
        sites += 1;
    }
    if sites > 0 {
        let held = count(other.count, "allocation", "allocations");
        let sites = count(sites as u64, "other place", "other places");
        line(out, format_args!("  and {} in {held} from {sites}", bytes(other.bytes)));
    }
}

/// The table with its titles, all but the names of the places.
fn cells(places: &[PlaceMemory], shown: usize, is_complete: bool, strokes: Strokes) -> Vec<Vec<String>> {
    let columns = &COLUMNS[..shown];
    let mut titles: Vec<String> = columns.iter().map(|column| column.0.to_owned()).collect();
    titles.push(with_doubt("verdict", is_complete));
    let mut table = vec![titles];
    for place in places {
        let mut row: Vec<String> = columns.iter().map(|column| column.2(place, strokes)).collect();
        row.push(place.judgement.verdict.as_str().to_owned());
        table.push(row);
    }
    table
}

/// A verdict that a loss could have changed says so.
fn with_doubt(verdict: &str, is_complete: bool) -> String {
    format!("{verdict}{}", if is_complete { "" } else { " (incomplete)" })
}

fn suspects(out: &mut String, process: &ProcessPlaces, is_complete: bool, options: &MemoryOptions) {
    let accused = with_doubt(Verdict::Suspect.as_str(), is_complete);
    let room = options.width.saturating_sub(accused.len() + 4).max(LEAST_NAME);
    for place in process.places.iter().filter(|place| place.is_suspect()) {
        let name = printable(&place.name);
        line(out, format_args!("  {accused}: {}", fitted(&name, room)));
        line(out, format_args!("    {}", reason(&place.judgement)));
    }
}

/// Why a verdict is what it is, in words.
pub(crate) fn reason(judgement: &Judgement) -> String {
    let growth = &judgement.growth;
    let over = age(growth.over_ns);
    let mut balance = format!(
        "{}, {}",
        count(growth.allocations, "allocation", "allocations"),
        count(growth.frees, "free", "frees")
    );
    if growth.ended > 0 {
        balance +=
            &format!(", {}", count(growth.ended, "ended with its context", "ended with their context"));
    }
    match judgement.verdict {
        Verdict::WarmingUp => format!("seen for {over}; {balance}"),
        Verdict::NotFollowed => "too many other places hold memory".to_owned(),
        Verdict::Freed if growth.ended > 0 => format!("nothing is left; {balance} in {over}"),
        Verdict::Freed => format!("all given back; {balance} in {over}"),
        Verdict::Unchanged => format!("no allocation and no free in {over}"),
        Verdict::Steady => format!("does not grow any more; {balance} in {over}"),
        Verdict::Varying => format!("rises and falls; {balance} in {over}"),
        Verdict::Growing | Verdict::Suspect => {
            let fell = match growth.fell_bytes {
                0 => "never fell".to_owned(),
                fell => format!("fell by {} in between", bytes(fell)),
            };
            let rate = bytes(growth.rate() as u64);
            format!("grew {} in {over} ({rate}/s), {fell}; {balance}", bytes(growth.bytes))
        }
    }
}

fn ways(out: &mut String, process: &ProcessPlaces, options: &MemoryOptions) {
    for place in process.places.iter().take(MOST_PLACES) {
        let held = count(place.live.count, "allocation", "allocations");
        line(out, format_args!("  {} in {held} by way of", bytes(place.live.bytes)));
        let way = place.place.way();
        if way.is_empty() {
            line(out, format_args!("    {}", place.name));
        }
        for frame in &way {
            let width = options.width.max(LEAST_NAME) - 4;
            line(out, format_args!("    {}", fitted(&printable(frame), width)));
        }
    }
}

fn missing(out: &mut String, report: &MemoryReport) {
    if report.is_complete() {
        return;
    }
    out.push_str("\nthe verdicts are incomplete:\n");
    for loss in &report.missing {
        line(out, format_args!("  {} {}: {}", loss.count, loss.cause.as_str(), loss.cause.meaning()));
    }
    if report.not_followed() > 0 {
        let meaning = "ways to allocations that hold something, of processes with too many of them";
        line(out, format_args!("  {} {NOT_FOLLOWED}: {meaning}", report.not_followed()));
    }
}
