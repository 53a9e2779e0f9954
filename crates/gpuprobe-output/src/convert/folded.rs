//! Folded stacks: lines of `process;thread;outer call;inner call NUMBER`, where NUMBER is by default the microseconds
//! spent in the last call itself, without the calls inside it. If the trace has stacks, their frames come between the
//! thread and the call.

use std::collections::HashMap;
use std::io::{self, Write};

use gpuprobe_analysis::{Sample, Slice};
use gpuprobe_event::trace::End;
use gpuprobe_event::{
    AgentEvent, Call, Execution, LossEvent, OutOfMemoryEvent, ProcessEvent, RangeEvent, XidEvent,
};

use super::trace_writer::{TraceWriter, thread_name};
use super::weight::Weight;
use crate::units::{fitted, push_printable};

/// Bytes of distinct stacks. An ordinary trace has few; a crafted one may have many, and the rest goes into one line.
const MOST_STACKS: usize = 64 << 20;
/// Longer names lose their middle.
const LONGEST_NAME: usize = 500;
const OTHER: &str = "(other)";

pub(super) struct Folded<W> {
    out: W,
    weight: Weight,
    stacks: HashMap<String, u64>,
    stacks_bytes: usize,
    other: u64,
    /// The stack of the current call, and the open calls in it.
    stack: String,
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    /// The length of the stack up to the end of its name.
    length: usize,
    /// What is added to its stack when it is closed.
    own: u64,
    /// It or a call around it has a weight.
    is_weighed: bool,
}

impl<W: Write> Folded<W> {
    pub(super) fn new(weight: Weight, out: W) -> Self {
        Self {
            out,
            weight,
            stacks: HashMap::new(),
            stacks_bytes: 0,
            other: 0,
            stack: String::new(),
            open: Vec::new(),
        }
    }

    /// Closes calls until `depth` are open.
    fn close_to(&mut self, depth: usize) {
        while self.open.len() > depth
            && let Some(Open { length, own, .. }) = self.open.pop()
        {
            self.stack.truncate(length);
            self.add(own);
        }
        self.stack.truncate(self.open.last().map_or(0, |open| open.length));
    }

    /// Adds to the current stack.
    fn add(&mut self, weight: u64) {
        if weight == 0 {
            return;
        }
        if let Some(sum) = self.stacks.get_mut(&self.stack) {
            *sum = sum.saturating_add(weight);
        } else if self.stacks_bytes < MOST_STACKS {
            self.stacks_bytes += self.stack.len() + size_of::<(String, u64)>();
            self.stacks.insert(self.stack.clone(), weight);
        } else {
            self.other = self.other.saturating_add(weight);
        }
    }

    /// Begins a stack with the process, the thread, and the frames that the call was made from, if they are known.
    fn root(&mut self, call: &Call) {
        push_name(&mut self.stack, &call.process);
        push_name(&mut self.stack, &thread_name(call.tgid, call.tid));
        let frames = call.stack.as_deref().unwrap_or_default();
        frames.iter().rev().for_each(|frame| push_name(&mut self.stack, frame));
    }

    /// Adds a call that has its own frames: they contain the calls around it that made it.
    fn add_with_frames(&mut self, call: &Call, weight: u64) {
        let around = std::mem::take(&mut self.stack);
        self.root(call);
        push_name(&mut self.stack, &call.title());
        self.add(weight);
        self.stack = around;
    }
}

impl<W: Write> TraceWriter for Folded<W> {
    fn slices(&mut self, slices: &[Slice]) -> io::Result<()> {
        for slice in slices {
            self.close_to(slice.depth);
            let call = &slice.call;
            let is_inside = self.open.last().is_some_and(|around| around.is_weighed);
            let mut own = self.weight.of(slice);
            if self.weight.is_of_outermost() && is_inside {
                own = 0;
            }
            let is_weighed = is_inside || own > 0;
            match self.open.last_mut() {
                Some(around) if self.weight == Weight::Time => around.own = around.own.saturating_sub(own),
                Some(_) if self.weight.is_of_outermost() && own > 0 && call.stack.is_some() => {
                    self.add_with_frames(call, own);
                    own = 0;
                }
                Some(_) => {}
                None => self.root(call),
            }
            push_name(&mut self.stack, &call.title());
            self.open.push(Open { length: self.stack.len(), own, is_weighed });
        }
        self.close_to(0);
        Ok(())
    }

    fn process(&mut self, _: &ProcessEvent) -> io::Result<()> {
        Ok(())
    }

    fn loss(&mut self, _: &LossEvent) -> io::Result<()> {
        Ok(())
    }

    fn out_of_memory(&mut self, _: &OutOfMemoryEvent) -> io::Result<()> {
        Ok(())
    }

    fn xid(&mut self, _: &XidEvent) -> io::Result<()> {
        Ok(())
    }

    fn execution(&mut self, _: &Execution) -> io::Result<()> {
        Ok(())
    }

    fn range(&mut self, _: &RangeEvent) -> io::Result<()> {
        Ok(())
    }

    fn agent(&mut self, _: &AgentEvent) -> io::Result<()> {
        Ok(())
    }

    fn sample(&mut self, _: &Sample) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: Option<&End>) -> io::Result<()> {
        let mut stacks: Vec<_> = self.stacks.drain().collect();
        stacks.sort_unstable();
        if self.other > 0 {
            stacks.push((OTHER.to_owned(), self.other));
        }
        for (stack, sum) in stacks {
            writeln!(self.out, "{stack} {}", self.weight.shown(sum))?;
        }
        self.out.flush()
    }
}

/// Appends a name. A semicolon would split it in two and a line feed would end the line, so both are replaced.
fn push_name(stack: &mut String, name: &str) {
    if !stack.is_empty() {
        stack.push(';');
    }
    let name = if name.is_empty() { "(no name)" } else { name };
    for (i, part) in fitted(name, LONGEST_NAME).split(';').enumerate() {
        if i > 0 {
            stack.push(':');
        }
        push_printable(stack, part);
    }
}
