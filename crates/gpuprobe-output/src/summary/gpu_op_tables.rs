//! The sections about GPU operations: launches, copies and advice.

use gpuprobe_analysis::copies::effective;
use gpuprobe_analysis::{Advice, CudaKernelLaunches, GpuOps};
use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS};

use super::layout::{NameTable, SummaryOptions, heading, line, name};
use super::quality::{Quality, marked};
use crate::gpu_op_text::{evidence, graphs, more_kernels};
use crate::kernel_name::short_names;
use crate::sampled::time_mark;
use crate::units::{bytes, duration};

pub(super) fn launches(out: &mut String, ops: &GpuOps, options: &SummaryOptions, quality: Quality) {
    let graphs = graphs(&ops.graphs);
    if ops.kernels.is_empty() && graphs.is_empty() {
        return;
    }
    out.push('\n');
    if ops.kernels.is_empty() {
        out.push_str(&marked("CUDA kernel", quality));
        out.push('\n');
    }
    let (shown, more) = ops.kernels.split_at(ops.kernels.len().min(options.most()));
    if !shown.is_empty() {
        let titles = [
            &marked("CUDA kernel", quality),
            "launches",
            "in graphs",
            "failed",
            "threads",
            "grid",
            "block",
            "shared",
            "streams",
            "launch call",
        ];
        let mut table =
            NameTable::new(&titles, &[], &["streams", "shared", "threads", "block", "grid", "launch call"]);
        for (kernel, name) in shown.iter().zip(kernel_names(&ops.kernels, options)) {
            table.push([vec![name], cells(kernel)].concat());
        }
        table.write(out, options);
    }
    more_kernels(more).into_iter().chain(graphs).for_each(|text| line(out, format_args!("{text}")));
}

/// The names of all kernels: whether two differ must not depend on how many rows are shown.
fn kernel_names(kernels: &[CudaKernelLaunches], options: &SummaryOptions) -> Vec<String> {
    let names: Vec<_> = kernels.iter().map(|kernel| kernel.kernel.as_str()).collect();
    if options.full_names {
        return names.into_iter().map(name).collect();
    }
    short_names(&names).iter().map(|short| name(short)).collect()
}

fn cells(kernel: &CudaKernelLaunches) -> Vec<String> {
    // a call may launch on several devices at once
    let calls = kernel.totals.latency.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    let calls = if calls == 0 { kernel.totals.launches.saturating_add(kernel.totals.errors) } else { calls };
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let threads = kernel.totals.threads.checked_div(kernel.totals.launches).filter(|threads| *threads > 0);
    vec![
        or_nothing(
            (kernel.totals.launches > 0 || kernel.in_graphs == 0).then(|| kernel.totals.launches.to_string()),
        ),
        or_nothing((kernel.in_graphs > 0).then(|| kernel.in_graphs.to_string())),
        or_nothing((kernel.totals.errors > 0).then(|| kernel.totals.errors.to_string())),
        or_nothing(threads.map(|threads| threads.to_string())),
        or_nothing(kernel.totals.grid.map(range)),
        or_nothing(kernel.totals.block.map(range)),
        or_nothing((kernel.totals.shared_most > 0).then(|| bytes(kernel.totals.shared_most))),
        or_nothing((kernel.streams > 0).then(|| kernel.streams.to_string())),
        or_nothing(kernel.totals.total_ns.checked_div(calls).map(|ns| {
            let mark = time_mark(kernel.totals.unprobed_returns);
            format!("{mark}{}", duration(ns))
        })),
    ]
}

/// `64`, `3x2`, `1..64x64`.
fn range((least, most): ([u32; 3], [u32; 3])) -> String {
    let text = |[x, y, z]: [u32; 3]| match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}x{y}"),
        _ => format!("{x}x{y}x{z}"),
    };
    if least == most { text(least) } else { format!("{}..{}", text(least), text(most)) }
}

pub(super) fn copies(out: &mut String, ops: &GpuOps, options: &SummaryOptions, quality: Quality) {
    let is_fill = |copy: &&CopyTotals| copy.direction == CopyDirection::Fill;
    if ops.copies.is_empty() {
        return;
    }
    let (fills, copies): (Vec<_>, Vec<_>) = ops.copies.iter().partition(is_fill);
    let titles = [&marked("copies and memsets", quality), "calls", "bytes", "bandwidth", "sizes"];
    let mut table = NameTable::new(&titles, &["sizes"], &["sizes"]);
    copies.iter().chain(&fills).for_each(|copy| table.push(copy_cells(copy)));
    out.push('\n');
    table.write(out, options);
    let failed = copies.iter().fold(0, |sum: u64, copy| sum.saturating_add(copy.errors));
    if failed > 0 {
        line(out, format_args!("copies that failed: {failed}"));
    }
}

fn copy_cells(copy: &CopyTotals) -> Vec<String> {
    let what = if copy.direction == CopyDirection::Fill { "memset" } else { copy.direction.as_str() };
    let host = match copy.host {
        HostMemory::Nothing => String::new(),
        host => format!(", {}", host.as_str()),
    };
    // converting a float to an integer saturates
    let bandwidth = effective(&[copy]).map(|e| format!("{}/s", bytes(e.bytes_per_second as u64)));
    vec![
        format!("{what} {}{host}", copy.mode()),
        copy.copies.to_string(),
        bytes(copy.bytes),
        bandwidth.unwrap_or_else(|| "-".to_owned()),
        sizes(&copy.sizes),
    ]
}

/// The number of copies by size: `55 <4 KiB, 3 <1 MiB`.
fn sizes(sizes: &[u64; LATENCY_BUCKETS]) -> String {
    /// The first bucket after a class, and the name of the class.
    const CLASSES: [(usize, &str); 5] =
        [(12, "<4 KiB"), (16, "<64 KiB"), (20, "<1 MiB"), (24, "<16 MiB"), (LATENCY_BUCKETS, ">=16 MiB")];
    let mut from = 0;
    let mut classes = Vec::new();
    for (to, name) in CLASSES {
        let n = sizes[from..to].iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        if n > 0 {
            classes.push(format!("{n} {name}"));
        }
        from = to;
    }
    classes.join(", ")
}

pub(super) fn advised(out: &mut String, advice: &[Advice]) {
    if advice.is_empty() {
        return;
    }
    heading(out, "advice");
    for advice in advice {
        line(out, format_args!("{}: {}", advice.rule(), advice.what()));
        line(out, format_args!("  {}", evidence(advice)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_dimensions_of_one_are_omitted() {
        assert_eq!(range(([64, 1, 1], [64, 1, 1])), "64");
        assert_eq!(range(([3, 2, 1], [3, 2, 1])), "3x2");
        assert_eq!(range(([1, 1, 1], [8, 1, 4])), "1..8x1x4");
    }

    #[test]
    fn sizes_list_only_classes_with_copies() {
        let mut buckets = [0; LATENCY_BUCKETS];
        assert_eq!(sizes(&buckets), "");
        (buckets[0], buckets[11], buckets[12], buckets[31]) = (1, 2, 4, 8);
        assert_eq!(sizes(&buckets), "3 <4 KiB, 4 <64 KiB, 8 >=16 MiB");
        assert_eq!(sizes(&[u64::MAX; LATENCY_BUCKETS]).matches(", ").count(), 4);
    }
}
