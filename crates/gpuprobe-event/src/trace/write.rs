//! Events to JSON lines. Written by hand into one buffer, because this is what every recorded call costs.

use std::io::{self, Write};

use serde::Serialize;

use super::fields::{Fields, call_fields, process_fields};
use super::{End, Meta, type_of};
use crate::event::{Call, Event, LossEvent, Outcome, ProcessEvent};

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
        Json(out).flag("unfinished", true);
    }
    if let Some(ns) = call.duration_ns() {
        put(out, format_args!(",\"duration_us\":{}.{:03}", ns / 1000, ns % 1000));
    }
    call_fields(call, &mut Json(out));
}

fn process_line(process: &ProcessEvent, out: &mut Vec<u8>) {
    head(out, process.id, process.at_ns, "process", process.change.as_str(), "i");
    who(out, process.tgid.0, process.tid.0, &process.process);
    process_fields(process, &mut Json(out));
}

fn loss_line(loss: &LossEvent, out: &mut Vec<u8>) {
    head(out, 0, loss.at_ns, "loss", loss.cause.as_str(), "i");
    who(out, 0, 0, "");
    Json(out).uint("count", loss.count);
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

fn text_field(out: &mut Vec<u8>, name: &str, text: &str) {
    Json(out).text(name, text);
}

/// Fields of a JSON object that was begun.
#[derive(Debug)]
pub struct Json<'a>(pub &'a mut Vec<u8>);

impl Json<'_> {
    fn key(&mut self, name: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        // a name of ours, as nearly all are, takes no look at what has to be escaped
        if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            self.0.push(b'"');
            self.0.extend_from_slice(name.as_bytes());
            self.0.push(b'"');
        } else {
            string(self.0, name);
        }
        self.0.push(b':');
    }

    fn list<T>(&mut self, name: &str, items: &[T], mut item: impl FnMut(&mut Vec<u8>, &T)) {
        self.key(name);
        self.0.push(b'[');
        for (i, one) in items.iter().enumerate() {
            if i > 0 {
                self.0.push(b',');
            }
            item(self.0, one);
        }
        self.0.push(b']');
    }
}

impl Fields for Json<'_> {
    fn uint(&mut self, name: &str, n: u64) {
        self.key(name);
        put(self.0, format_args!("{n}"));
    }

    fn int(&mut self, name: &str, n: i64) {
        self.key(name);
        put(self.0, format_args!("{n}"));
    }

    fn flag(&mut self, name: &str, is: bool) {
        self.key(name);
        put(self.0, format_args!("{is}"));
    }

    fn hex(&mut self, name: &str, n: u64) {
        self.key(name);
        put(self.0, format_args!("\"{n:#x}\""));
    }

    fn text(&mut self, name: &str, text: &str) {
        self.key(name);
        string(self.0, text);
    }

    fn uints(&mut self, name: &str, numbers: &[u64]) {
        self.list(name, numbers, |out, n| put(out, format_args!("{n}")));
    }

    fn texts(&mut self, name: &str, texts: &[String]) {
        self.list(name, texts, |out, text| string(out, text));
    }

    fn unread(&mut self, name: &str) {
        self.key(name);
        self.0.extend_from_slice(b"null");
    }

    fn open(&mut self, name: &str) {
        self.key(name);
        self.0.push(b'{');
    }

    fn close(&mut self) {
        self.0.push(b'}');
    }
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
