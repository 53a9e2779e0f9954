//! The fields of a line after its head, as a file has them: what a graph consists of only with its first launch, and a
//! stack only with the first call from its call site.

use std::collections::HashMap;
use std::sync::Arc;

use super::agent_fields::{agent_fields, execution_fields, range_fields};
use super::fields::{
    Fields, WrittenStacks, call_fields, graph_fields, out_of_memory_fields, process_fields, stack_field,
    xid_fields,
};
use crate::effect::{Effect, GraphContents, GraphLaunch};
use crate::event::{Call, Event};
use crate::ids::Tgid;

/// Writes the fields of the events of one file.
#[derive(Debug, Default)]
pub struct LineFields {
    graphs: WrittenGraphs,
    stacks: WrittenStacks,
}

impl LineFields {
    /// The fields of an event after those of its [`Head`](super::Head).
    pub fn write(&mut self, event: &Event, to: &mut impl Fields) {
        match event {
            Event::Call(call) => {
                call_fields(call, to);
                if self.stacks.is_new(call) {
                    stack_field(call, to);
                }
                if let Some(contents) = self.graphs.new_contents(call) {
                    graph_fields(contents, to);
                }
            }
            Event::Process(process) => process_fields(process, to),
            Event::Loss(loss) => to.uint("count", loss.count),
            Event::Xid(xid) => xid_fields(xid, to),
            Event::OutOfMemory(event) => out_of_memory_fields(event, to),
            Event::Execution(execution) => execution_fields(execution, to),
            Event::Range(range) => range_fields(range, to),
            Event::Agent(state) => agent_fields(state, to),
        }
    }
}

/// The contents of graphs that a file has.
#[derive(Debug, Default)]
struct WrittenGraphs(HashMap<(Tgid, u64), Arc<GraphContents>>);

impl WrittenGraphs {
    /// Beyond so many graphs, their contents are written again.
    const MOST: usize = 1 << 16;

    /// The contents of a graph that the file does not have yet.
    fn new_contents<'a>(&mut self, call: &'a Call) -> Option<&'a GraphContents> {
        let Effect::GraphLaunch(GraphLaunch { graph: Some(graph), contents: Some(contents), .. }) =
            &call.effect
        else {
            return None;
        };
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        let before = self.0.insert((call.tgid, *graph), Arc::clone(contents));
        // a later launch may know more names
        let is_new = before.is_none_or(|before| !Arc::ptr_eq(&before, contents));
        is_new.then_some(contents)
    }
}
