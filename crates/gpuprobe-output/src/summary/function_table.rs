//! The table of functions: outermost calls, and with `nested` the calls inside them.

use gpuprobe_analysis::{FunctionSummary, SummaryReport, TreeRow};
use gpuprobe_event::trace::SampledCalls;

use super::layout::{NameTable, SummaryOptions, line, name};
use super::quality::{Quality, marked};
use crate::sampled::{recorded_mark, time_mark, unprobed_returns};
use crate::units::{bytes, count, duration};

/// The most functions that are named in the line about calls that did not return.
const OPEN_NAMED: usize = 5;

pub(super) fn functions(
    out: &mut String,
    report: &SummaryReport,
    options: &SummaryOptions,
    quality: Quality,
) {
    if report.call_tree.is_empty() {
        return;
    }
    let hides = hides_internal(report, options);
    let is_hidden = |row: &&TreeRow| hides && row.function.class.is_internal();
    let (internal, rows): (Vec<_>, Vec<_>) = report.call_tree.iter().partition(is_hidden);
    out.push('\n');
    // functions without a returned call are listed below the table
    let returned: Vec<_> = rows.iter().copied().filter(|row| row.function.calls > 0).collect();
    let mut more = Vec::new();
    if !returned.is_empty() {
        // single rows say whether they are estimates
        let title = match quality {
            Quality::Estimated => "function".to_owned(),
            quality => marked("function", quality),
        };
        let titles = [&title, "calls", "errors", "total", "mean", "p50", "p99", "max", "bytes"];
        let mut table = NameTable::new(&titles, &[], &["p50", "mean", "p99"]);
        let mut outermost = 0;
        for row in returned {
            outermost += usize::from(row.level == 0);
            if outermost > options.most() {
                more.extend((row.level == 0).then_some(&row.function));
            } else if row.level == 0 || options.nested {
                table.push(cells(row, &report.sampled));
            }
        }
        table.write(out, options);
    }
    notes(out, &more, &rows, &internal, options);
}

/// Whether internal calls are not shown. They are if there is nothing else.
pub(super) fn hides_internal(report: &SummaryReport, options: &SummaryOptions) -> bool {
    options.hides_internal && !report.call_tree.iter().all(|row| row.function.class.is_internal())
}

fn cells(row: &TreeRow, sampled: &[SampledCalls]) -> Vec<String> {
    let f = &row.function;
    let mark = time_mark(f.unprobed_returns);
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{mark}{}", duration(ns)));
    let or_nothing = |n: u64, text: fn(u64) -> String| if n == 0 { "-".to_owned() } else { text(n) };
    let returned = f.calls > f.unobserved;
    vec![
        format!("{}{}", "  ".repeat(row.level), name(&f.name)),
        format!("{}{}", recorded_mark(sampled, f), f.calls),
        or_nothing(f.errors, |n| n.to_string()),
        time(returned.then_some(f.total_ns)),
        time(f.mean_ns()),
        time(f.p50_ns),
        time(f.p99_ns),
        time(returned.then_some(f.max_ns)),
        or_nothing(f.bytes, bytes),
    ]
}

/// What the table does not show.
fn notes(
    out: &mut String,
    more: &[&FunctionSummary],
    rows: &[&TreeRow],
    internal: &[&TreeRow],
    options: &SummaryOptions,
) {
    let calls =
        |rows: &mut dyn Iterator<Item = u64>| count(rows.fold(0, u64::saturating_add), "call", "calls");
    if !more.is_empty() {
        let ns = more.iter().fold(0, |sum: u64, f| sum.saturating_add(f.total_ns));
        let functions = count(more.len() as u64, "more function", "more functions");
        let calls = calls(&mut more.iter().map(|f| f.calls));
        line(out, format_args!("and {functions}: {calls}, {} (--rows 0 shows all)", duration(ns)));
    }
    let mut inner = rows.iter().filter(|row| row.level > 0 && row.function.calls > 0).peekable();
    if !options.nested && inner.peek().is_some() {
        let calls = calls(&mut inner.map(|row| row.function.calls));
        line(out, format_args!("{calls} inside these not shown (--nested)"));
    }
    if !internal.is_empty() {
        let n = internal.iter().fold(0, |sum: u64, row| sum.saturating_add(row.function.calls));
        let calls = count(n, "internal call", "internal calls");
        line(out, format_args!("{calls} not shown (-e '__cuda*' shows them)"));
    }
    let sum = |of: fn(&FunctionSummary) -> u64| {
        rows.iter().map(|row| of(&row.function)).fold(0, u64::saturating_add)
    };
    let (unobserved, unfinished) = (sum(|f| f.unobserved), sum(|f| f.unfinished));
    if unobserved > 0 {
        let calls = count(unobserved, "call", "calls");
        line(out, format_args!("{calls} counted at entry: the return is not recorded"));
    }
    if let Some(text) = unprobed_returns(sum(|f| f.unprobed_returns)) {
        line(out, format_args!("{text}"));
    }
    if unfinished > 0 {
        let open = rows.iter().filter(|row| row.function.unfinished > 0);
        let mut names: Vec<_> = open.map(|row| name(&row.function.name)).take(OPEN_NAMED + 1).collect();
        if names.len() > OPEN_NAMED {
            names[OPEN_NAMED] = "...".to_owned();
        }
        let calls = count(unfinished, "call", "calls");
        line(out, format_args!("also {calls} that did not return: {}", names.join(", ")));
    }
}
