//! Launches of CUDA kernels and graphs. The time of a launch call is not GPU time and is never reported as such.

use std::collections::{HashMap, HashSet};

use gpuprobe_event::GraphLaunch;
use gpuprobe_event::counters::{GraphCounts, GraphKernelCounts, LaunchCounts, LaunchTotals, ProcessKey};
use serde::Serialize;

/// The name under which CUDA kernels without a known name are summed.
pub const UNKNOWN_KERNEL: &str = "unknown";
/// The name under which CUDA kernels without a row of their own are summed.
pub const OTHER_KERNELS: &str = "other";

/// A launch shorter than this (33 us) did not wait for a full queue, and a gap shorter than this is the program's time
/// from one launch to the next.
pub(crate) const SHORT_LAUNCH_LOG2: usize = 15;

/// Launches of one CUDA kernel by one process, on all its streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CudaKernelLaunches {
    pub kernel: String,
    /// The number of streams; for several kernels, the sum.
    pub streams: u64,
    /// How often launches of graphs ran it: not observed, but derived from how the graphs were made.
    pub in_graphs: u64,
    /// Counts, sizes, and the time of the calls.
    #[serde(flatten)]
    pub totals: LaunchTotals,
}

impl CudaKernelLaunches {
    /// Launches, and runs by launches of graphs.
    pub fn runs(&self) -> u64 {
        self.totals.launches.saturating_add(self.in_graphs)
    }

    /// Adds launches of the same CUDA kernel, or of others that share the row.
    pub(crate) fn add(&mut self, more: &Self) {
        self.streams += more.streams;
        self.in_graphs = self.in_graphs.saturating_add(more.in_graphs);
        self.totals.add(&more.totals);
    }
}

/// Sums rows by name of the CUDA kernel, most launches first. Handles with the same name, or without a name, are one
/// kernel.
pub(crate) fn by_kernel<'a>(
    rows: impl IntoIterator<Item = &'a LaunchCounts>,
    in_graphs: impl IntoIterator<Item = &'a GraphKernelCounts>,
) -> Vec<CudaKernelLaunches> {
    let mut kernels: HashMap<&str, LaunchTotals> = HashMap::new();
    let mut streams: HashMap<&str, HashSet<(ProcessKey, u64)>> = HashMap::new();
    for row in rows {
        let name = row.kernel.as_deref().unwrap_or(UNKNOWN_KERNEL);
        kernels.entry(name).or_default().add(&row.totals);
        streams.entry(name).or_default().insert((row.process, row.stream));
    }
    let mut runs: HashMap<&str, u64> = HashMap::new();
    for row in in_graphs {
        let name = row.kernel.as_deref().unwrap_or(UNKNOWN_KERNEL);
        kernels.entry(name).or_default();
        let sum = runs.entry(name).or_default();
        *sum = sum.saturating_add(row.runs);
    }
    let kernel = |(name, totals): (&str, LaunchTotals)| CudaKernelLaunches {
        kernel: name.to_owned(),
        streams: streams.get(name).map_or(0, HashSet::len) as u64,
        in_graphs: runs.get(name).copied().unwrap_or(0),
        totals,
    };
    let mut kernels: Vec<_> = kernels.into_iter().map(kernel).collect();
    sort(&mut kernels);
    kernels
}

fn sort(kernels: &mut [CudaKernelLaunches]) {
    kernels.sort_by(|a, b| b.runs().cmp(&a.runs()).then_with(|| a.kernel.cmp(&b.kernel)));
}

/// Sums the rows of each CUDA kernel; most launches first.
pub(crate) fn sum_up(kernels: &mut Vec<CudaKernelLaunches>) {
    kernels.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    kernels.dedup_by(|more, sum| {
        let same = more.kernel == sum.kernel;
        if same {
            sum.add(more);
        }
        same
    });
    sort(kernels);
}

/// The `most` CUDA kernels with the most launches, and one row that sums all others.
pub fn top(kernels: &[CudaKernelLaunches], most: usize) -> Vec<CudaKernelLaunches> {
    let (named, others) = kernels.split_at(kernels.len().min(most));
    let mut top = named.to_vec();
    if !others.is_empty() {
        let mut other =
            CudaKernelLaunches { kernel: OTHER_KERNELS.to_owned(), ..CudaKernelLaunches::default() };
        others.iter().for_each(|more| other.add(more));
        top.push(other);
        // a kernel may itself have this name
        sum_up(&mut top);
    }
    top
}

/// Graph launches of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GraphLaunches {
    /// Launches that succeeded.
    pub launches: u64,
    /// Launches that failed.
    pub errors: u64,
    /// CUDA kernels in the launched graphs. They are not observed but derived from how the graphs were built.
    pub derived: u64,
    /// Launches of graphs whose construction was not observed, or not completely.
    pub unknown: u64,
    /// CUDA kernels that were captured into a graph instead of being run.
    pub captured: u64,
    /// CUDA kernels of disabled nodes in the launched graphs. They did not run.
    pub disabled: u64,
    /// Conditional nodes in the launched graphs. Whether their CUDA kernels ran is not known.
    pub conditional: u64,
}

impl GraphLaunches {
    /// Counts the launch of a graph that stands for so many.
    pub(crate) fn launch(&mut self, launch: &GraphLaunch, weight: u64) {
        let is_unknown = launch.kernels.is_none() || launch.incomplete;
        self.add(&Self {
            launches: weight,
            derived: launch.kernels.unwrap_or(0).saturating_mul(weight),
            unknown: if is_unknown { weight } else { 0 },
            disabled: launch.disabled.saturating_mul(weight),
            conditional: launch.conditional.saturating_mul(weight),
            ..Self::default()
        });
    }

    pub(crate) fn capture(&mut self, kernels: u64) {
        self.captured = self.captured.saturating_add(kernels);
    }

    pub(crate) fn add_row(&mut self, row: &GraphCounts) {
        let &GraphCounts { process: _, launches, errors, derived, unknown, captured, disabled, conditional } =
            row;
        self.add(&Self { launches, errors, derived, unknown, captured, disabled, conditional });
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.launches += more.launches;
        self.errors += more.errors;
        self.derived = self.derived.saturating_add(more.derived);
        self.unknown += more.unknown;
        self.captured = self.captured.saturating_add(more.captured);
        self.disabled = self.disabled.saturating_add(more.disabled);
        self.conditional = self.conditional.saturating_add(more.conditional);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, launches: u64, grid: u32) -> CudaKernelLaunches {
        let grid = Some(([grid, 1, 1], [grid, 1, 1]));
        let totals = LaunchTotals { launches, grid, ..LaunchTotals::default() };
        CudaKernelLaunches { kernel: name.to_owned(), streams: 1, in_graphs: 0, totals }
    }

    #[test]
    fn rows_of_one_kernel_are_summed_and_the_most_launched_come_first() {
        let mut kernels = vec![kernel("b", 1, 8), kernel("a", 2, 1), kernel("b", 4, 2), kernel("c", 2, 1)];
        sum_up(&mut kernels);
        let got: Vec<_> = kernels.iter().map(|k| (k.kernel.as_str(), k.totals.launches, k.streams)).collect();
        assert_eq!(got, [("b", 5, 2), ("a", 2, 1), ("c", 2, 1)]);
        assert_eq!(kernels[0].totals.grid, Some(([2, 1, 1], [8, 1, 1])));
    }

    #[test]
    fn a_stream_counts_once_for_a_kernel_with_several_handles() {
        let process = ProcessKey { tgid: gpuprobe_event::Tgid(1), instance: 1 };
        let row = |handle, stream| LaunchCounts {
            process,
            handle,
            kernel: None,
            stream,
            totals: LaunchTotals { launches: 1, ..LaunchTotals::default() },
        };
        let in_graph = |runs| GraphKernelCounts { process, handle: runs, kernel: Some("add".into()), runs };
        let kernels = by_kernel(&[row(1, 7), row(2, 7), row(1, 8)], &[in_graph(4), in_graph(5)]);
        let shown: Vec<_> =
            kernels.iter().map(|k| (k.kernel.as_str(), k.streams, k.totals.launches, k.in_graphs)).collect();
        assert_eq!(shown, [("add", 0, 0, 9), ("unknown", 2, 3, 0)]);
    }

    #[test]
    fn kernels_below_the_top_are_summed_in_one_row() {
        let mut kernels: Vec<_> = (0..30).map(|i| kernel(&format!("k{i:02}"), 100 - i, 1)).collect();
        kernels.push(kernel("other", 1, 1));
        let top = top(&kernels, 20);
        let all = |kernels: &[CudaKernelLaunches]| kernels.iter().map(|k| k.totals.launches).sum::<u64>();
        assert_eq!((top.len(), all(&top)), (21, all(&kernels)));
        assert_eq!(top[0].kernel, "other", "the sum of eleven kernels is the largest");
        assert_eq!(super::top(&kernels[..20], 20).len(), 20);
    }
}
