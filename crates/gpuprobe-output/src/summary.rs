//! The summary of a recording as text.

mod collective_tables;
mod function_table;
mod gpu_op_tables;
mod gpu_time_tables;
mod idle_tables;
mod kmod_tables;
pub(crate) mod layout;
mod quality;
pub(crate) mod rank_tables;
mod site_tables;

use std::fmt::Write;

use gpuprobe_analysis::{
    ErrorCount, MemorySummary, ProcessEnd, ProcessSummary, SlowCall, SummaryReport, Total,
};
use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::driver::xid;
use gpuprobe_event::{Class, MemoryBySite, TensorSource, TensorSummary, catalogue};

pub use self::layout::SummaryOptions;
use self::layout::{NameTable, heading, line, name, wrapped};
use self::quality::{Qualities, Quality, marked};
use crate::kernel_name::short_name;
use crate::out_of_memory;
use crate::sampled::{recorded_mark_of_classes, sampled_lines};
use crate::units::{bytes, count, duration, printable};
use crate::xid;

/// Printed for a recording without returns.
pub(crate) const ONLY_BEGUN: &str =
    "only the start of calls was recorded: no results, no durations and no nesting";

/// The heading of errors at teardown.
pub(crate) const AFTER_TEARDOWN: &str = "at exit, after CUDA had shut down (no failures)";

/// The summary as text. Empty sections are omitted, but losses are always stated.
pub fn summary(report: &SummaryReport, options: &SummaryOptions) -> String {
    let qualities = Qualities::of(report);
    let mut out = warnings(report);
    out.push_str(&classic(report));
    out.push_str(&wrapped(&header(report), options.width));
    rank_tables::ranks(&mut out, report.ranks.as_deref(), &report.collectives, options);
    function_table::functions(&mut out, report, options, qualities.calls);
    gpu_op_tables::launches(&mut out, &report.gpu_ops, options, qualities.launches);
    gpu_op_tables::copies(&mut out, &report.gpu_ops, options, qualities.copies);
    site_tables::tables(&mut out, &report.calls_by_site, options, qualities.gpu_ops);
    idle_tables::idle(&mut out, report, options, qualities.gpu_ops);
    gpu_time_tables::tables(&mut out, &report.gpu_time, options, qualities.gpu_time);
    kmod_tables::tables(&mut out, &report.driver, options);
    collective_tables::collectives(&mut out, &report.collectives, options, qualities.calls);
    gpu_op_tables::advised(&mut out, &report.advice);
    memory(&mut out, &report.memory, options, qualities.memory);
    let title = marked("memory live at the end, by call site", qualities.memory_by_site);
    memory_by_site(&mut out, &report.memory_by_site, [&title, "allocations"], options);
    tensors(&mut out, &report.tensors, options, qualities.memory_by_site);
    slowest(&mut out, report, options);
    errors(&mut out, &report.errors, options, qualities.calls);
    gpu_errors(&mut out, report);
    out_of_memory_errors(&mut out, report);
    processes(&mut out, &report.processes, options, qualities.calls);
    losses(&mut out, report);
    out
}

/// Allocations for which a GPU had no room, with what had the memory.
fn out_of_memory_errors(out: &mut String, report: &SummaryReport) {
    let log = &report.out_of_memory;
    if log.is_empty() {
        return;
    }
    out.push_str("\nOut of memory\n");
    for event in &log.errors {
        let seconds = event.at_ns as f64 / 1e9;
        writeln!(out, "  at {seconds:.6} s  {}", printable(&out_of_memory::line(event))).ok();
        for holder in out_of_memory::holders(event) {
            writeln!(out, "    {}", printable(&holder)).ok();
        }
    }
    if log.others > 0 {
        line(out, format_args!("  and {} more", log.others));
    }
}

/// XID errors of GPUs, with the calls that failed shortly before and after.
fn gpu_errors(out: &mut String, report: &SummaryReport) {
    if report.gpu_errors.is_empty() {
        return;
    }
    out.push_str("\nGPU errors\n");
    for error in &report.gpu_errors {
        let seconds = error.event.at_ns as f64 / 1e9;
        writeln!(out, "  at {seconds:.6} s  {}", printable(&xid::line(&error.event))).ok();
        if let Some(action) = xid(error.event.number).and_then(|known| known.action) {
            writeln!(out, "    what to do: {action}").ok();
        }
        for (when, calls) in [("before", &error.before), ("after", &error.after)] {
            for call in calls {
                let distance = duration(call.at_ns.abs_diff(error.event.at_ns));
                let (function, error) = (printable(&call.function), printable(&call.error));
                writeln!(out, "    failed {distance} {when}: {} {function} {error}", call.tgid).ok();
            }
        }
    }
    if report.other_gpu_errors > 0 {
        writeln!(out, "  and {} more", report.other_gpu_errors).ok();
    }
}

/// Warnings about losses, before any figure, so that they are read first.
fn warnings(report: &SummaryReport) -> String {
    let mut out = String::new();
    let lost = report.losses.iter().map(|loss| loss.count).fold(0, u64::saturating_add);
    if lost > 0 {
        let causes: Vec<_> =
            report.losses.iter().map(|loss| format!("{} {}", loss.count, loss.cause.as_str())).collect();
        let causes = causes.join(", ");
        writeln!(out, "warning: {lost} lost ({causes}; explained at the end): figures may be too low").ok();
    }
    for skipped in &report.skipped {
        writeln!(out, "not watched: {}", printable(skipped)).ok();
    }
    out.push_str(&sampled_lines(&report.sampled));
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

/// The first block of the classic runner, byte for byte. Its megabytes have 2^20 bytes.
fn classic(report: &SummaryReport) -> String {
    let (launches, transfers, transferred) = op_totals(report);
    let allocated = report.memory.allocated;
    let size = |bytes: u64| format!("{bytes} bytes ({:.2} MB)", bytes as f64 / f64::from(1 << 20));
    let mark = |classes: &[Class]| recorded_mark_of_classes(&report.sampled, classes);
    let launched = mark(&[Class::Launch, Class::GraphLaunch]);
    let copied = mark(&[Class::Memcpy]);
    let mut lines = [
        ("Total CUDA API calls", format!("{}{}", mark(&[]), report.outermost_calls)),
        ("Kernel launches", format!("{launched}{launches}")),
        ("Memory allocations", allocated.count.to_string()),
        ("Total memory allocated", size(allocated.bytes)),
        ("Memory transfers", format!("{copied}{transfers}")),
        ("Total data transferred", format!("{copied}{}", size(transferred))),
    ];
    if report.only_entries {
        // without returns it is not known which calls succeeded
        lines.iter_mut().skip(1).for_each(|(_, value)| *value = "not known".to_owned());
    }
    let lines: String = lines.iter().map(|(name, value)| format!("  {name}: {value}\n")).collect();
    let kernel = kmod_tables::classic(report);
    format!("=== TRACE SUMMARY ===\n\nUSERSPACE (libcuda.so):\n{lines}\n{kernel}")
}

/// The number of CUDA kernel launches, of copies, and of copied bytes. Memsets are not copies.
pub(crate) fn op_totals(report: &SummaryReport) -> (u64, u64, u64) {
    let launches =
        report.gpu_ops.kernels.iter().fold(0, |sum: u64, row| sum.saturating_add(row.totals.launches));
    let copies = || report.gpu_ops.copies.iter().filter(|copy| copy.direction != CopyDirection::Fill);
    let calls = copies().fold(0, |sum: u64, copy| sum.saturating_add(copy.copies));
    (launches, calls, copies().fold(0, |sum: u64, copy| sum.saturating_add(copy.bytes)))
}

fn header(report: &SummaryReport) -> String {
    let nested = match report.calls - report.outermost_calls {
        0 => String::new(),
        n => format!(" and {n} inside them"),
    };
    let results = if report.only_entries {
        format!("; {ONLY_BEGUN}")
    } else {
        let errors = count(report.outermost_errors, "error", "errors");
        let teardown = match report.teardown_errors {
            0 => String::new(),
            n => format!(" and {n} at teardown"),
        };
        format!(", {errors}{teardown}, {} in calls", duration(report.outermost_ns))
    };
    format!(
        "{}{}{nested} in {} over {}{results}\n",
        recorded_mark_of_classes(&report.sampled, &[]),
        count(report.outermost_calls, "call", "calls"),
        count(report.processes.len() as u64, "process", "processes"),
        duration(report.span_ns()),
    )
}

/// The slowest calls. Only with all rows: the table of functions has the longest call of each.
fn slowest(out: &mut String, report: &SummaryReport, options: &SummaryOptions) {
    let hides = function_table::hides_internal(report, options);
    let is_internal = |call: &SlowCall| {
        catalogue().lookup(call.api, None, &call.name).is_some_and(|f| f.class.is_internal())
    };
    let mut calls = report.slowest.iter().filter(|call| !hides || !is_internal(call)).peekable();
    if options.rows > 0 || calls.peek().is_none() {
        return;
    }
    let mut table = NameTable::new(&["slowest calls", "took", "at", "thread", ""], &[""], &["", "thread"]);
    for call in calls {
        let kernel = call.kernel.as_deref().map(|kernel| name(&short_name(kernel)));
        let more = [call.size.map(bytes), kernel, call.error.as_deref().map(name)];
        table.push(vec![
            name(&call.name),
            duration(call.duration_ns),
            format!("{:.6} s", call.start_ns as f64 / 1e9),
            call.tid.to_string(),
            more.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]);
    }
    out.push('\n');
    table.write(out, options);
}

fn memory(out: &mut String, memory: &MemorySummary, options: &SummaryOptions, quality: Quality) {
    if *memory == MemorySummary::default() {
        return;
    }
    let mut table = NameTable::new(&[&marked("memory", quality), "allocations", "bytes"], &[], &[]);
    let mut row = |what: String, total: Total| {
        if total.count > 0 {
            table.push(vec![what, total.count.to_string(), bytes(total.bytes)]);
        }
    };
    row("allocated".to_owned(), memory.allocated);
    row("freed".to_owned(), memory.freed);
    row("ended with its context".to_owned(), memory.freed_with_context);
    row("replaced, free not seen".to_owned(), memory.replaced);
    for live in &memory.freed_by_exit {
        row(format!("live at exit, {}", live.kind.as_str()), live.into());
    }
    for live in &memory.live {
        row(format!("live at the end, {}", live.kind.as_str()), live.into());
    }
    if memory.peak_bytes > 0 {
        table.push(vec!["peak".to_owned(), String::new(), bytes(memory.peak_bytes)]);
    }
    out.push('\n');
    table.write(out, options);
    let notes = [
        (memory.failed_allocations, "allocations that failed"),
        (memory.failed_frees, "frees that failed"),
        (memory.unknown_frees, "frees of addresses not seen allocated"),
    ];
    for (n, what) in notes.into_iter().filter(|&(n, _)| n > 0) {
        line(out, format_args!("{what}: {n}"));
    }
}

/// Live memory or tensors at the end by call site, of all processes, the largest first.
fn memory_by_site(out: &mut String, memory: &MemoryBySite, titles: [&str; 2], options: &SummaryOptions) {
    if memory.is_empty() {
        return;
    }
    let mut table = NameTable::new(&[titles[0], titles[1], "bytes"], &[], &[]);
    for site in memory.sites.iter().take(options.few()) {
        let process = match memory.has_several_processes() {
            true => format!("{} {}: ", site.pid, printable(&site.process)),
            false => String::new(),
        };
        let site_name = format!("{process}{}", name(&site.call_site));
        table.push(vec![site_name, site.allocations.to_string(), bytes(site.bytes)]);
    }
    out.push('\n');
    table.write(out, options);
    let others = memory.other_sites.saturating_add(memory.sites.len().saturating_sub(options.few()) as u64);
    if others > 0 {
        line(out, format_args!("and {}", count(others, "other call site", "other call sites")));
    }
}

/// Tensors of frameworks at the end: by GPU, and by call site.
fn tensors(out: &mut String, tensors: &TensorSummary, options: &SummaryOptions, quality: Quality) {
    if !tensors.gpus.is_empty() {
        let titles = ["tensors at the end, by GPU", "reserved", "in use", "cached", "fragmented"];
        let mut table = NameTable::new(&titles, &[], &[]);
        let known = |figure: Option<u64>| figure.map_or_else(|| "-".to_owned(), bytes);
        for of in tensors.gpus.iter().take(options.few()) {
            let gpu = of.gpu.map_or_else(|| "unknown GPU".to_owned(), |number| format!("GPU {number}"));
            let source = match of.source {
                TensorSource::Reports => String::new(),
                source => format!(", by {}", source.as_str()),
            };
            table.push(vec![
                format!("{} {}: {gpu}{source}", of.pid, printable(&of.process)),
                known(of.reserved_bytes),
                bytes(of.in_use_bytes),
                known(of.cached_bytes()),
                known(of.fragmented_bytes),
            ]);
        }
        out.push('\n');
        table.write(out, options);
    }
    let title = marked("tensors live at the end, by call site", quality);
    memory_by_site(out, &tensors.by_site, [&title, "tensors"], options);
}

/// Failures, and apart from them the calls that came after CUDA had shut down.
fn errors(out: &mut String, errors: &[ErrorCount], options: &SummaryOptions, quality: Quality) {
    let (teardown, failures): (Vec<_>, Vec<_>) = errors.iter().partition(|error| error.is_teardown());
    if !failures.is_empty() {
        let titles = [&marked("errors", quality), "calls", "error", ""];
        let mut table = NameTable::new(&titles, &["error", ""], &[""]);
        for e in failures.iter().take(options.most()) {
            let inner = match (e.outermost, e.count - e.outermost) {
                (_, 0) => String::new(),
                (0, _) => "inside other calls".to_owned(),
                (_, n) => format!("{n} of them inside other calls"),
            };
            table.push(vec![name(&e.function), e.count.to_string(), name(&e.error), inner]);
        }
        out.push('\n');
        table.write(out, options);
        let more = failures.len().saturating_sub(options.most());
        if more > 0 {
            line(out, format_args!("and {more} more kinds of errors (--rows 0 shows all)"));
        }
    }
    if !teardown.is_empty() {
        let text = |e: &&ErrorCount| format!("{} {}", e.count, name(&e.function));
        let mut texts: Vec<_> = teardown.iter().take(options.few()).map(text).collect();
        let more = teardown.len().saturating_sub(options.few());
        texts.extend(
            (more > 0).then(|| format!("and {}", count(more as u64, "other function", "other functions"))),
        );
        let text = format!("{AFTER_TEARDOWN}: {}", texts.join(", "));
        heading(out, &wrapped(&text, options.width));
    }
}

fn processes(out: &mut String, processes: &[ProcessSummary], options: &SummaryOptions, quality: Quality) {
    if processes.is_empty() {
        return;
    }
    let end = |p: &ProcessSummary| match p.end {
        None => "running".to_owned(),
        Some(ProcessEnd::Code(code)) => format!("exit {code}"),
        Some(ProcessEnd::Signal(signal)) => format!("killed by signal {signal}"),
        Some(ProcessEnd::Unknown) => "exited".to_owned(),
    };
    if let [p] = processes {
        let calls = count(p.calls, "call", "calls");
        let text = format!("process {} {}: {calls}, {}", p.pid, name(&p.name), end(p));
        return heading(out, &marked(&text, quality));
    }
    let titles = [&marked("process", quality), "pid", "calls", "end"];
    let mut table = NameTable::new(&titles, &["end"], &[]);
    for p in processes.iter().take(options.most()) {
        table.push(vec![name(&p.name), p.pid.to_string(), p.calls.to_string(), end(p)]);
    }
    out.push('\n');
    table.write(out, options);
    let more = processes.len().saturating_sub(options.most());
    if more > 0 {
        line(out, format_args!("and {more} more processes (--rows 0 shows all)"));
    }
}

fn losses(out: &mut String, report: &SummaryReport) {
    if report.losses.is_empty() {
        heading(out, "0 lost");
        return;
    }
    let total = report.losses.iter().map(|l| l.count).fold(0, u64::saturating_add);
    heading(out, &format!("{total} lost"));
    for loss in &report.losses {
        line(out, format_args!("{} {}: {}", loss.count, loss.cause.as_str(), loss.cause.meaning()));
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{MemoryAmount, Space};

    use super::*;

    #[test]
    fn memory_that_no_call_freed_is_listed_by_its_end() {
        let total = |count, bytes| Total { count, bytes };
        let summary = MemorySummary {
            allocated: total(9, 9 << 10),
            freed_with_context: total(2, 2 << 10),
            replaced: total(1, 1 << 10),
            peak_bytes: 8 << 10,
            live: vec![MemoryAmount { kind: Space::Unknown, allocations: 6, bytes: 6 << 10 }],
            ..MemorySummary::default()
        };
        let mut out = String::new();
        memory(&mut out, &summary, &SummaryOptions::default(), Quality::Exact);
        let lines: Vec<_> =
            out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "",
            "memory allocations bytes",
            "allocated 9 9.0 KiB",
            "ended with its context 2 2.0 KiB",
            "replaced, free not seen 1 1.0 KiB",
            "live at the end, unknown 6 6.0 KiB",
            "peak 8.0 KiB",
        ];
        assert_eq!(lines, expected);
    }
}
