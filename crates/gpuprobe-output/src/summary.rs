//! The summary of a recording as text.

mod gpu_op_tables;
mod incomplete;
mod kmod_tables;
mod layout;

use std::fmt::Write;

use gpuprobe_analysis::{
    ErrorCount, FunctionSummary, MemorySummary, ProcessEnd, ProcessSummary, SlowCall, SummaryReport, Total,
};
use gpuprobe_event::MemoryBySite;
use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::driver::xid;

use self::incomplete::{Incomplete, marked};
pub use self::layout::Fit;
use self::layout::{LONGEST_NAME, heading, line, name};
use crate::gpu_op_text::kernel;
use crate::table::{Align, rows};
use crate::units::{bytes, count, duration, fitted, printable};
use crate::xid;

const LONGEST_KERNEL: usize = 40;
/// The most functions that are named in the line about calls that did not return.
const OPEN_NAMED: usize = 5;

/// Printed for a recording without returns.
pub(crate) const ONLY_BEGUN: &str =
    "only the start of calls was recorded: no results, no durations and no nesting";

/// The summary as text. Empty sections are omitted, but losses are always stated.
pub fn summary(report: &SummaryReport, fit: Fit) -> String {
    let incomplete = Incomplete::of(report);
    let mut out = warnings(report);
    out.push_str(&classic(report));
    out.push_str(&header(report));
    functions(&mut out, &report.functions, incomplete.calls);
    gpu_op_tables::launches(&mut out, &report.gpu_ops, fit, incomplete.gpu_ops);
    gpu_op_tables::copies(&mut out, &report.gpu_ops, incomplete.gpu_ops);
    gpu_op_tables::gaps(&mut out, &report.gpu_ops.gaps, incomplete.gpu_ops);
    kmod_tables::tables(&mut out, &report.driver, fit);
    gpu_op_tables::advised(&mut out, &report.advice);
    memory(&mut out, &report.memory, incomplete.memory);
    memory_by_site(&mut out, &report.memory_by_site, incomplete.memory_by_site);
    slowest(&mut out, &report.slowest);
    errors(&mut out, &report.errors, incomplete.calls);
    gpu_errors(&mut out, report);
    processes(&mut out, &report.processes, incomplete.calls);
    losses(&mut out, report);
    out
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
    let mut lines = [
        ("Total CUDA API calls", report.outermost_calls.to_string()),
        ("Kernel launches", launches.to_string()),
        ("Memory allocations", allocated.count.to_string()),
        ("Total memory allocated", size(allocated.bytes)),
        ("Memory transfers", transfers.to_string()),
        ("Total data transferred", size(transferred)),
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
    let span = report.last_ns.unwrap_or(0).saturating_sub(report.first_ns.unwrap_or(0));
    let nested = match report.calls - report.outermost_calls {
        0 => String::new(),
        n => format!(" and {n} inside them"),
    };
    let results = if report.only_entries {
        format!("; {ONLY_BEGUN}")
    } else {
        let errors = count(report.outermost_errors, "error", "errors");
        format!(", {errors}, {} in calls", duration(report.outermost_ns))
    };
    format!(
        "{}{nested} in {} over {}{results}\n",
        count(report.outermost_calls, "call", "calls"),
        count(report.processes.len() as u64, "process", "processes"),
        duration(span),
    )
}

fn functions(out: &mut String, functions: &[FunctionSummary], is_incomplete: bool) {
    use Align::{Left, Right};
    if functions.is_empty() {
        return;
    }
    let titles = ["function", "calls", "errors", "total", "mean", "p50", "p99", "max", "bytes"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    table[0][0] = marked("function", is_incomplete);
    let has_rows = functions.iter().any(|f| f.calls > 0);
    // functions without a returned call are listed below the table
    for f in functions.iter().filter(|f| f.calls > 0) {
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
        let returned = f.calls > f.unobserved;
        table.push(vec![
            name(&f.name),
            f.calls.to_string(),
            f.errors.to_string(),
            time(returned.then_some(f.total_ns)),
            time(f.mean_ns()),
            time(f.p50_ns),
            time(f.p99_ns),
            time(returned.then_some(f.max_ns)),
            if f.bytes == 0 { "-".to_owned() } else { bytes(f.bytes) },
        ]);
    }
    out.push('\n');
    if has_rows {
        rows(out, "", &[Left, Right, Right, Right, Right, Right, Right, Right, Right], &table);
    }
    let sum = |of: fn(&FunctionSummary) -> u64| functions.iter().map(of).fold(0, u64::saturating_add);
    let (unobserved, unfinished) = (sum(|f| f.unobserved), sum(|f| f.unfinished));
    if unobserved > 0 {
        let calls = count(unobserved, "call", "calls");
        line(out, format_args!("{calls} counted at entry: the return is not recorded"));
    }
    if unfinished > 0 {
        let open = functions.iter().filter(|f| f.unfinished > 0);
        let mut names: Vec<_> = open.map(|f| name(&f.name)).take(OPEN_NAMED + 1).collect();
        if names.len() > OPEN_NAMED {
            names[OPEN_NAMED] = "...".to_owned();
        }
        let calls = count(unfinished, "call", "calls");
        line(out, format_args!("also {calls} that did not return: {}", names.join(", ")));
    }
}

/// The slowest calls.
fn slowest(out: &mut String, calls: &[SlowCall]) {
    if calls.is_empty() {
        return;
    }
    heading(out, "slowest calls");
    let row = |call: &SlowCall| {
        let more = [
            call.size.map(bytes),
            call.kernel.as_deref().map(|name| kernel(name, LONGEST_KERNEL)),
            call.error.as_deref().map(name),
        ];
        vec![
            duration(call.duration_ns),
            format!("at {:.6} s", call.start_ns as f64 / 1e9),
            call.tid.to_string(),
            name(&call.name),
            more.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]
    };
    let table: Vec<_> = calls.iter().map(row).collect();
    rows(out, "  ", &[Align::Right, Align::Right, Align::Right, Align::Left, Align::Left], &table);
}

fn memory(out: &mut String, memory: &MemorySummary, is_incomplete: bool) {
    if *memory == MemorySummary::default() {
        return;
    }
    heading(out, &marked("memory", is_incomplete));
    let mut table = Vec::new();
    let mut row = |what: String, total: Total, noun: (&str, &str)| {
        if total.count > 0 {
            table.push(vec![what, count(total.count, noun.0, noun.1), bytes(total.bytes)]);
        }
    };
    let allocations = ("allocation", "allocations");
    row("allocated".to_owned(), memory.allocated, allocations);
    row("freed".to_owned(), memory.freed, ("free", "frees"));
    row("ended with its context".to_owned(), memory.freed_with_context, allocations);
    row("replaced, free not seen".to_owned(), memory.replaced, allocations);
    for live in &memory.freed_by_exit {
        row(format!("live at exit, {}", live.kind.as_str()), live.into(), allocations);
    }
    for live in &memory.live {
        row(format!("live at the end, {}", live.kind.as_str()), live.into(), allocations);
    }
    if memory.peak_bytes > 0 {
        table.push(vec!["peak".to_owned(), String::new(), bytes(memory.peak_bytes)]);
    }
    rows(out, "  ", &[Align::Left, Align::Right, Align::Right], &table);
    let notes = [
        (memory.failed_allocations, "allocations that failed"),
        (memory.failed_frees, "frees that failed"),
        (memory.unknown_frees, "frees of addresses not seen allocated"),
    ];
    for (n, what) in notes.into_iter().filter(|&(n, _)| n > 0) {
        line(out, format_args!("{what}: {n}"));
    }
    if !memory.live.is_empty() || !memory.freed_by_exit.is_empty() {
        line(out, format_args!("(memory that is live at the end is not necessarily a leak)"));
    }
}

/// Live memory at the end by call site, of all processes, the largest first.
fn memory_by_site(out: &mut String, memory: &MemoryBySite, is_incomplete: bool) {
    const MOST: usize = 10;
    if memory.is_empty() {
        return;
    }
    heading(out, &marked("memory live at the end, by call site", is_incomplete));
    let mut table = Vec::new();
    for site in memory.sites.iter().take(MOST) {
        let process = match memory.has_several_processes() {
            true => format!("{} {}: ", site.pid, printable(&site.process)),
            false => String::new(),
        };
        let name = format!("{process}{}", fitted(&printable(&site.call_site), LONGEST_NAME));
        table.push(vec![bytes(site.bytes), count(site.allocations, "allocation", "allocations"), name]);
    }
    rows(out, "  ", &[Align::Right, Align::Right, Align::Left], &table);
    let others = memory.other_sites.saturating_add(memory.sites.len().saturating_sub(MOST) as u64);
    if others > 0 {
        line(out, format_args!("and {}", count(others, "other call site", "other call sites")));
    }
}

fn errors(out: &mut String, errors: &[ErrorCount], is_incomplete: bool) {
    if errors.is_empty() {
        return;
    }
    heading(out, &marked("errors", is_incomplete));
    let row = |e: &ErrorCount| {
        let inner = match (e.outermost, e.count - e.outermost) {
            (_, 0) => String::new(),
            (0, _) => "inside other calls".to_owned(),
            (_, n) => format!("{n} of them inside other calls"),
        };
        vec![name(&e.function), name(&e.error), e.count.to_string(), inner]
    };
    let table: Vec<_> = errors.iter().map(row).collect();
    rows(out, "  ", &[Align::Left, Align::Left, Align::Right, Align::Left], &table);
}

fn processes(out: &mut String, processes: &[ProcessSummary], is_incomplete: bool) {
    if processes.is_empty() {
        return;
    }
    heading(out, &marked("processes", is_incomplete));
    let row = |p: &ProcessSummary| {
        let end = match p.end {
            None => "running".to_owned(),
            Some(ProcessEnd::Code(code)) => format!("exit {code}"),
            Some(ProcessEnd::Signal(signal)) => format!("killed by signal {signal}"),
            Some(ProcessEnd::Unknown) => "exited".to_owned(),
        };
        vec![p.pid.to_string(), name(&p.name), count(p.calls, "call", "calls"), end]
    };
    let table: Vec<_> = processes.iter().map(row).collect();
    rows(out, "  ", &[Align::Right, Align::Left, Align::Right, Align::Left], &table);
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
        memory(&mut out, &summary, false);
        let lines: Vec<_> =
            out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "",
            "memory",
            "allocated 9 allocations 9.0 KiB",
            "ended with its context 2 allocations 2.0 KiB",
            "replaced, free not seen 1 allocation 1.0 KiB",
            "live at the end, unknown 6 allocations 6.0 KiB",
            "peak 8.0 KiB",
            "(memory that is live at the end is not necessarily a leak)",
        ];
        assert_eq!(lines, expected);
    }
}
