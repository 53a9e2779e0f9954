//! Writes events as JSON lines. Events are written by hand into one buffer and not by serde_json, because this is the
//! cost of every recorded call.

use std::io::{self, Write};

use serde::Serialize;

use super::fields::{Fields, Key};
use super::head::{Head, Phases};
use super::line_fields::LineFields;
use super::{End, Meta};
use crate::cut::cut;
use crate::event::{Event, Name, Outcome};

/// Writes a trace to any writer.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    lines: Lines,
    line: Vec<u8>,
    events: u64,
    calls: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace with its meta line.
    pub fn new(out: W, phases: Phases, meta: &Meta) -> io::Result<Self> {
        let mut line = Vec::with_capacity(1024);
        meta_line(meta, &mut line);
        let mut writer = Self { out, lines: Lines::new(phases), line, events: 0, calls: 0 };
        writer.out.write_all(&writer.line)?;
        Ok(writer)
    }

    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        self.event_if(event, |_, _| Ok(true)).map(|_| ())
    }

    /// Writes one event if `may_write` accepts the length of its line; returns whether it was written.
    pub fn event_if(
        &mut self,
        event: &Event,
        may_write: impl FnOnce(&mut W, usize) -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.line.clear();
        self.lines.event(event, &mut self.line);
        if !may_write(&mut self.out, self.line.len())? {
            self.lines.forget();
            return Ok(false);
        }
        self.out.write_all(&self.line)?;
        self.events += 1;
        self.calls += u64::from(matches!(event, Event::Call(call) if call.outcome != Outcome::Begun));
        Ok(true)
    }

    /// The writer.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// The writer, mutable.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Returns the writer without writing an end line.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Events written so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Flushes the writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes the end line, with the counts of events, and flushes.
    pub fn finish(mut self, end: &End) -> io::Result<W> {
        let end = End { events: self.events, calls: self.calls, ..end.clone() };
        self.line.clear();
        end_line(&end, &mut self.line);
        self.out.write_all(&self.line)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Appends the meta line, with as much of the command as fits into a line that readers accept.
pub fn meta_line(meta: &Meta, out: &mut Vec<u8>) {
    match cut_command(&meta.command) {
        None => tagged("meta", meta, out),
        Some(command) => {
            let command_bytes = Some(meta.command.iter().map(|word| word.len() as u64).sum());
            tagged("meta", &Meta { command, command_bytes, ..meta.clone() }, out);
        }
    }
}

/// The beginning of a command that is too long.
fn cut_command(words: &[String]) -> Option<Vec<String>> {
    const MOST: usize = 16 << 10;
    // also for empty words: there may be very many
    const AROUND_WORD: usize = r#""","#.len();
    if words.iter().map(|word| word.len() + AROUND_WORD).sum::<usize>() <= MOST {
        return None;
    }
    let mut room = MOST;
    let mut kept = Vec::new();
    for word in words {
        let word = cut(word, room.saturating_sub(AROUND_WORD));
        let Some(left) = room.checked_sub(word.len() + AROUND_WORD) else { break };
        room = left;
        kept.push(word.into_owned());
    }
    Some(kept)
}

/// Appends the end line.
pub fn end_line(end: &End, out: &mut Vec<u8>) {
    tagged("end", end, out);
}

/// Writes an object with `type` as its first field.
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

/// Formats the events of one file as lines.
#[derive(Debug, Default)]
pub struct Lines {
    phases: Phases,
    fields: LineFields,
}

impl Lines {
    pub fn new(phases: Phases) -> Self {
        Self { phases, ..Self::default() }
    }

    /// Appends one event as a line, with its line feed.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        head(out, &Head::of(event, self.phases));
        self.fields.write(event, &mut Json(out));
        out.extend_from_slice(b"}\n");
    }

    /// The last line was not written.
    fn forget(&mut self) {
        self.fields = LineFields::default();
    }
}

/// Appends the name of a field with its punctuation at once.
macro_rules! key {
    ($out:expr, $name:literal) => {
        $out.extend_from_slice(concat!(",\"", $name, "\":").as_bytes())
    };
}

/// The fields at the beginning of every line.
fn head(out: &mut Vec<u8>, head: &Head<'_>) {
    out.extend_from_slice(b"{\"event_id\":");
    number(out, head.id);
    key!(out, "ts");
    fixed::<1_000_000_000>(out, head.at_ns);
    key!(out, "type");
    word(out, head.kind);
    key!(out, "name");
    match head.name {
        Key::Ours(text) => word(out, text),
        Key::Theirs(text) => string(out, text),
    }
    key!(out, "phase");
    word(out, head.phase);
    key!(out, "pid");
    number(out, head.tgid.0);
    key!(out, "tid");
    number(out, head.tid.0);
    key!(out, "process");
    string(out, head.process);
    if let Some(incomplete) = head.incomplete {
        Json(out).flag(incomplete, true);
    }
    if let Some(ns) = head.duration_ns {
        key!(out, "duration_us");
        fixed::<1000>(out, ns);
    }
}

/// Writes the fields of an open JSON object.
#[derive(Debug)]
pub struct Json<'a>(pub &'a mut Vec<u8>);

impl Json<'_> {
    #[inline]
    fn separate(&mut self) {
        if !matches!(self.0.last(), Some(b'{' | b'[')) {
            self.0.push(b',');
        }
    }

    #[inline]
    fn key(&mut self, key: Key<'_>) {
        self.separate();
        match key {
            Key::Ours(text) => word(self.0, text),
            Key::Theirs(text) => string(self.0, text),
        }
        self.0.push(b':');
    }
}

impl Fields for Json<'_> {
    fn uint<'k>(&mut self, key: impl Into<Key<'k>>, n: u64) {
        self.key(key.into());
        number(self.0, n);
    }

    fn microseconds<'k>(&mut self, key: impl Into<Key<'k>>, ns: u64) {
        self.key(key.into());
        fixed::<1000>(self.0, ns);
    }

    fn int<'k>(&mut self, key: impl Into<Key<'k>>, n: i64) {
        self.key(key.into());
        number(self.0, n);
    }

    fn flag<'k>(&mut self, key: impl Into<Key<'k>>, is: bool) {
        self.key(key.into());
        self.0.extend_from_slice(if is { b"true" } else { b"false" });
    }

    fn hex<'k>(&mut self, key: impl Into<Key<'k>>, n: u64) {
        self.key(key.into());
        hex(self.0, n);
    }

    fn text<'k>(&mut self, key: impl Into<Key<'k>>, text: &str) {
        self.key(key.into());
        string(self.0, text);
    }

    fn name<'k>(&mut self, key: impl Into<Key<'k>>, text: &Name) {
        self.key(key.into());
        name(self.0, text);
    }

    fn uints<'k>(&mut self, key: impl Into<Key<'k>>, numbers: &[u64]) {
        self.key(key.into());
        list(self.0, numbers, |out, n| number(out, *n));
    }

    fn texts<'k>(&mut self, key: impl Into<Key<'k>>, texts: &[String]) {
        self.key(key.into());
        list(self.0, texts, |out, text| string(out, text));
    }

    fn unread<'k>(&mut self, key: impl Into<Key<'k>>) {
        self.key(key.into());
        self.0.extend_from_slice(b"null");
    }

    fn open<'k>(&mut self, key: impl Into<Key<'k>>) {
        self.key(key.into());
        self.0.push(b'{');
    }

    fn close(&mut self) {
        self.0.push(b'}');
    }

    fn open_list<'k>(&mut self, key: impl Into<Key<'k>>) {
        self.key(key.into());
        self.0.push(b'[');
    }

    fn open_item(&mut self) {
        self.separate();
        self.0.push(b'{');
    }

    fn close_list(&mut self) {
        self.0.push(b']');
    }
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

/// A fixed-point number with all its digits.
fn fixed<const PARTS: u64>(out: &mut Vec<u8>, n: u64) {
    number(out, n / PARTS);
    let at = out.len();
    // the leading digit preserves the zeros, and is replaced by the point
    number(out, PARTS + n % PARTS);
    out[at] = b'.';
}

fn hex(out: &mut Vec<u8>, n: u64) {
    let mut text = *b"\"0x0000000000000000\"";
    let digits = (u64::BITS - n.leading_zeros()).div_ceil(4).max(1) as usize;
    let (start, end) = (3, 3 + digits);
    for (i, digit) in text[start..end].iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(n >> (4 * i)) as usize & 0xf];
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

/// A borrowed name is static, and has nothing to escape.
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
    // not all(), which stops at the first: this can be vectorized
    text.bytes().fold(true, |is, b| is & (b >= b' ') & (b != b'"') & (b != b'\\'))
}
