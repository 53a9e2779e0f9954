//! The sections about GPU operations: launches, copies, gaps of streams and advice. For a terminal of 100 columns, or
//! for a file with complete names.

use gpuprobe_analysis::buckets::percentile;
use gpuprobe_analysis::copies::effective;
use gpuprobe_analysis::{Advice, CudaKernelLaunches, GapTotals, Gaps, GpuOps};
use gpuprobe_event::counters::{CopyDirection, CopyTotals, GapKind, HostMemory, LATENCY_BUCKETS};

use super::incomplete::marked;
use super::layout::{Fit, heading, line};
use crate::gpu_op_text::{
    began_with, bound, evidence, graphs, kernel as kernel_name, meanwhile, more_kernels, stream,
};
use crate::table::{Align, room, rows};
use crate::units::{bytes, count, duration, fitted};

pub(super) const WIDTH: usize = 100;
/// Longer names are shortened in a file, too.
pub(super) const LONGEST_IN_FILE: usize = 400;
/// The smallest width of a name, however wide the numbers are.
pub(super) const LEAST_NAME: usize = 16;
/// The width of a name from which on bars are drawn before it.
const NAME_WITH_BARS: usize = 24;
const BAR: usize = 8;
/// CUDA kernels with a row of their own.
const MOST_KERNELS: usize = 25;

pub(super) fn launches(out: &mut String, ops: &GpuOps, fit: Fit, is_incomplete: bool) {
    let graphs = graphs(&ops.graphs);
    if ops.kernels.is_empty() && graphs.is_empty() {
        return;
    }
    heading(out, &marked("launches", is_incomplete));
    let (shown, more) = ops.kernels.split_at(ops.kernels.len().min(MOST_KERNELS));
    if !shown.is_empty() {
        kernels(out, shown, fit);
    }
    more_kernels(more).into_iter().chain(graphs).for_each(|text| line(out, format_args!("{text}")));
    if !shown.is_empty() {
        line(out, format_args!("(the time of a launch call is not the time of the CUDA kernel)"));
    }
}

fn kernels(out: &mut String, kernels: &[CudaKernelLaunches], fit: Fit) {
    use Align::{Left, Right};
    let titles = ["launches", "failed", "threads", "grid", "block", "shared", "streams", "launch call"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    table.extend(kernels.iter().map(cells));
    let mut align = vec![Right; titles.len()];
    // the column is omitted if no launch failed, as in most programs
    if kernels.iter().all(|kernel| kernel.totals.errors == 0) {
        align.remove(1);
        table.iter_mut().for_each(|row| drop(row.remove(1)));
    }
    let mut room = room(&table, WIDTH).max(LEAST_NAME);
    if room >= NAME_WITH_BARS + BAR + 2 {
        room -= BAR + 2;
        align.push(Left);
        push_bars(&mut table, &kernels.iter().map(|kernel| kernel.totals.launches).collect::<Vec<_>>());
    }
    let room = if fit == Fit::Terminal { room } else { LONGEST_IN_FILE };
    let names = kernels.iter().map(|kernel| kernel_name(&kernel.kernel, room));
    for (row, name) in table.iter_mut().zip(std::iter::once("kernel".to_owned()).chain(names)) {
        row.push(name);
    }
    align.push(Left);
    rows(out, "  ", &align, &table);
}

/// Adds a bar to each row except the title row, in proportion to its value.
fn push_bars(table: &mut [Vec<String>], values: &[u64]) {
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let bar = |value: &u64| {
        let length = (u128::from(*value) * BAR as u128).div_ceil(u128::from(most));
        "#".repeat(usize::try_from(length).unwrap_or(BAR))
    };
    let bars = std::iter::once(String::new()).chain(values.iter().map(bar));
    table.iter_mut().zip(bars).for_each(|(row, bar)| row.push(bar));
}

fn cells(kernel: &CudaKernelLaunches) -> Vec<String> {
    // a call may launch on several devices at once
    let calls = kernel.totals.latency.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    let calls = if calls == 0 { kernel.totals.launches.saturating_add(kernel.totals.errors) } else { calls };
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let threads = kernel.totals.threads.checked_div(kernel.totals.launches).filter(|threads| *threads > 0);
    vec![
        kernel.totals.launches.to_string(),
        kernel.totals.errors.to_string(),
        or_nothing(threads.map(|threads| threads.to_string())),
        or_nothing(kernel.totals.grid.map(range)),
        or_nothing(kernel.totals.block.map(range)),
        or_nothing((kernel.totals.shared_most > 0).then(|| bytes(kernel.totals.shared_most))),
        kernel.streams.to_string(),
        or_nothing(kernel.totals.total_ns.checked_div(calls).map(duration)),
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

pub(super) fn copies(out: &mut String, ops: &GpuOps, is_incomplete: bool) {
    use Align::{Left, Right};
    let is_fill = |copy: &&CopyTotals| copy.direction == CopyDirection::Fill;
    let (fills, copies): (Vec<_>, Vec<_>) = ops.copies.iter().partition(is_fill);
    if !copies.is_empty() {
        heading(out, &marked("copies", is_incomplete));
        let titles = ["kind", "mode", "host memory", "copies", "bandwidth", "bytes"];
        let mut table = vec![titles.map(str::to_owned).to_vec()];
        table.extend(copies.iter().map(|copy| copy_cells(copy)));
        push_bars(&mut table, &copies.iter().map(|copy| copy.bytes).collect::<Vec<_>>());
        let room = room(&table, WIDTH).max(LEAST_NAME);
        let sizes = copies.iter().map(|copy| fitted(&sizes(&copy.sizes), room).into_owned());
        for (row, sizes) in table.iter_mut().zip(std::iter::once("sizes".to_owned()).chain(sizes)) {
            row.push(sizes);
        }
        rows(out, "  ", &[Left, Left, Left, Right, Right, Right, Left, Left], &table);
        let failed = copies.iter().fold(0, |sum: u64, copy| sum.saturating_add(copy.errors));
        if failed > 0 {
            line(out, format_args!("copies that failed: {failed}"));
        }
        if copies.iter().any(|copy| effective(&[copy]).is_some()) {
            line(
                out,
                format_args!("(bandwidth as the caller saw it, including everything the call waited for)"),
            );
        }
    }
    if !fills.is_empty() {
        heading(out, &marked("memsets", is_incomplete));
        let row = |fill: &&CopyTotals| {
            vec![fill.mode().to_owned(), count(fill.copies, "call", "calls"), bytes(fill.bytes)]
        };
        let table: Vec<_> = fills.iter().map(row).collect();
        rows(out, "  ", &[Left, Right, Right], &table);
    }
}

fn copy_cells(copy: &CopyTotals) -> Vec<String> {
    let host = if copy.host == HostMemory::Nothing { "-" } else { copy.host.as_str() };
    // converting a float to an integer saturates
    let bandwidth = effective(&[copy]).map(|e| format!("{}/s", bytes(e.bytes_per_second as u64)));
    vec![
        copy.direction.as_str().to_owned(),
        copy.mode().to_owned(),
        host.to_owned(),
        copy.copies.to_string(),
        bandwidth.unwrap_or_else(|| "-".to_owned()),
        bytes(copy.bytes),
    ]
}

/// The number of copies by size: `55 <4K, 3 <1M`.
fn sizes(sizes: &[u64; LATENCY_BUCKETS]) -> String {
    /// The first bucket after a class, and the name of the class.
    const CLASSES: [(usize, &str); 5] =
        [(12, "<4K"), (16, "<64K"), (20, "<1M"), (24, "<16M"), (LATENCY_BUCKETS, ">=16M")];
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

pub(super) fn gaps(out: &mut String, gaps: &Gaps, is_incomplete: bool) {
    use Align::{Left, Right};
    let kinds = [(GapKind::AfterSync, &gaps.after_sync), (GapKind::AfterLaunch, &gaps.after_launch)];
    let kinds: Vec<_> = kinds.into_iter().filter(|(_, totals)| totals.gaps > 0).collect();
    if kinds.is_empty() {
        return;
    }
    let streams = count(gaps.streams, "stream", "streams");
    let text = format!("idle gaps of {streams}, as the host saw them: nothing was submitted to a stream");
    heading(out, &marked(&text, is_incomplete));
    let titles = ["", "gaps", "total", "p50", "p99"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    table.extend(kinds.into_iter().map(|(kind, totals)| gap_cells(kind, totals)));
    rows(out, "  ", &[Left, Right, Right, Right, Right], &table);
    if gaps.longest.is_empty() {
        return;
    }
    line(out, format_args!("the longest, and the longest CUDA call of the host during each"));
    let row = |gap: &gpuprobe_analysis::Gap| {
        let (began, stream) = (began_with(gap.kind).to_owned(), stream(gap.stream).into_owned());
        vec![duration(gap.ns), began, stream, meanwhile(gap).to_owned()]
    };
    let longest: Vec<_> = gaps.longest.iter().map(row).collect();
    rows(out, "    ", &[Right, Left, Left, Left], &longest);
}

fn gap_cells(kind: GapKind, totals: &GapTotals) -> Vec<String> {
    let of = |per_cent| bound(percentile(&totals.lengths, per_cent), duration);
    let (gaps, total) = (totals.gaps.to_string(), duration(totals.total_ns));
    vec![began_with(kind).to_owned(), gaps, total, of(50), of(99)]
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
    fn a_bar_is_as_long_as_its_share_and_never_empty_for_a_value_above_zero() {
        let mut table = vec![Vec::new(); 5];
        push_bars(&mut table, &[u64::MAX, u64::MAX / 2, 1, 0]);
        assert_eq!(table.concat(), ["", "########", "####", "#", ""]);
    }

    #[test]
    fn sizes_list_only_classes_with_copies() {
        let mut buckets = [0; LATENCY_BUCKETS];
        assert_eq!(sizes(&buckets), "");
        (buckets[0], buckets[11], buckets[12], buckets[31]) = (1, 2, 4, 8);
        assert_eq!(sizes(&buckets), "3 <4K, 4 <64K, 8 >=16M");
        assert_eq!(sizes(&[u64::MAX; LATENCY_BUCKETS]).matches(", ").count(), 4);
    }
}
