//! Sampled functions, whose probes are attached in turns.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuprobe_event::FunctionId;

use super::Capture;
use crate::attach::uprobe::sampled_probes::Turn;
use crate::error::CaptureError;

impl Capture {
    /// The functions that may be sampled, in all libraries that are probed now.
    pub fn detachable(&self) -> BTreeSet<FunctionId> {
        let functions = self.attacher.uprobes.libraries().flat_map(|attached| &attached.detachable);
        functions.map(|function| function.planned.function).collect()
    }

    /// Samples these functions from now on: only their calls in turns are observed. `in_turns` are those that are called,
    /// and have probes only in turns. To be called between turns.
    pub fn set_sampled(
        &mut self,
        sampled: &BTreeSet<FunctionId>,
        in_turns: &BTreeSet<FunctionId>,
    ) -> Result<(), CaptureError> {
        self.attacher.uprobes.set_sampled(sampled, in_turns)
    }

    /// Attaches the probes of the sampled functions and begins a turn, in which each of their calls stands for `weight`
    /// calls. The turn ends by itself after this time. If some file cannot be probed, the functions in other files have
    /// their turn.
    pub fn begin_turn(&mut self, weight: u16, length: Duration) -> (Turn, Result<(), CaptureError>) {
        let (turn, result) = self.attacher.uprobes.begin_turn(weight, length);
        let since_start = |ns| self.clock.since_start(ns);
        (Turn { from_ns: since_start(turn.from_ns), until_ns: since_start(turn.until_ns) }, result)
    }

    /// How many calls that began in the last turn have not returned.
    pub fn open_in_turn(&self) -> Result<i64, CaptureError> {
        self.attacher.uprobes.open_in_turn()
    }

    /// Removes the probes of the sampled functions, without waiting for it. Calls that are open are lost.
    pub fn end_turn(&mut self) {
        self.attacher.uprobes.end_turn();
    }
}
