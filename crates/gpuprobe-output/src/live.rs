//! Calls as they happen, a line each: for `trace`, which prints them, and for whoever follows a recording.
//!
//! A line costs well under a microsecond: everything is appended to one string, and the catalogue is asked only where
//! a line needs it.

mod arguments;
mod line_parts;
mod pending;
mod phases;
mod result;

use gpuprobe_analysis::ProcessEnd;
use gpuprobe_event::{Call, Event, LossEvent, ProcessChange, ProcessEvent, XidEvent};

pub use pending::pending;

use crate::timestamp::{Precision, push_time_of_day};
use crate::units::{push_decimal, push_printable, push_signed};
use line_parts::{PLAIN, RED, indent, push_thread};
use result::Results;

/// How lines look.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveOptions {
    /// Each line begins with the local time.
    pub times: bool,
    /// Failures are red.
    pub color: bool,
    /// Calls made inside others are set to the right.
    pub nested: bool,
    /// The classic form: a line when a call begins and one when it ends.
    pub phases: bool,
    /// Starts and ends of processes are told.
    pub processes: bool,
    /// From UTC to local time.
    pub utc_offset_seconds: i32,
    /// The Unix time at which the recording began, in seconds.
    pub start_unix: f64,
}

/// Events to lines.
#[derive(Debug)]
pub struct Live {
    options: LiveOptions,
    /// The local time at which the recording began, in nanoseconds since 1970.
    start_ns: u64,
    results: Results,
}

impl Live {
    /// Lines of this look.
    pub fn new(options: LiveOptions) -> Self {
        let local = options.start_unix + f64::from(options.utc_offset_seconds);
        // a conversion to an integer saturates, and makes 0 of what is no number
        let (seconds, fraction) = (local.floor(), local - local.floor());
        let start_ns = (seconds as u64).saturating_mul(1_000_000_000).saturating_add((fraction * 1e9) as u64);
        Self { options, start_ns, results: Results::new(options.color) }
    }

    /// What stands above the first line; nothing where lines explain themselves.
    pub fn header(&self) -> String {
        if self.options.phases { phases::header(self.options.times) } else { String::new() }
    }

    /// Appends what an event has to say: whole lines, or nothing.
    pub fn event(&mut self, event: &Event, out: &mut String) {
        match event {
            Event::Call(call) if self.options.phases => self.phase(call, out),
            Event::Call(call) => self.call(call, out),
            Event::Process(process) if self.options.processes => self.process(process, out),
            Event::Process(_) => {}
            Event::Loss(loss) => self.loss(loss, out),
            Event::Xid(xid) => self.xid(xid, out),
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

    /// What a GPU reported, in the driver's words and in ours.
    fn xid(&self, xid: &XidEvent, out: &mut String) {
        self.time(out, xid.at_ns, Precision::Microseconds);
        let (begin, end) = if self.options.color { (RED, PLAIN) } else { ("", "") };
        out.push_str(begin);
        push_printable(out, &crate::xid::line(xid));
        out.push_str(end);
        out.push('\n');
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

/// How many calls a call is inside of: at least one where it has a parent, which is all that a trace file tells.
fn depth(call: &Call) -> u8 {
    call.depth.max(u8::from(call.parent.is_some()))
}

fn stack(out: &mut String, call: &Call) {
    for frame in call.stack.iter().flatten() {
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
        ProcessEnd::Unknown => out.push_str(" ended"),
    }
}

#[cfg(test)]
mod tests;
