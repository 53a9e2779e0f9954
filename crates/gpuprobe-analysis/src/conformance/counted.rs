//! The figures of the tables of the BPF side.

use gpuprobe_event::counters::{CallCounts, GapKind};
use gpuprobe_event::decode::failure_name;
use gpuprobe_event::{FunctionId, MemorySummary, catalogue};

use super::Tables;
use super::figures::{
    ALLOCATED_BY_SITE, AllFigures, FREED_BY_SITE, copy_figures, function_label, gap_figures, graph_figures,
    launch_figures, memory_figures, stream_label,
};
use crate::gpu_ops::copies;
use crate::gpu_ops::gaps::Gaps;
use crate::gpu_ops::launches::{self, GraphLaunches};

pub(super) fn figures(tables: &Tables) -> AllFigures {
    let mut all = AllFigures::default();
    // launches that are counted by CUDA kernel are not in `tables.calls`
    tables.calls.iter().chain(&tables.gpu_ops.calls).for_each(|row| call_figures(&mut all, row));
    for row in &tables.failures {
        let Some((function, status)) = row.failure else { continue };
        let Some(function) = catalogue().get(function) else { continue };
        let error = failure_name(function, status);
        all.add("errors by name", format!("{} {error}", name_of(function.id)), row.count);
    }
    let mut memory = MemorySummary::default();
    // `has_exited` does not matter: live memory and memory freed by exit are compared as one sum
    tables.memory.iter().for_each(|row| memory.add_process(row, false));
    memory_figures(&mut all, &memory);
    site_figures(&mut all, tables);
    gpu_op_figures(&mut all, tables);
    all
}

fn name_of(id: FunctionId) -> String {
    catalogue()
        .get(id)
        .map_or_else(|| format!("function {}", id.0), |f| function_label(f.api.as_str(), f.name))
}

fn call_figures(all: &mut AllFigures, row: &CallCounts) {
    let is_kernel = catalogue().get(row.function).is_some_and(|f| f.api == gpuprobe_event::Api::Kernel);
    if is_kernel {
        return;
    }
    let name = name_of(row.function);
    all.add("calls", name.clone(), row.calls);
    all.add("errors", name.clone(), row.errors);
    all.add("bytes moved", name.clone(), row.bytes);
    all.add("time in calls", name.clone(), row.total_ns);
    all.add_buckets("latency", &name, &row.latency);
}

fn site_figures(all: &mut AllFigures, tables: &Tables) {
    for row in &tables.sites {
        let label = format!("process {} site {}", row.process.tgid.0, row.site.0);
        let live = row.live;
        let freed = row
            .allocations
            .saturating_sub(live.live_allocations)
            .saturating_sub(row.freed_with_context_allocations);
        let freed_bytes =
            row.allocated_bytes.saturating_sub(live.live_bytes).saturating_sub(row.freed_with_context_bytes);
        all.add(ALLOCATED_BY_SITE, format!("{label} allocations"), row.allocations);
        all.add(ALLOCATED_BY_SITE, format!("{label} bytes"), row.allocated_bytes);
        all.add(FREED_BY_SITE, format!("{label} allocations"), freed);
        all.add(FREED_BY_SITE, format!("{label} bytes"), freed_bytes);
    }
}

fn gpu_op_figures(all: &mut AllFigures, tables: &Tables) {
    let gpu_ops = &tables.gpu_ops;
    launch_figures(all, &launches::by_kernel(&gpu_ops.launches, &gpu_ops.graph_kernels));
    for row in &gpu_ops.launches {
        all.add("launches by stream", stream_label(row.process.tgid, row.stream), row.totals.launches);
    }
    let mut graphs = GraphLaunches::default();
    gpu_ops.graphs.iter().for_each(|row| graphs.add_row(row));
    graph_figures(all, &graphs);
    let mut copied: Vec<_> = gpu_ops.copies.iter().map(|row| row.totals.clone()).collect();
    copies::sum_up(&mut copied);
    copy_figures(all, &copied);
    let mut gaps = Gaps::default();
    let has_any = |row: &&gpuprobe_event::counters::StreamGaps| {
        GapKind::ALL.iter().zip(&row.gaps).any(|(_, counts)| counts.gaps > 0)
    };
    gpu_ops.gaps.iter().filter(has_any).for_each(|row| gaps.add_row(row));
    gap_figures(all, &gaps);
}
