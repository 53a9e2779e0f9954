//! The sections about GPU operations: launches, copies, gaps of streams, advice, and ioctls of the NVIDIA kernel
//! module.

use gpuprobe_analysis::buckets::percentile;
use gpuprobe_analysis::copies::{by_direction, effective};
use gpuprobe_analysis::{GapTotals, GpuOps, ProcessSnapshot, Snapshot, advice};
use gpuprobe_event::Class;
use gpuprobe_event::counters::{CommandTotals, CopyDirection, CopyTotals, GapKind, HostMemory};

use super::process_lines::{line, process_line, processes_line};
use super::rates::Rates;
use crate::gpu_op_text::{
    began_with, bound, evidence, failed, graphs, in_graphs, is_named, kernel, meanwhile, more_kernels,
};
use crate::sampled::mark_of_classes;
use crate::units::{count, duration};

/// CUDA kernels shown per process. The rest is summed up in one line.
const MOST_KERNELS: usize = 20;
/// Longer names of CUDA kernels are shortened, for readability.
const LONGEST_NAME: usize = 160;

/// Calls `then` for each process of the snapshot, and after them for exited processes that are summed up by name.
fn each(snapshot: &Snapshot, mut then: impl FnMut(String, Option<&ProcessSnapshot>, &GpuOps)) {
    for process in &snapshot.processes {
        then(process_line(process), Some(process), &process.gpu_ops);
    }
    for past in &snapshot.past {
        then(processes_line(past), None, &past.gpu_ops);
    }
}

pub(super) fn launches(out: &mut String, snapshot: &Snapshot) {
    let mark = mark_of_classes(snapshot, &[Class::Launch, Class::GraphLaunch]);
    out.push_str("per-process kernel launches:\n");
    each(snapshot, |name, _, ops| {
        let graphs = graphs(&ops.graphs);
        if ops.kernels.is_empty() && graphs.is_empty() {
            return;
        }
        line(out, format_args!("{name}"));
        let launches =
            ops.kernels.iter().fold(0, |sum: u64, kernel| sum.saturating_add(kernel.totals.launches));
        let launched = || ops.kernels.iter().filter(|kernel| kernel.totals.launches > 0);
        let named = launched().filter(|kernel| is_named(kernel)).count();
        let kernels = match (named, named < launched().count()) {
            (0, true) => "kernels of unknown name".to_owned(),
            (_, true) => format!("{named} kernels and others"),
            (_, false) => format!("{named} kernels"),
        };
        line(out, format_args!("{mark}{launches} cudaLaunchKernel calls for {kernels}"));
        let (shown, more) = ops.kernels.split_at(ops.kernels.len().min(MOST_KERNELS));
        for row in shown {
            let kernel = kernel(&row.kernel, LONGEST_NAME);
            let (launches, failed) = (row.totals.launches, failed(row.totals.errors));
            let in_graphs = in_graphs(row.in_graphs);
            line(out, format_args!("\t{kernel}: {mark}{launches} launches{in_graphs}{failed}"));
        }
        more_kernels(more).into_iter().chain(graphs).for_each(|text| line(out, format_args!("\t{text}")));
    });
    out.push('\n');
}

/// Ioctls of the NVIDIA kernel module, by total time. Writes nothing if they are not watched.
pub(super) fn ioctls(out: &mut String, snapshot: &Snapshot) {
    let mut text = String::new();
    each(snapshot, |name, _, ops| {
        if ops.requests.is_empty() {
            return;
        }
        line(&mut text, format_args!("{name}"));
        let mut commands: Vec<_> = ops.requests.named().collect();
        commands.sort_by_key(|(.., totals)| std::cmp::Reverse(totals.total_ns));
        for (device, command, totals) in commands {
            line(&mut text, format_args!("\t{device} {command}: {}", ioctl_totals(totals)));
        }
        if ops.requests.other() != CommandTotals::default() {
            line(&mut text, format_args!("\tothers: {}", ioctl_totals(ops.requests.other())));
        }
    });
    if !text.is_empty() {
        out.push_str("per-process ioctls of the driver:\n");
        out.push_str(&text);
        out.push('\n');
    }
}

fn ioctl_totals(totals: CommandTotals) -> String {
    let mean = totals.total_ns.checked_div(totals.calls).unwrap_or(0);
    format!("{}{}, mean {}", count(totals.calls, "call", "calls"), failed(totals.failures), duration(mean))
}

pub(super) fn copies(out: &mut String, snapshot: &Snapshot, rates: &Rates) {
    out.push_str("per-process copies:\n");
    let mark = mark_of_classes(snapshot, &[Class::Memcpy, Class::Memset]);
    each(snapshot, |name, process, ops| {
        if ops.copies.is_empty() {
            return;
        }
        line(out, format_args!("{name}"));
        let is_fill = |copy: &&CopyTotals| copy.direction == CopyDirection::Fill;
        let (fills, copies): (Vec<_>, Vec<_>) = ops.copies.iter().partition(is_fill);
        line(
            out,
            format_args!("Traced {mark}{} cudaMemcpy calls{}", calls(&copies), failed(errors(&copies))),
        );
        for rows in by_direction(&ops.copies).filter(|rows| !is_fill(&&rows[0])) {
            let rate = process.and_then(|process| rates.copied(process, rows[0].direction));
            let rate = rate.filter(|_| rows[0].is_async).map(|rate| {
                format!(", {:.5} bytes/sec over the last {:.5} secs", rate.bytes_per_second, rate.seconds)
            });
            let mode = if rows[0].is_async { " async" } else { "" };
            let moved = moved(&rows.iter().collect::<Vec<_>>());
            let rate = rate.unwrap_or_default();
            line(out, format_args!("\t{}{mode} {mark}{moved}{rate}", rows[0].direction.as_str()));
            for row in rows.iter().filter(|row| row.host != HostMemory::Nothing) {
                line(out, format_args!("\t\t{} {mark}{}", row.host.as_str(), self::moved(&[row])));
            }
        }
        if !fills.is_empty() {
            let (calls, bytes) = (calls(&fills), bytes(&fills));
            line(
                out,
                format_args!("\tmemset {mark}{calls} calls, {mark}{bytes} Bytes{}", failed(errors(&fills))),
            );
        }
    });
    out.push('\n');
}

/// The effective bandwidth for synchronous copies, otherwise the number of calls and bytes.
fn moved(rows: &[&CopyTotals]) -> String {
    match effective(rows) {
        Some(e) => format!("{:.5} bytes/sec for {:.5} secs", e.bytes_per_second, e.seconds),
        None => format!("{} calls, {} Bytes", calls(rows), bytes(rows)),
    }
}

fn calls(rows: &[&CopyTotals]) -> u64 {
    rows.iter().fold(0, |sum, row| sum.saturating_add(row.copies))
}

fn errors(rows: &[&CopyTotals]) -> u64 {
    rows.iter().fold(0, |sum, row| sum.saturating_add(row.errors))
}

fn bytes(rows: &[&CopyTotals]) -> u64 {
    rows.iter().fold(0, |sum, row| sum.saturating_add(row.bytes))
}

pub(super) fn gaps(out: &mut String, snapshot: &Snapshot) {
    out.push_str("gaps of streams:\n");
    for process in &snapshot.processes {
        let gaps = &process.gpu_ops.gaps;
        if gaps.after_sync.gaps == 0 && gaps.after_launch.gaps == 0 {
            continue;
        }
        line(out, format_args!("{}", process_line(process)));
        let kinds = [(GapKind::AfterSync, &gaps.after_sync), (GapKind::AfterLaunch, &gaps.after_launch)];
        for (kind, totals) in kinds.into_iter().filter(|(_, totals)| totals.gaps > 0) {
            line(out, format_args!("\t{} {}: {}", totals.gaps, began_with(kind), lengths(totals)));
        }
        if let Some(longest) = gaps.longest.first() {
            let (length, kind) = (duration(longest.ns), began_with(longest.kind));
            line(
                out,
                format_args!("\tthe longest {length} {kind}, longest call meanwhile: {}", meanwhile(longest)),
            );
        }
    }
    out.push('\n');
}

fn lengths(totals: &GapTotals) -> String {
    let of = |per_cent| bound(percentile(&totals.lengths, per_cent), duration);
    format!("{} in all, p50 {}, p99 {}", duration(totals.total_ns), of(50), of(99))
}

/// Advice. Writes nothing, not even a heading, if there is none: the original display has no such section.
pub(super) fn advised(out: &mut String, snapshot: &Snapshot, rates: &Rates) {
    let mut text = String::new();
    for process in &snapshot.processes {
        let advice = advice::advice(&process.gpu_ops, rates.observed_ns(process));
        if !advice.is_empty() {
            line(&mut text, format_args!("{}", process_line(process)));
        }
        for advice in &advice {
            line(&mut text, format_args!("\t{}: {}: {}", advice.rule(), advice.what(), evidence(advice)));
        }
    }
    if !text.is_empty() {
        line(out, format_args!("advice:\n{text}"));
    }
}
