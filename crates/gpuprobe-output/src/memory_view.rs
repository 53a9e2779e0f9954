//! The memory report for people: live memory by process and call site, and which call sites grow.

use std::fmt::Write;

use gpuprobe_analysis::leaks::Verdict;
use gpuprobe_analysis::{CallSiteMemory, Judgement, MemoryReport, ProcessCallSites};

use crate::curve::{self, Strokes};
use crate::table::{Align, room, rows};
use crate::timestamp::timestamp;
use crate::units::{age, bytes, count, fitted, printable};

/// Call sites shown per process. The rest is summed up in one line.
const MOST_SITES: usize = 25;
/// The smallest width of the column with the call site.
const LEAST_NAME: usize = 24;
const CURVE: usize = 16;
/// Reported next to the loss causes: a report is also incomplete if some call sites were not followed.
pub(crate) const NOT_FOLLOWED: &str = "not_followed";

/// How the report is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// Show the whole stack of each call site.
    pub stacks: bool,
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
        head(&mut out, process, ("allocation", "allocations"));
        call_sites(&mut out, process, is_complete, options);
    }
    if report.processes.is_empty() {
        out.push_str("\nno GPU memory was allocated in the time watched\n");
    }
    incomplete(&mut out, report);
    out
}

/// Appends a line. Writing into a `String` cannot fail.
pub(crate) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = writeln!(out, "{text}");
    debug_assert!(written.is_ok());
}

/// The first line of a process. `what` is the word for one thing that is live, and for several.
pub(crate) fn head(out: &mut String, process: &ProcessCallSites, what: (&str, &str)) {
    let name = printable(&process.name);
    let container = process.container.as_ref().map(|c| format!(" in {}", printable(&c.shown())));
    let container = container.unwrap_or_default();
    let has = if process.has_exited { "had at exit" } else { "has" };
    let watched = process.ends_ns.last().map_or(0, |end| end.saturating_sub(process.began_ns));
    line(
        out,
        format_args!(
            "{name} ({}){container} {has} {} live in {}, watched for {}",
            process.pid,
            bytes(process.live.bytes),
            count(process.live.count, what.0, what.1),
            age(watched)
        ),
    );
}

/// The call sites of a process, with the reasons of suspicions, and with stacks if they are wanted.
pub(crate) fn call_sites(
    out: &mut String,
    process: &ProcessCallSites,
    is_complete: bool,
    options: &MemoryOptions,
) {
    table(out, process, is_complete, options);
    suspects(out, process, is_complete, options);
    if options.stacks {
        stacks(out, process, options);
    }
}

/// A column: title, alignment, and the text of a cell.
type Column = (&'static str, Align, fn(&CallSiteMemory, Strokes) -> String);

/// The columns before the verdict and the call site. On a narrow terminal they are dropped from the last to the first.
const COLUMNS: [Column; 6] = [
    ("live", Align::Right, |p, _| bytes(p.live.bytes)),
    ("allocs", Align::Right, |p, _| p.allocations.to_string()),
    ("frees", Align::Right, |p, _| p.frees.to_string()),
    ("growth", Align::Right, |p, _| growth(&p.judgement)),
    ("oldest", Align::Right, |p, _| p.oldest_age_ns.map_or_else(|| "-".to_owned(), age)),
    ("over time", Align::Left, |p, strokes| curve::line(&p.curve, CURVE, strokes)),
];

/// The growth of a call site, or `-`.
pub(crate) fn growth(judgement: &Judgement) -> String {
    match judgement.growth.bytes {
        0 => "-".to_owned(),
        grown => format!("+{}", bytes(grown)),
    }
}

fn table(out: &mut String, process: &ProcessCallSites, is_complete: bool, options: &MemoryOptions) {
    let sites = &process.call_sites[..process.call_sites.len().min(MOST_SITES)];
    if !sites.is_empty() {
        let mut shown = COLUMNS.len();
        let mut table = cells(sites, shown, is_complete, options.strokes);
        while shown > 1 && room(&table, options.width) < LEAST_NAME {
            shown -= 1;
            table = cells(sites, shown, is_complete, options.strokes);
        }
        let room = room(&table, options.width).max(LEAST_NAME);
        let names = sites.iter().map(|site| fitted(&printable(&site.name), room).into_owned());
        for (row, name) in table.iter_mut().zip(std::iter::once("call site".to_owned()).chain(names)) {
            row.push(name);
        }
        let mut align: Vec<Align> = COLUMNS[..shown].iter().map(|column| column.1).collect();
        align.extend([Align::Left, Align::Left]);
        rows(out, "  ", &align, &table);
    }
    let rest = &process.call_sites[sites.len()..];
    if let Some(text) = others(process, rest.iter().filter(|site| site.live.count > 0)) {
        line(out, format_args!("  {text}"));
    }
}

/// The sum of the call sites with live memory after the first ones.
pub(crate) fn other_sites(process: &ProcessCallSites, shown: usize) -> Option<String> {
    others(process, process.call_sites.iter().filter(|site| site.live.count > 0).skip(shown))
}

fn others<'a>(process: &ProcessCallSites, rest: impl Iterator<Item = &'a CallSiteMemory>) -> Option<String> {
    let (mut other, mut other_sites) = (process.other, process.other_sites);
    for site in rest {
        other.count = other.count.saturating_add(site.live.count);
        other.bytes = other.bytes.saturating_add(site.live.bytes);
        other_sites += 1;
    }
    let allocations = count(other.count, "allocation", "allocations");
    let sites = count(other_sites as u64, "other call site", "other call sites");
    (other_sites > 0).then(|| format!("and {} in {allocations} from {sites}", bytes(other.bytes)))
}

/// The table with its titles, without the column of call sites.
fn cells(sites: &[CallSiteMemory], shown: usize, is_complete: bool, strokes: Strokes) -> Vec<Vec<String>> {
    let columns = &COLUMNS[..shown];
    let mut titles: Vec<String> = columns.iter().map(|column| column.0.to_owned()).collect();
    titles.push(marked("verdict", is_complete));
    let mut table = vec![titles];
    for site in sites {
        let mut row: Vec<String> = columns.iter().map(|column| column.2(site, strokes)).collect();
        row.push(site.judgement.verdict.as_str().to_owned());
        table.push(row);
    }
    table
}

/// Marks a verdict that a loss could have changed.
fn marked(verdict: &str, is_complete: bool) -> String {
    format!("{verdict}{}", if is_complete { "" } else { " (incomplete)" })
}

fn suspects(out: &mut String, process: &ProcessCallSites, is_complete: bool, options: &MemoryOptions) {
    let suspect = marked(Verdict::Suspect.as_str(), is_complete);
    let room = options.width.saturating_sub(suspect.len() + 4).max(LEAST_NAME);
    for site in process.call_sites.iter().filter(|site| site.is_suspect()) {
        let name = printable(&site.name);
        line(out, format_args!("  {suspect}: {}", fitted(&name, room)));
        line(out, format_args!("    {}", reason(&site.judgement)));
    }
}

/// The reason of a verdict as a sentence.
pub(crate) fn reason(judgement: &Judgement) -> String {
    let growth = &judgement.growth;
    let over = age(growth.over_ns);
    let mut balance = format!(
        "{}, {}",
        count(growth.allocations, "allocation", "allocations"),
        count(growth.frees, "free", "frees")
    );
    if growth.freed_with_context > 0 {
        balance += &format!(
            ", {}",
            count(growth.freed_with_context, "ended with its context", "ended with their context")
        );
    }
    match judgement.verdict {
        Verdict::WarmingUp => format!("seen for {over}; {balance}"),
        Verdict::NotFollowed => "too many other call sites have live memory".to_owned(),
        Verdict::Freed if growth.freed_with_context > 0 => {
            format!("no memory is live any more; {balance} in {over}")
        }
        Verdict::Freed => format!("all memory was freed; {balance} in {over}"),
        Verdict::Unchanged => format!("no allocation and no free in {over}"),
        Verdict::Steady => format!("no longer grows; {balance} in {over}"),
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

fn stacks(out: &mut String, process: &ProcessCallSites, options: &MemoryOptions) {
    for site in process.call_sites.iter().take(MOST_SITES) {
        let allocations = count(site.live.count, "allocation", "allocations");
        line(out, format_args!("  {} in {allocations}, allocated from", bytes(site.live.bytes)));
        let stack = site.call_site.stack();
        if stack.is_empty() {
            line(out, format_args!("    {}", site.name));
        }
        for frame in &stack {
            let width = options.width.max(LEAST_NAME) - 4;
            line(out, format_args!("    {}", fitted(&printable(frame), width)));
        }
    }
}

fn incomplete(out: &mut String, report: &MemoryReport) {
    if report.is_complete() {
        return;
    }
    out.push_str("\nthe verdicts are incomplete:\n");
    for loss in &report.losses_affecting_verdicts {
        line(out, format_args!("  {} {}: {}", loss.count, loss.cause.as_str(), loss.cause.meaning()));
    }
    if report.not_followed() > 0 {
        let meaning = "call sites with live memory that are not judged, because their process has too many";
        line(out, format_args!("  {} {NOT_FOLLOWED}: {meaning}", report.not_followed()));
    }
}
