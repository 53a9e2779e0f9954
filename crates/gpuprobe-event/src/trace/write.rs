//! Events to JSON lines. Written by hand into one buffer, because this is what every recorded call costs.

use std::io::{self, Write};

use serde::Serialize;

use super::{End, Meta, type_of};
use crate::event::{
    Call, CopyPart, Effect, EndedMemory, Event, LossEvent, Name, Outcome, ProcessEvent, Value,
};

/// Writes a trace to anything that takes bytes.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    phases: Phases,
    line: Vec<u8>,
    events: u64,
    calls: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace with its meta line.
    pub fn new(out: W, phases: Phases, meta: &Meta) -> io::Result<Self> {
        let mut line = Vec::with_capacity(1024);
        meta_line(meta, &mut line);
        let mut writer = Self { out, phases, line, events: 0, calls: 0 };
        writer.out.write_all(&writer.line)?;
        Ok(writer)
    }

    /// Writes one event.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        self.line.clear();
        event_line(event, self.phases, &mut self.line);
        self.events += 1;
        self.calls += u64::from(matches!(event, Event::Call(call) if call.outcome != Outcome::Begun));
        self.out.write_all(&self.line)
    }

    /// Where it is written to.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// Events written so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Hands everything written so far to the system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Ends the trace; the counts of events are filled in here.
    pub fn finish(mut self, end: &End) -> io::Result<W> {
        let end = End { events: self.events, calls: self.calls, ..end.clone() };
        self.line.clear();
        end_line(&end, &mut self.line);
        self.out.write_all(&self.line)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Appends the first line of a trace.
pub fn meta_line(meta: &Meta, out: &mut Vec<u8>) {
    tagged("meta", meta, out);
}

/// Appends its last line.
pub fn end_line(end: &End, out: &mut Vec<u8>) {
    tagged("end", end, out);
}

/// An object with `type` in front.
fn tagged(tag: &str, object: &impl Serialize, out: &mut Vec<u8>) {
    #[derive(Serialize)]
    struct Tagged<'a, T> {
        #[serde(rename = "type")]
        tag: &'a str,
        #[serde(flatten)]
        object: &'a T,
    }
    // writing into a Vec cannot fail, and both objects are made of numbers and text
    let written = serde_json::to_writer(&mut *out, &Tagged { tag, object });
    debug_assert!(written.is_ok());
    out.push(b'\n');
}

/// How the two ends of a call are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phases {
    /// In one line, when it has returned.
    #[default]
    Together,
    /// In a line each, as they happen.
    Apart,
}

/// Appends one event as a line, with its line feed.
pub fn event_line(event: &Event, phases: Phases, out: &mut Vec<u8>) {
    match event {
        Event::Call(call) => call_line(call, phases, out),
        Event::Process(process) => process_line(process, out),
        Event::Loss(loss) => loss_line(loss, out),
    }
    out.extend_from_slice(b"}\n");
}

fn call_line(call: &Call, phases: Phases, out: &mut Vec<u8>) {
    let (phase, ns) = match (call.outcome, phases) {
        (Outcome::Returned { .. }, Phases::Together) => ("X", call.start_ns),
        (Outcome::Returned { duration_ns, .. }, Phases::Apart) => ("E", call.start_ns + duration_ns),
        (Outcome::Unfinished | Outcome::Begun, _) => ("B", call.start_ns),
    };
    head(out, call.id, ns, type_of(call.class), &call.name, phase);
    who(out, call.tgid.0, call.tid.0, &call.process);
    if call.outcome == Outcome::Unfinished {
        out.extend_from_slice(b",\"unfinished\":true");
    }
    if let Some(ns) = call.duration_ns() {
        put(out, format_args!(",\"duration_us\":{}.{:03}", ns / 1000, ns % 1000));
    }
    put(out, format_args!(",\"api\":\"{}\"", call.api));
    if let Outcome::Returned { value, .. } = call.outcome {
        match call.status {
            Some(status) => put(out, format_args!(",\"ret\":{status}")),
            None => put(out, format_args!(",\"ret\":{value}")),
        }
    }
    if let Some(error) = &call.error {
        text_field(out, "error", error);
    }
    if let Some(args) = &call.args {
        out.extend_from_slice(b",\"args\":");
        object(out, args);
    }
    if let Some(parent) = call.parent {
        put(out, format_args!(",\"parent\":{parent}"));
    }
    effect_fields(out, &call.effect);
    if let Some(stack) = &call.stack {
        out.extend_from_slice(b",\"stack\":[");
        for (i, frame) in stack.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            string(out, frame);
        }
        out.push(b']');
    }
}

fn effect_fields(out: &mut Vec<u8>, effect: &Effect) {
    if let Some(size) = effect.size {
        put(out, format_args!(",\"size\":{size}"));
    }
    if let Some(freed) = effect.freed {
        put(out, format_args!(",\"freed\":{freed}"));
    }
    if !effect.ended.is_empty() {
        out.extend_from_slice(b",\"ended\":{");
        for (i, EndedMemory { kind, allocations, bytes }) in effect.ended.iter().enumerate() {
            out.extend_from_slice(if i > 0 { b"," } else { b"" });
            string(out, kind);
            put(out, format_args!(":[{allocations},{bytes}]"));
        }
        out.push(b'}');
    }
    if let Some(gpu) = effect.gpu {
        put(out, format_args!(",\"gpu\":{gpu}"));
    }
    if let Some(ptr) = effect.ptr {
        put(out, format_args!(",\"ptr\":\"{ptr:#x}\""));
    }
    if let Some(site) = effect.site {
        put(out, format_args!(",\"site\":{site}"));
    }
    if let Some(kind) = &effect.kind {
        text_field(out, "kind", kind);
    }
    copy_fields(out, effect);
    if effect.captured {
        out.extend_from_slice(b",\"captured\":true");
    }
    if let Some(kernels) = effect.kernels {
        put(out, format_args!(",\"kernels\":{kernels}"));
    }
    if let Some(stream) = effect.stream {
        put(out, format_args!(",\"stream\":\"{stream:#x}\""));
    }
    if let Some(kernel) = &effect.kernel {
        text_field(out, "kernel", kernel);
    }
    for (name, dim3) in [("grid", effect.grid), ("block", effect.block)] {
        if let Some([x, y, z]) = dim3 {
            put(out, format_args!(",\"{name}\":[{x},{y},{z}]"));
        }
    }
    if let Some(shared) = effect.shared {
        put(out, format_args!(",\"shared\":{shared}"));
    }
}

fn copy_fields(out: &mut Vec<u8>, effect: &Effect) {
    if let Some(host) = &effect.host {
        text_field(out, "host", host);
    }
    if let Some(is_async) = effect.is_async {
        put(out, format_args!(",\"async\":{is_async}"));
    }
    if effect.parts.is_empty() {
        return;
    }
    out.extend_from_slice(b",\"parts\":[");
    for (i, CopyPart { kind, host, copies, bytes }) in effect.parts.iter().enumerate() {
        put(out, format_args!("{}{{\"copies\":{copies},\"size\":{bytes}", if i > 0 { "," } else { "" }));
        for (name, text) in [("kind", kind), ("host", host)] {
            if let Some(text) = text {
                text_field(out, name, text);
            }
        }
        out.push(b'}');
    }
    out.push(b']');
}

fn process_line(process: &ProcessEvent, out: &mut Vec<u8>) {
    head(out, process.id, process.at_ns, "process", process.change.as_str(), "i");
    who(out, process.tgid.0, process.tid.0, &process.process);
    if let Some(parent) = process.parent {
        put(out, format_args!(",\"ppid\":{parent}"));
    }
    if let Some(pid) = process.ns_pid {
        put(out, format_args!(",\"ns_pid\":{pid}"));
    }
    if let Some(container) = &process.container {
        text_field(out, "container", container);
    }
    if let Some(status) = process.exit_status {
        put(out, format_args!(",\"exit_status\":{status}"));
    }
}

fn loss_line(loss: &LossEvent, out: &mut Vec<u8>) {
    head(out, 0, loss.at_ns, "loss", loss.cause.as_str(), "i");
    who(out, 0, 0, "");
    put(out, format_args!(",\"count\":{}", loss.count));
}

/// The fields that every line begins with.
fn head(out: &mut Vec<u8>, id: u64, ns: u64, kind: &str, name: &str, phase: &str) {
    let (seconds, fraction) = (ns / 1_000_000_000, ns % 1_000_000_000);
    put(out, format_args!("{{\"event_id\":{id},\"ts\":{seconds}.{fraction:09},\"type\":\"{kind}\""));
    text_field(out, "name", name);
    put(out, format_args!(",\"phase\":\"{phase}\""));
}

fn who(out: &mut Vec<u8>, pid: u32, tid: u32, process: &str) {
    put(out, format_args!(",\"pid\":{pid},\"tid\":{tid}"));
    text_field(out, "process", process);
}

fn object(out: &mut Vec<u8>, fields: &[(Name, Value)]) {
    out.push(b'{');
    for (i, (name, value)) in fields.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        string(out, name);
        out.push(b':');
        match value {
            Value::Uint(n) => put(out, format_args!("{n}")),
            Value::Int(n) => put(out, format_args!("{n}")),
            Value::Hex(n) => put(out, format_args!("\"{n:#x}\"")),
            Value::Name(name) => string(out, name),
            Value::Text(text) => string(out, text),
            Value::Dim3([x, y, z]) => put(out, format_args!("[{x},{y},{z}]")),
            Value::Struct(fields) => object(out, fields),
            Value::Unread => out.extend_from_slice(b"null"),
        }
    }
    out.push(b'}');
}

fn text_field(out: &mut Vec<u8>, name: &str, text: &str) {
    put(out, format_args!(",\"{name}\":"));
    string(out, text);
}

fn string(out: &mut Vec<u8>, text: &str) {
    // writing into a Vec cannot fail, and a str is always a JSON string
    let written = serde_json::to_writer(&mut *out, text);
    debug_assert!(written.is_ok());
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "writing into a Vec cannot fail");
}
