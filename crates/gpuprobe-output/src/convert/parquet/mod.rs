//! Parquet: one table with a row for each line of the trace, in the order of the trace.
//!
//! Numbers are encoded by the low-level writer of `parquet`, and texts in [`chunk`]. Its writer of Arrow arrays would need `arrow`, which
//! multiplies what is compiled, only to hold the same values in other buffers.
//!
//! The caller reads the trace, which takes as long as the rest. One thread puts the fields of its events into columns, and
//! another encodes the columns. The caller also writes, so that errors of the output are its own.

mod chunk;
mod column;
mod event_rows;
mod rows;
mod table_columns;
mod texts;
mod worker;

use std::io::{self, Write};

use gpuprobe_event::Event;
use gpuprobe_event::trace::{End, Meta};
use serde::Serialize;
use serde_json::Value;

use super::Converted;
use event_rows::{File, Table, take_bytes};
use parquet::file::metadata::KeyValue;
use worker::Worker;

/// Events that are passed on together, and how often that many can be on the way. Of a forged trace each can have a
/// mebibyte.
const EVENTS: usize = 64;
const BATCHES: usize = 2;

/// Events that can be dropped, and what was encoded meanwhile.
type Added = io::Result<(Vec<Event>, Vec<u8>)>;

/// Writes the table. It is complete only with what [`Self::finish`] writes: no reader takes it for complete before.
pub(super) struct Parquet<W> {
    out: W,
    events: Vec<Event>,
    table: Worker<Vec<Event>, Added, Table>,
}

impl<W: Write> Parquet<W> {
    pub(super) fn new(meta: &Meta, mut out: W) -> io::Result<Self> {
        let mut file = event_rows::new_file().map_err(io::Error::other)?;
        add_fields(&mut file, "meta", meta);
        // before the first event, so that an output that cannot be written is noticed early
        out.write_all(&take_bytes(&mut file).map_err(io::Error::other)?)?;
        let table = Worker::start("rows", BATCHES, Table::new(meta, file)?, add)?;
        Ok(Self { out, events: Vec::with_capacity(EVENTS), table })
    }

    pub(super) fn event(&mut self, event: Event) -> io::Result<()> {
        self.events.push(event);
        if self.events.len() < EVENTS { Ok(()) } else { self.pass_on() }
    }

    fn pass_on(&mut self) -> io::Result<()> {
        let emptied = match self.table.make_room()? {
            Some(added) => self.write(added)?,
            None => Vec::with_capacity(EVENTS),
        };
        self.table.pass(std::mem::replace(&mut self.events, emptied))
    }

    /// Writes what was encoded, and drops events where they were made, so that the allocator need not pass them between
    /// threads.
    fn write(&mut self, added: Added) -> io::Result<Vec<Event>> {
        let (mut events, bytes) = added?;
        events.clear();
        self.out.write_all(&bytes)?;
        Ok(events)
    }

    /// Ends the table; `end` is `None` if the trace was cut.
    pub(super) fn finish(mut self, end: Option<&End>) -> io::Result<Converted> {
        self.pass_on()?;
        while let Some(added) = self.table.next()? {
            self.write(added)?;
        }
        let (converted, bytes, mut file) = self.table.end()?.end()?;
        self.out.write_all(&bytes)?;
        if let Some(end) = end {
            add_fields(&mut file, "end", end);
        }
        let footer = file.finish().and_then(|_| take_bytes(&mut file)).map_err(io::Error::other)?;
        self.out.write_all(&footer)?;
        self.out.flush()?;
        Ok(converted)
    }
}

fn add(table: &mut Table, events: Vec<Event>) -> Added {
    let mut encoded = Vec::new();
    for event in &events {
        encoded.append(&mut table.event(event)?);
    }
    Ok((events, encoded))
}

/// Adds the fields of the first or the last line to what is known of the whole file.
fn add_fields(file: &mut File, of: &str, line: &impl Serialize) {
    // both lines are made of numbers and text, so this cannot fail
    let Ok(Value::Object(fields)) = serde_json::to_value(line) else { return };
    for (name, value) in fields {
        let value = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        file.append_key_value_metadata(KeyValue::new(format!("{of}.{name}"), value));
    }
}
