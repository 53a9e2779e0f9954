//! Calls as they happen, one line each: for `trace`, and for a recording that is printed while it is written.
//!
//! A line costs well under a microsecond: everything is appended to one string, and the catalogue is consulted only if
//! a line needs it.

mod agent_lines;
pub(crate) mod arguments;
mod line_parts;
mod pending;
mod phases;
mod result;

use gpuprobe_analysis::ProcessEnd;
use gpuprobe_event::{Call, Event, LossEvent, ProcessChange, ProcessEvent};

pub use pending::{EarlyCall, early_pending, pending};

use crate::out_of_memory;
use crate::timestamp::{Precision, push_time_of_day};
use crate::units::{push_decimal, push_printable, push_signed};
use line_parts::{PLAIN, RED, indent, push_thread, push_weight};
use result::Results;

/// The format of the lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveOptions {
    /// Begin each line with the local time.
    pub times: bool,
    /// Print failures and losses in red.
    pub color: bool,
    /// Indent calls made inside other calls.
    pub nested: bool,
    /// The classic form: a line when a call begins and one when it ends.
    pub phases: bool,
    /// Print starts and exits of processes.
    pub processes: bool,
    /// Offset of local time from UTC.
    pub utc_offset_seconds: i32,
    /// The Unix time at which the recording began, in seconds.
    pub start_unix: f64,
}

/// Turns events into lines.
#[derive(Debug)]
pub struct Live {
    options: LiveOptions,
    /// The local time at which the recording began, in nanoseconds since 1970.
    start_ns: u64,
    results: Results,
}

impl Live {
    /// Lines of this format.
    pub fn new(options: LiveOptions) -> Self {
        let local = options.start_unix + f64::from(options.utc_offset_seconds);
        // converting a float to an integer saturates, and NaN becomes 0
        let (seconds, fraction) = (local.floor(), local - local.floor());
        let start_ns = (seconds as u64).saturating_mul(1_000_000_000).saturating_add((fraction * 1e9) as u64);
        Self { options, start_ns, results: Results::new(options.color) }
    }

    /// The header above the first line; only the classic form has one.
    pub fn header(&self) -> String {
        if self.options.phases { phases::header(self.options.times) } else { String::new() }
    }

    /// Appends the lines of an event: whole lines, or nothing.
    pub fn event(&mut self, event: &Event, out: &mut String) {
        match event {
            Event::Call(call) if self.options.phases => self.phase(call, out),
            Event::Call(call) => self.call(call, out),
            Event::Process(process) if self.options.processes => self.process(process, out),
            Event::Process(_) => {}
            Event::Loss(loss) => self.loss(loss, out),
            Event::Xid(xid) => self.error(xid.at_ns, &[crate::xid::line(xid)], out),
            Event::OutOfMemory(event) => {
                let lines = std::iter::once(out_of_memory::line(event)).chain(out_of_memory::holders(event));
                self.error(event.at_ns, &lines.collect::<Vec<_>>(), out);
            }
            Event::Execution(execution) => {
                self.time(out, execution.start_ns, Precision::Microseconds);
                agent_lines::execution(out, execution);
            }
            Event::Range(range) => {
                self.time(out, range.start_ns, Precision::Microseconds);
                agent_lines::range(out, range);
            }
            Event::Agent(state) => {
                self.time(out, state.end_ns, Precision::Microseconds);
                agent_lines::agent(out, state);
            }
        }
    }

    fn call(&self, call: &Call, out: &mut String) {
        self.time(out, call.start_ns, Precision::Microseconds);
        push_thread(out, call);
        out.push(' ');
        if self.options.nested {
            indent(out, depth(call));
        }
        push_printable(out, &call.name);
        arguments::list(out, call);
        self.results.outcome(out, call);
        push_weight(out, call);
        out.push('\n');
        stack(out, call);
    }

    fn phase(&self, call: &Call, out: &mut String) {
        self.time(out, call.start_ns.saturating_add(call.duration_ns().unwrap_or(0)), Precision::Seconds);
        phases::line(out, call, &self.results);
        stack(out, call);
    }

    fn process(&self, process: &ProcessEvent, out: &mut String) {
        let precision = if self.options.phases { Precision::Seconds } else { Precision::Microseconds };
        self.time(out, process.at_ns, precision);
        push_printable(out, &process.process);
        out.push(' ');
        push_decimal(out, process.tgid.0.into());
        match process.change {
            ProcessChange::Start => out.push_str(" started"),
            ProcessChange::Exec => out.push_str(" runs a new program"),
            ProcessChange::Exit => end(out, process.exit_status),
        }
        if let (ProcessChange::Start, Some(container)) = (process.change, &process.container) {
            out.push_str(" in container ");
            push_printable(out, container);
        }
        out.push('\n');
    }

    /// An error that is no call: of a GPU, or of a framework. The lines after the first are details.
    fn error(&self, at_ns: u64, lines: &[String], out: &mut String) {
        self.time(out, at_ns, Precision::Microseconds);
        let (begin, end) = if self.options.color { (RED, PLAIN) } else { ("", "") };
        for (index, line) in lines.iter().enumerate() {
            out.push_str(if index == 0 { begin } else { "    " });
            push_printable(out, line);
            out.push_str(if index == 0 { end } else { "" });
            out.push('\n');
        }
    }

    fn loss(&self, loss: &LossEvent, out: &mut String) {
        let (begin, end) = if self.options.color { (RED, PLAIN) } else { ("", "") };
        out.push_str(begin);
        out.push_str("gpuprobe: lost ");
        push_decimal(out, loss.count);
        for word in [" ", loss.cause.as_str(), ": ", loss.cause.meaning(), end, "\n"] {
            out.push_str(word);
        }
    }

    fn time(&self, out: &mut String, since_start_ns: u64, precision: Precision) {
        if self.options.times {
            push_time_of_day(out, self.start_ns.saturating_add(since_start_ns), precision);
            out.push(' ');
        }
    }
}

/// The nesting depth of a call. A trace file has only the parent, not the depth: a call with a parent has depth 1 or
/// more.
fn depth(call: &Call) -> u8 {
    call.depth.max(u8::from(call.parent.is_some()))
}

fn stack(out: &mut String, call: &Call) {
    for frame in call.stack.as_deref().unwrap_or_default() {
        out.push_str("    at ");
        push_printable(out, frame);
        out.push('\n');
    }
}

fn end(out: &mut String, status: Option<i32>) {
    match ProcessEnd::from_shell(status) {
        ProcessEnd::Code(code) => {
            out.push_str(" exited (status ");
            push_signed(out, code.into());
            out.push(')');
        }
        ProcessEnd::Signal(signal) => {
            out.push_str(" killed by signal ");
            push_signed(out, signal.into());
        }
        ProcessEnd::Unknown => out.push_str(" exited"),
    }
}

#[cfg(test)]
mod tests;
