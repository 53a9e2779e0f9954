//! The sections of the page with tables, curves and flame graphs.

use gpuprobe_analysis::copies::effective;
use gpuprobe_analysis::timeline::{Activity, Lane};
use gpuprobe_analysis::{CudaKernelLaunches, ErrorCount, ReplayReport, SummaryReport};
use gpuprobe_event::MemoryBySite;
use gpuprobe_event::counters::HostMemory;

use super::Source;
use super::brief::brief;
use super::lanes::Drawn;
use super::svg::{bar, curve, distribution, escape, flame, put};
use crate::gpu_op_text::{evidence, graphs};
use crate::kernel_name::short_names;
use crate::out_of_memory;
use crate::sampled::{recorded_line, recorded_mark, time_mark, unprobed_returns};
use crate::summary::{AFTER_TEARDOWN, op_totals};
use crate::units::{bytes, count, duration};

/// The most rows of a table.
pub(super) const MOST_ROWS: usize = 200;

pub(super) fn figures(out: &mut String, report: &ReplayReport) {
    let summary = &report.summary;
    let (launches, _, copied) = op_totals(summary);
    let kernels = launches.saturating_add(summary.gpu_ops.graphs.derived);
    let peak = report.live.iter().map(|curve| curve.live.peak).max().unwrap_or(0);
    let lost = summary.losses.iter().map(|loss| loss.count).fold(0, u64::saturating_add);
    let errors = match summary.teardown_errors {
        0 => "errors".to_owned(),
        n => format!("errors, and {n} at teardown"),
    };
    let mut figures = [
        (duration(summary.span_ns()), "from the first event to the last"),
        (summary.outermost_calls.to_string(), "calls"),
        (duration(summary.outermost_ns), "in calls, over all threads"),
        (kernels.to_string(), "CUDA kernels launched"),
        (bytes(copied), "copied"),
        (bytes(peak), "peak of live memory of a process"),
        (summary.outermost_errors.to_string(), errors.as_str()),
        (lost.to_string(), "lost"),
    ];
    if summary.only_entries {
        // all figures between the calls and the losses come from returns, which were not recorded
        figures[2..7].iter_mut().for_each(|(value, _)| *value = "-".to_owned());
    }
    out.push_str("<div class=\"figures\" id=\"figures\">");
    for (value, what) in figures {
        put!(out, "<div><b>{value}</b><span>{what}</span></div>");
    }
    out.push_str("</div>\n");
}

pub(super) fn advice(out: &mut String, summary: &SummaryReport) {
    if summary.advice.is_empty() {
        return;
    }
    out.push_str("<h2>Advice</h2>\n<ul id=\"advice\">\n");
    for advice in &summary.advice {
        put!(
            out,
            "<li>{}<br><span class=\"faint\">{}</span></li>\n",
            escape(advice.what()),
            escape(&evidence(advice))
        );
    }
    out.push_str("</ul>\n");
}

pub(super) fn memory(out: &mut String, report: &ReplayReport) {
    if report.live.is_empty() {
        return;
    }
    out.push_str("<h2>Live memory over time</h2>\n<div id=\"memory\">\n");
    let between = (report.timeline.from_ns, report.timeline.to_ns);
    for process in &report.live {
        let (name, end) = (escape(&process.process), bytes(process.end_bytes));
        put!(out, "<p>{} {name}: {end} at the end</p>\n", process.tgid);
        let of_process = report.sites.curves.iter().filter(|curve| curve.tgid == process.tgid);
        curve(out, &process.live, &of_process.collect::<Vec<_>>(), between);
    }
    if report.sites.unattributed > 0 {
        put!(
            out,
            "<p>{} were freed without a known call site; they remain in the areas of call sites</p>\n",
            bytes(report.sites.unattributed)
        );
    }
    if report.more_live > 0 {
        put!(
            out,
            "<p>and {} with less live memory</p>\n",
            count(report.more_live as u64, "process", "processes")
        );
    }
    out.push_str("</div>\n");
    // the figures of the BPF side are complete even if records were lost
    let counted = &report.summary.memory_by_site;
    let by_site = if counted.is_empty() { &report.sites.at_end } else { counted };
    memory_by_site(out, by_site, "Memory live at the end, by call site", ["sites", "allocations"]);
    let tensors = &report.summary.tensors.by_site;
    memory_by_site(out, tensors, "Tensors live at the end, by call site", ["tensors", "tensors"]);
    if report.memory.total > 0 {
        out.push_str("<h2>Memory allocated, by stack</h2>\n");
        flame(out, &report.memory, bytes);
    }
}

/// A table by call site, with the name of the table and the title of the column with the number of allocations.
fn memory_by_site(out: &mut String, memory: &MemoryBySite, title: &str, [name, number]: [&str; 2]) {
    if memory.is_empty() {
        return;
    }
    put!(out, "<h2>{title}</h2>\n");
    table(out, name, &["call site", "bytes", "", number, "process"]);
    let most = memory.sites.first().map_or(0, |site| site.bytes);
    for site in &memory.sites {
        let (name, process) = (escape(&site.call_site), escape(&site.process));
        let short = escape(&brief(&site.call_site));
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\" title=\"{name}\"><div>{short}</div></td><td>{}</td><td>{}</td><td>{}</td><td>{} {process}</td></tr>\n",
            bytes(site.bytes),
            bar(site.bytes, most, "launch"),
            site.allocations,
            site.pid,
        );
    }
    // a trace can claim any number
    let other_sites = usize::try_from(memory.other_sites).unwrap_or(usize::MAX);
    end_table(out, memory.sites.len().saturating_add(other_sites));
}

pub(super) fn kernels(out: &mut String, summary: &SummaryReport) {
    let ops = &summary.gpu_ops;
    let lines = graphs(&ops.graphs);
    if ops.kernels.is_empty() && lines.is_empty() {
        return;
    }
    out.push_str("<h2>CUDA kernels</h2>\n");
    for line in lines {
        put!(out, "<p>{}</p>\n", escape(&line));
    }
    let titles = [
        "kernel",
        "launches",
        "in graphs (derived)",
        "",
        "threads per launch",
        "streams",
        "mean launch call",
    ];
    table(out, "kernels", &titles);
    let most = ops.kernels.first().map_or(0, CudaKernelLaunches::runs);
    let names: Vec<_> = ops.kernels.iter().map(|kernel| kernel.kernel.as_str()).collect();
    for (kernel, short) in ops.kernels.iter().zip(short_names(&names)).take(MOST_ROWS) {
        let (name, short) = (escape(&kernel.kernel), escape(&short));
        let of_each = |sum: u64| sum.checked_div(kernel.totals.launches).unwrap_or(0);
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\" title=\"{name}\"><div>{short}</div></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td></tr>\n",
            kernel.totals.launches,
            kernel.in_graphs,
            bar(kernel.runs(), most, "launch"),
            of_each(kernel.totals.threads),
            kernel.streams,
            time_mark(kernel.totals.unprobed_returns),
            duration(of_each(kernel.totals.total_ns))
        );
    }
    end_table(out, ops.kernels.len());
    out.push_str("<p>the time of a launch call is not the time of the CUDA kernel</p>\n");
}

pub(super) fn copies(out: &mut String, summary: &SummaryReport) {
    let copies = &summary.gpu_ops.copies;
    if copies.is_empty() {
        return;
    }
    out.push_str("<h2>Copies and memsets</h2>\n");
    table(out, "copies", &["kind, mode, host memory", "copies", "bytes", "", "bandwidth"]);
    let most = copies.iter().map(|copy| copy.bytes).max().unwrap_or(0);
    for copy in copies {
        let host = match copy.host {
            HostMemory::Nothing => String::new(),
            host => format!(", {}", host.as_str()),
        };
        let name = format!("{}, {}{host}", copy.direction.as_str(), copy.mode());
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            copy.copies,
            bytes(copy.bytes),
            bar(copy.bytes, most, "transfer"),
            effective(&[copy])
                .map_or_else(|| "-".to_owned(), |e| format!("{}/s", bytes(e.bytes_per_second as u64)))
        );
    }
    end_table(out, copies.len());
    out.push_str("<p>bandwidth as the caller saw it, including everything the call waited for; only for copies that wait</p>\n");
}

pub(super) fn functions(out: &mut String, summary: &SummaryReport) {
    if summary.functions.is_empty() {
        return;
    }
    out.push_str("<h2>Functions</h2>\n");
    let titles = [
        "function",
        "calls",
        "errors",
        "total",
        "",
        "mean",
        "p50",
        "p99",
        "max",
        "distribution of durations",
    ];
    table(out, "functions", &titles);
    let most = summary.functions.iter().map(|f| f.total_ns).max().unwrap_or(0);
    for f in summary.functions.iter().take(MOST_ROWS) {
        let name = escape(&f.name);
        let mark = time_mark(f.unprobed_returns);
        let time =
            |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{mark}{}", duration(ns)));
        let class = Activity::of(f.class).as_str();
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{}{}</td><td{}>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            recorded_mark(&summary.sampled, f),
            f.calls,
            if f.errors > 0 { " class=\"bad\"" } else { "" },
            f.errors,
            time(Some(f.total_ns)),
            bar(f.total_ns, most, class),
            time(f.mean_ns()),
            time(f.p50_ns),
            time(f.p99_ns),
            time(Some(f.max_ns)),
            distribution(&f.latency, class)
        );
    }
    end_table(out, summary.functions.len());
    let unprobed = summary.functions.iter().map(|f| f.unprobed_returns).fold(0, u64::saturating_add);
    if let Some(text) = unprobed_returns(unprobed) {
        put!(out, "<p>{}</p>\n", escape(&text));
    }
}

pub(super) fn slowest(out: &mut String, report: &ReplayReport, drawn: &Drawn<'_>) {
    let summary = &report.summary;
    if summary.slowest.is_empty() {
        return;
    }
    out.push_str("<h2>Slowest calls</h2>\n");
    table(out, "slowest", &["function", "took", "at", "process", "thread"]);
    for slow in &summary.slowest {
        let mut name = escape(&slow.name);
        let more =
            [slow.size.map(bytes), slow.kernel.as_deref().map(escape), slow.error.as_deref().map(escape)];
        more.into_iter().flatten().for_each(|text| name += &format!(", {text}"));
        let at = format!("{:.6} s", slow.start_ns as f64 / 1e9);
        let lane = drawn.index.get(&(slow.tgid, Lane::Thread(slow.tid)));
        let link = |lane: &usize| {
            let start_ns = slow.start_ns.saturating_sub(report.timeline.from_ns);
            let took = slow.duration_ns;
            format!(
                "<a href=\"#timeline\" data-lane=\"{lane}\" data-start=\"{start_ns}\" data-took=\"{took}\">{at}</a>"
            )
        };
        let at = lane.map(link).unwrap_or(at);
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{}</td><td>{at}</td><td>{}</td><td>{}</td></tr>\n",
            duration(slow.duration_ns),
            slow.tgid,
            slow.tid
        );
    }
    end_table(out, summary.slowest.len());
}

pub(super) fn time(out: &mut String, report: &ReplayReport) {
    if report.time.total > 0 {
        out.push_str("<h2>Time in calls, by call stack</h2>\n");
        flame(out, &report.time, duration);
    }
}

/// Failures, and apart from them the calls that came after CUDA had shut down.
/// Allocations for which a GPU had no room, with what had the memory.
pub(super) fn out_of_memory(out: &mut String, summary: &SummaryReport) {
    let log = &summary.out_of_memory;
    if log.is_empty() {
        return;
    }
    out.push_str("<h2>Out of memory</h2>\n<ul id=\"out-of-memory\">\n");
    for event in &log.errors {
        put!(out, "<li>at {:.6} s: {}", event.at_ns as f64 / 1e9, escape(&out_of_memory::line(event)));
        for holder in out_of_memory::holders(event) {
            put!(out, "<br><span class=\"faint\">{}</span>", escape(&holder));
        }
        out.push_str("</li>\n");
    }
    if log.others > 0 {
        put!(out, "<li>and {} more</li>\n", log.others);
    }
    out.push_str("</ul>\n");
}

pub(super) fn errors(out: &mut String, summary: &SummaryReport) {
    let (teardown, failures): (Vec<_>, Vec<_>) = summary.errors.iter().partition(|error| error.is_teardown());
    if summary.errors.is_empty() {
        return;
    }
    out.push_str("<h2>Errors</h2>\n");
    if !failures.is_empty() {
        error_table(out, "errors", &failures);
    }
    if !teardown.is_empty() {
        put!(out, "<p>{AFTER_TEARDOWN}:</p>\n");
        error_table(out, "teardown", &teardown);
    }
}

fn error_table(out: &mut String, id: &str, errors: &[&ErrorCount]) {
    table(out, id, &["function", "calls", "error"]);
    for error in errors.iter().take(MOST_ROWS) {
        let (function, what) = (escape(&error.function), escape(&error.error));
        put!(
            out,
            "<tr data-name=\"{function} {what}\"><td class=\"name\">{function}</td><td>{}</td><td class=\"name\">{what}</td></tr>\n",
            error.count
        );
    }
    end_table(out, errors.len());
}

pub(super) fn losses(out: &mut String, summary: &SummaryReport, source: &Source<'_>) {
    out.push_str("<h2>Losses and missing parts</h2>\n<ul id=\"losses\">\n");
    for loss in &summary.losses {
        put!(
            out,
            "<li class=\"bad\">{} {}: {}</li>\n",
            loss.count,
            loss.cause.as_str(),
            escape(loss.cause.meaning())
        );
    }
    for missing in source.missing {
        put!(out, "<li class=\"bad\">{}</li>\n", escape(missing));
    }
    if summary.losses.is_empty() && source.missing.is_empty() {
        out.push_str("<li>nothing was lost</li>\n");
    }
    for skipped in source.end.iter().flat_map(|end| &end.skipped) {
        put!(out, "<li>not watched: {}</li>\n", escape(skipped));
    }
    for sampled in &summary.sampled {
        put!(out, "<li>sampled: {}</li>\n", escape(&recorded_line(sampled)));
    }
    out.push_str("</ul>\n");
}

/// Begins a table whose first column is a name, so that it is visible on a narrow screen. A click on a title sorts.
pub(super) fn table(out: &mut String, id: &str, titles: &[&str]) {
    put!(out, "<div class=\"scroll\"><table id=\"{id}\"><thead><tr>");
    for (i, title) in titles.iter().enumerate() {
        let class = if i == 0 { " class=\"name\"" } else { "" };
        match *title {
            "" => put!(out, "<th{class}></th>"),
            title => put!(out, "<th{class}><button class=\"sort\">{title}</button></th>"),
        }
    }
    out.push_str("</tr></thead><tbody>\n");
}

pub(super) fn end_table(out: &mut String, rows: usize) {
    out.push_str("</tbody></table></div>\n");
    if rows > MOST_ROWS {
        put!(out, "<p>and {} more</p>\n", rows - MOST_ROWS);
    }
}
