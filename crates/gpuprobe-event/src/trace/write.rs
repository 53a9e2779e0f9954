//! Events to JSON lines. Written by hand into one buffer, because this is what every recorded call costs.

use std::io::{self, Write};

use serde::Serialize;

use super::{End, Meta, type_of};
use crate::event::{Call, Effect, EndedMemory, Event, LossEvent, Name, Outcome, ProcessEvent, Value};

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

/// Appends the name of a field, and what is around it, in one piece.
macro_rules! key {
    ($out:expr, $name:literal) => {
        $out.extend_from_slice(concat!(",\"", $name, "\":").as_bytes())
    };
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
        key!(out, "unfinished");
        out.extend_from_slice(b"true");
    }
    if let Some(ns) = call.duration_ns() {
        key!(out, "duration_us");
        fixed::<1000>(out, ns);
    }
    key!(out, "api");
    word(out, call.api.as_str());
    if let Outcome::Returned { value, .. } = call.outcome {
        key!(out, "ret");
        match call.status {
            Some(status) => number(out, status),
            None => number(out, value),
        }
    }
    if let Some(error) = &call.error {
        key!(out, "error");
        name(out, error);
    }
    if let Some(args) = &call.args {
        key!(out, "args");
        object(out, args);
    }
    if let Some(parent) = call.parent {
        key!(out, "parent");
        number(out, parent);
    }
    effect_fields(out, &call.effect);
    if let Some(stack) = &call.stack {
        key!(out, "stack");
        list(out, stack, |out, frame| string(out, frame));
    }
}

fn effect_fields(out: &mut Vec<u8>, effect: &Effect) {
    if let Some(size) = effect.size {
        key!(out, "size");
        number(out, size);
    }
    if let Some(freed) = effect.freed {
        key!(out, "freed");
        number(out, freed);
    }
    if !effect.ended.is_empty() {
        key!(out, "ended");
        ended(out, &effect.ended);
    }
    if let Some(gpu) = effect.gpu {
        key!(out, "gpu");
        number(out, gpu);
    }
    if let Some(ptr) = effect.ptr {
        key!(out, "ptr");
        hex(out, ptr);
    }
    if let Some(site) = effect.site {
        key!(out, "site");
        number(out, site.0);
    }
    if let Some(kind) = &effect.kind {
        key!(out, "kind");
        name(out, kind);
    }
    if let Some(stream) = effect.stream {
        key!(out, "stream");
        hex(out, stream);
    }
    if let Some(kernel) = &effect.kernel {
        key!(out, "kernel");
        string(out, kernel);
    }
    if let Some(grid) = effect.grid {
        key!(out, "grid");
        list(out, &grid, |out, n| number(out, *n));
    }
    if let Some(block) = effect.block {
        key!(out, "block");
        list(out, &block, |out, n| number(out, *n));
    }
}

fn ended(out: &mut Vec<u8>, kinds: &[EndedMemory]) {
    out.push(b'{');
    for (i, EndedMemory { kind, allocations, bytes }) in kinds.iter().enumerate() {
        separate(out, i);
        name(out, kind);
        out.push(b':');
        list(out, &[*allocations, *bytes], |out, n| number(out, *n));
    }
    out.push(b'}');
}

fn process_line(process: &ProcessEvent, out: &mut Vec<u8>) {
    head(out, process.id, process.at_ns, "process", &Name::Borrowed(process.change.as_str()), "i");
    who(out, process.tgid.0, process.tid.0, &process.process);
    if let Some(parent) = process.parent {
        key!(out, "ppid");
        number(out, parent.0);
    }
    if let Some(pid) = process.ns_pid {
        key!(out, "ns_pid");
        number(out, pid.0);
    }
    if let Some(container) = &process.container {
        key!(out, "container");
        string(out, container);
    }
    if let Some(status) = process.exit_status {
        key!(out, "exit_status");
        number(out, status);
    }
}

fn loss_line(loss: &LossEvent, out: &mut Vec<u8>) {
    head(out, 0, loss.at_ns, "loss", &Name::Borrowed(loss.cause.as_str()), "i");
    who(out, 0, 0, "");
    key!(out, "count");
    number(out, loss.count);
}

/// The fields that every line begins with.
fn head(out: &mut Vec<u8>, id: u64, ns: u64, kind: &str, what: &Name, phase: &str) {
    out.extend_from_slice(b"{\"event_id\":");
    number(out, id);
    key!(out, "ts");
    fixed::<1_000_000_000>(out, ns);
    key!(out, "type");
    word(out, kind);
    key!(out, "name");
    name(out, what);
    key!(out, "phase");
    word(out, phase);
}

fn who(out: &mut Vec<u8>, pid: u32, tid: u32, process: &str) {
    key!(out, "pid");
    number(out, pid);
    key!(out, "tid");
    number(out, tid);
    key!(out, "process");
    string(out, process);
}

fn object(out: &mut Vec<u8>, fields: &[(Name, Value)]) {
    out.push(b'{');
    for (i, (field, value)) in fields.iter().enumerate() {
        separate(out, i);
        name(out, field);
        out.push(b':');
        match value {
            Value::Uint(n) => number(out, *n),
            Value::Int(n) => number(out, *n),
            Value::Hex(n) => hex(out, *n),
            Value::Name(value) => name(out, value),
            Value::Text(text) => string(out, text),
            Value::Dim3(dim3) => list(out, dim3, |out, n| number(out, *n)),
            Value::Struct(fields) => object(out, fields),
            Value::Unread => out.extend_from_slice(b"null"),
        }
    }
    out.push(b'}');
}

fn list<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (i, item) in items.iter().enumerate() {
        separate(out, i);
        write(out, item);
    }
    out.push(b']');
}

fn separate(out: &mut Vec<u8>, position: usize) {
    if position > 0 {
        out.push(b',');
    }
}

fn number(out: &mut Vec<u8>, n: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// A number of parts, as a decimal fraction with all its digits.
fn fixed<const PARTS: u64>(out: &mut Vec<u8>, n: u64) {
    number(out, n / PARTS);
    let at = out.len();
    // the digit in front keeps the zeros behind it
    number(out, PARTS + n % PARTS);
    out[at] = b'.';
}

fn hex(out: &mut Vec<u8>, n: u64) {
    let mut text = *b"\"0x0000000000000000\"";
    let digits = (u64::BITS - n.leading_zeros()).div_ceil(4).max(1) as usize;
    let (start, end) = (3, 3 + digits);
    for (i, place) in text[start..end].iter_mut().rev().enumerate() {
        *place = b"0123456789abcdef"[(n >> (4 * i)) as usize & 0xf];
    }
    text[end] = b'"';
    out.extend_from_slice(&text[..=end]);
}

/// Text in which nothing has to be escaped.
fn word(out: &mut Vec<u8>, text: &str) {
    debug_assert!(is_plain(text), "{text:?} needs escapes");
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// A name that is borrowed is one of this program's own, which have nothing to escape.
fn name(out: &mut Vec<u8>, name: &Name) {
    match name {
        Name::Borrowed(text) => word(out, text),
        Name::Owned(text) => string(out, text),
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    if is_plain(text) {
        return word(out, text);
    }
    // writing into a Vec cannot fail, and a str is always a JSON string
    let written = serde_json::to_writer(&mut *out, text);
    debug_assert!(written.is_ok());
}

fn is_plain(text: &str) -> bool {
    // not all(), which ends at the first: so many bytes can be looked at at once
    text.bytes().fold(true, |is, b| is & (b >= b' ') & (b != b'"') & (b != b'\\'))
}
