//! The differences of two recordings, as text and as JSON.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use gpuprobe_analysis::{Difference, Figure, Filtered, RecordingFigures};
use serde_json::{Value, json};

use crate::filter_text::filter_line;
use crate::kernel_name::short_names;
use crate::summary::SummaryOptions;
use crate::summary::layout::{NameTable, name};
use crate::units::{bytes, count, duration, printable};

/// The most rows of a table.
const MOST_ROWS: usize = 50;

/// The comparison of two recordings.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The names of the traces.
    pub names: [&'a str; 2],
    pub figures: [&'a RecordingFigures; 2],
    /// What a filter removed from each; `None` without a filter.
    pub filtered: [Option<&'a Filtered>; 2],
    pub differences: &'a [Difference],
    /// The part by which a figure may change, such as 0.1.
    pub fail_above: Option<f64>,
}

impl Comparison<'_> {
    /// The number of figures that changed by more than allowed.
    pub fn above(&self) -> usize {
        let is_above = |d: &&Difference| self.fail_above.is_some_and(|part| d.is_above(part));
        self.differences.iter().filter(is_above).count()
    }
}

/// The differences as text, a table for each figure. Longer lines than `width` are avoided by shortening names, unless
/// these are wanted in full.
pub fn diff(comparison: &Comparison<'_>, width: usize, full_names: bool) -> String {
    let options = SummaryOptions { width, full_names, ..SummaryOptions::default() };
    let kernels = if full_names { HashMap::new() } else { short_kernels(comparison) };
    let mut out = String::new();
    for (name, filtered) in comparison.names.iter().zip(comparison.filtered) {
        if let Some(filtered) = filtered {
            writeln!(out, "{}: {}", printable(name), filter_line(filtered)).ok();
        }
    }
    for (name, figures) in comparison.names.iter().zip(comparison.figures) {
        if figures.lost > 0 {
            let (name, lost) = (printable(name), figures.lost);
            writeln!(out, "warning: {name} has {lost} lost: its figures may be too low").ok();
        }
    }
    for (name, figures) in comparison.names.iter().zip(comparison.figures) {
        if figures.has_more_sites {
            let name = printable(name);
            writeln!(out, "live memory by call site is not compared: {name} does not list all call sites")
                .ok();
        }
    }
    if comparison.differences.is_empty() {
        out.push_str("no differences\n");
        return out;
    }
    for figure in Figure::ALL {
        let of_figure: Vec<_> = comparison.differences.iter().filter(|d| d.figure == figure).collect();
        table(&mut out, figure, &of_figure, &kernels, &options);
    }
    if let Some(part) = comparison.fail_above {
        let above = comparison.above() as u64;
        let figures = count(above, "figure", "figures");
        writeln!(out, "\n{figures} changed by more than {}", percent(part * 100.0)).ok();
    }
    out
}

/// The differences as a line of JSON, with its line feed.
pub fn diff_json(comparison: &Comparison<'_>) -> String {
    let [before, after] = comparison.names;
    let [lost_before, lost_after] = comparison.figures.map(|figures| figures.lost);
    let one = |d: &Difference| {
        let mut value = json!(d);
        if let (Some(part), Value::Object(fields)) = (comparison.fail_above, &mut value) {
            fields.insert("above".to_owned(), json!(d.is_above(part)));
        }
        value
    };
    let object = json!({
        "before": { "trace": before, "lost": lost_before, "filter": comparison.filtered[0] },
        "after": { "trace": after, "lost": lost_after, "filter": comparison.filtered[1] },
        "live_call_sites_compared": !comparison.figures.iter().any(|figures| figures.has_more_sites),
        "differences": comparison.differences.iter().map(one).collect::<Vec<_>>(),
        "fail_above_percent": comparison.fail_above.map(|part| part * 100.0),
        "above": comparison.fail_above.map(|_| comparison.above()),
    });
    format!("{object}\n")
}

/// The short names of all CUDA kernels: whether two differ must not depend on which of them changed.
fn short_kernels<'a>(comparison: &Comparison<'a>) -> HashMap<&'a str, String> {
    let kernels: BTreeSet<_> = comparison.figures.iter().flat_map(|figures| figures.kernels()).collect();
    let kernels: Vec<_> = kernels.into_iter().collect();
    let short = short_names(&kernels);
    kernels.into_iter().zip(short).collect()
}

fn table(
    out: &mut String,
    figure: Figure,
    differences: &[&Difference],
    kernels: &HashMap<&str, String>,
    options: &SummaryOptions,
) {
    if differences.is_empty() {
        return;
    }
    if !out.is_empty() {
        out.push('\n');
    }
    let (title, unit) = titled(figure);
    let mut table = NameTable::new(&[title, "before", "after", "change", ""], &[], &[]);
    for d in differences.iter().take(MOST_ROWS) {
        let kernel = kernels.get(d.name.as_str()).filter(|_| figure == Figure::Launches);
        let sign = if d.after > d.before { '+' } else { '-' };
        let change = format!("{sign}{}", unit(d.size()));
        let part = d.percent.map_or_else(|| "new".to_owned(), |p| format!("{sign}{}", percent(p.abs())));
        table.push(vec![name(kernel.unwrap_or(&d.name)), unit(d.before), unit(d.after), change, part]);
    }
    table.write(out, options);
    let more = differences.len().saturating_sub(MOST_ROWS) as u64;
    if more > 0 {
        let more = count(more, "smaller change", "smaller changes");
        writeln!(out, "and {more}; --json has all").ok();
    }
}

/// The title of a table and the unit of its figures.
fn titled(figure: Figure) -> (&'static str, fn(u64) -> String) {
    let number = |n: u64| n.to_string();
    match figure {
        Figure::Calls => ("calls by function", number),
        Figure::Errors => ("failed calls by function", number),
        Figure::CallNs => ("time in calls by function", duration),
        Figure::Launches => ("launches by CUDA kernel, with those in graphs", number),
        Figure::CopiedBytes => ("bytes copied by direction", bytes),
        Figure::MemoryBytes => ("memory", bytes),
        Figure::LiveBytes => ("live at the end by kind of memory", bytes),
        Figure::AllocatedBySite => ("allocated by call site", bytes),
        Figure::LiveBySite => ("live at the end by allocating function", bytes),
    }
}

/// A percentage without a sign: `3.0%`. A change that rounds to 0 is shown as what it is.
fn percent(percent: f64) -> String {
    if percent > 0.0 && percent < 0.05 { "<0.1%".to_owned() } else { format!("{percent:.1}%") }
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::{CudaKernelLaunches, Replay};

    use super::*;

    #[test]
    fn names_of_kernels_are_short_unless_wanted_in_full_and_stay_different() {
        let kernels = ["void n::fill<int, 4>(int*)", "void n::fill<int, 8>(int*)", "void n::scale(float*)"];
        let recorded = |launches: u64| {
            let mut report = Replay::default().finish(None);
            // the second kernel does not change, but the first must have another name
            report.summary.gpu_ops.kernels = kernels
                .iter()
                .zip([launches, 7, launches])
                .map(|(kernel, launches)| {
                    let mut row = CudaKernelLaunches { kernel: (*kernel).to_owned(), ..Default::default() };
                    row.totals.launches = launches;
                    row
                })
                .collect();
            RecordingFigures::of(&report)
        };
        let (before, after) = (recorded(1), recorded(3));
        let comparison = Comparison {
            names: ["a", "b"],
            figures: [&before, &after],
            filtered: [None; 2],
            differences: &gpuprobe_analysis::differences(&before, &after, false),
            fail_above: None,
        };
        let names = |full_names| {
            let text = diff(&comparison, 200, full_names);
            text.lines()
                .skip(1)
                .filter_map(|line| line.split("  ").next().map(str::to_owned))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["fill<.., 4>", "scale"]);
        assert_eq!(names(true), [kernels[0], kernels[2]]);
    }

    #[test]
    fn small_changes_are_not_shown_as_none() {
        assert_eq!([0.0, 0.01, 0.05, 100.0].map(percent), ["0.0%", "<0.1%", "0.1%", "100.0%"]);
    }
}
