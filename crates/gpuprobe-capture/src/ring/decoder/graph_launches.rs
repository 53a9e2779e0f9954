//! Names the CUDA kernels of launched graphs.

use std::collections::HashMap;

use gpuprobe_event::counters::{GraphKernelCounts, ProcessKey};
use gpuprobe_event::{Api, Call, Effect, GraphLaunch};

use super::Decoder;
use crate::wire::gp_exec_launches;

impl Decoder {
    /// Adds the CUDA kernels of a launched graph.
    pub(super) fn set_graph_contents(&mut self, call: &mut Call, key: ProcessKey) {
        if let Effect::GraphLaunch(GraphLaunch {
            kernels: Some(kernels), graph: Some(graph), contents, ..
        }) = &mut call.effect
        {
            let mut graphs = std::mem::take(&mut self.graphs);
            *contents = graphs.named(key, *graph, *kernels, |handle| self.kernel(key, Api::Driver, handle));
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
                let kernel = self.kernel(process, Api::Driver, handle);
                counts.push(GraphKernelCounts { process, handle, kernel, runs });
            }
        }
        counts
    }
}
