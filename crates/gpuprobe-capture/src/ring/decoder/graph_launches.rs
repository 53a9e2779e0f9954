//! Names the CUDA kernels of launched graphs.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::counters::{GraphKernelCounts, ProcessKey};
use gpuprobe_event::{Call, Effect, GraphLaunch};

use super::Decoder;
use crate::ring::graph_contents::NO_HANDLE;
use crate::wire::gp_exec_launches;

impl Decoder {
    /// Adds the CUDA kernels of a launched graph.
    pub(super) fn set_graph_contents(&mut self, call: &mut Call, key: ProcessKey) {
        if let Effect::GraphLaunch(GraphLaunch {
            kernels: Some(kernels), graph: Some(graph), contents, ..
        }) = &mut call.effect
        {
            let mut graphs = std::mem::take(&mut self.graphs);
            *contents = graphs.named(key, *graph, *kernels, |handle| self.graph_kernel(key, handle));
            self.graphs = graphs;
        }
    }

    /// How often graph launches ran each CUDA kernel. `rows` are the launches of each process.
    pub(crate) fn graph_kernels(
        &mut self,
        rows: HashMap<ProcessKey, Vec<(u64, gp_exec_launches)>>,
        is_last: bool,
    ) -> Vec<GraphKernelCounts> {
        let mut counts = Vec::new();
        for (process, rows) in rows {
            for (handle, runs) in self.graphs.runs(process, &rows, is_last) {
                let kernel = self.graph_kernel(process, handle);
                counts.push(GraphKernelCounts { process, handle, kernel, runs });
            }
        }
        counts
    }

    fn graph_kernel(&mut self, process: ProcessKey, handle: u64) -> Option<Arc<str>> {
        if handle == NO_HANDLE { None } else { self.kernel(process, handle) }
    }
}
