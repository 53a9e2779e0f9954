//! Folded stacks: lines of `process;thread;outer call;inner call TIME`, where TIME is the microseconds spent in the
//! last call itself, without the calls inside it. If the trace has stacks, their frames come between the thread and the
//! call.

use std::collections::HashMap;
use std::io::{self, Write};

use gpuprobe_analysis::{Sample, Slice};
use gpuprobe_event::trace::End;
use gpuprobe_event::{Call, LossEvent, OutOfMemoryEvent, ProcessEvent, SiteId, XidEvent};

use super::trace_writer::{TraceWriter, thread_name};
use crate::units::{fitted, push_printable};

/// Bytes of distinct stacks. An ordinary trace has few; a crafted one may have many, and the rest goes into one line.
const MOST_STACKS: usize = 64 << 20;
/// Bytes of frames that are remembered for other calls from the same call site.
const MOST_FRAMES: usize = 16 << 20;
/// Longer names lose their middle.
const LONGEST_NAME: usize = 500;
const OTHER: &str = "(other)";

pub(super) struct Folded<W> {
    out: W,
    stacks: HashMap<String, u64>,
    stacks_bytes: usize,
    other_ns: u64,
    /// Only the first call from an allocation call site carries its frames.
    frames: HashMap<SiteId, String>,
    frames_bytes: usize,
    /// The stack of the current call, and the open calls in it.
    stack: String,
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    /// The length of the stack up to the end of its name.
    length: usize,
    self_ns: u64,
}

impl<W: Write> Folded<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            stacks: HashMap::new(),
            stacks_bytes: 0,
            other_ns: 0,
            frames: HashMap::new(),
            frames_bytes: 0,
            stack: String::new(),
            open: Vec::new(),
        }
    }

    /// Closes calls until `depth` are open.
    fn close_to(&mut self, depth: usize) {
        while self.open.len() > depth
            && let Some(Open { length, self_ns }) = self.open.pop()
        {
            self.stack.truncate(length);
            self.add(self_ns);
        }
        self.stack.truncate(self.open.last().map_or(0, |open| open.length));
    }

    /// Adds time to the current stack.
    fn add(&mut self, ns: u64) {
        if ns == 0 {
            return;
        }
        if let Some(sum) = self.stacks.get_mut(&self.stack) {
            *sum = sum.saturating_add(ns);
        } else if self.stacks_bytes < MOST_STACKS {
            self.stacks_bytes += self.stack.len() + size_of::<(String, u64)>();
            self.stacks.insert(self.stack.clone(), ns);
        } else {
            self.other_ns = self.other_ns.saturating_add(ns);
        }
    }

    /// Begins a stack with the process, the thread, and the frames that the call was made from, if they are known.
    fn root(&mut self, call: &Call) {
        push_name(&mut self.stack, &call.process);
        push_name(&mut self.stack, &thread_name(call.tgid, call.tid));
        let site = call.effect.allocation().and_then(|allocation| allocation.site);
        if let Some(frames) = &call.stack {
            let from = self.stack.len();
            frames.iter().rev().for_each(|frame| push_name(&mut self.stack, frame));
            if let Some(site) = site
                && self.frames_bytes < MOST_FRAMES
            {
                let frames = self.stack[from..].to_owned();
                self.frames_bytes += frames.len() + size_of::<(SiteId, String)>();
                self.frames.insert(site, frames);
            }
        } else if let Some(frames) = site.and_then(|site| self.frames.get(&site)) {
            self.stack.push_str(frames);
        }
    }
}

impl<W: Write> TraceWriter for Folded<W> {
    fn slices(&mut self, slices: &[Slice]) -> io::Result<()> {
        for slice in slices {
            self.close_to(slice.depth);
            let self_ns = slice.end_ns - slice.start_ns;
            match self.open.last_mut() {
                Some(around) => around.self_ns = around.self_ns.saturating_sub(self_ns),
                None => self.root(&slice.call),
            }
            push_name(&mut self.stack, &slice.call.title());
            self.open.push(Open { length: self.stack.len(), self_ns });
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

    fn sample(&mut self, _: &Sample) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: Option<&End>) -> io::Result<()> {
        let mut stacks: Vec<_> = self.stacks.drain().collect();
        stacks.sort_unstable();
        if self.other_ns > 0 {
            stacks.push((OTHER.to_owned(), self.other_ns));
        }
        for (stack, ns) in stacks {
            // a stack that took any time is shown with 1 us at least
            writeln!(self.out, "{stack} {}", (ns.saturating_add(500) / 1000).max(1))?;
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
