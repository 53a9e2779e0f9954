//! Parquet: one table with a row for each line of the trace, in the order of the trace.
//!
//! The columns are written with the low-level writer of `parquet`. Its writer of Arrow arrays would need `arrow`, which
//! multiplies what is compiled, only to hold the same values in other buffers.

mod column;
mod encoder;
mod rows;
mod table_columns;

use std::io::{self, Write};
use std::sync::Arc;

use gpuprobe_event::trace::{End, Fields, Head, LineFields, Meta, Phases};
use gpuprobe_event::{Event, Outcome};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::writer::SerializedFileWriter;
use serde::Serialize;
use serde_json::Value;

use super::Converted;
use encoder::{Encoder, File, take_bytes};
use rows::Rows;

/// Rows that are written together. Readers work on such groups in parallel, and skip those that a filter excludes. Two
/// groups are in memory: one is filled while the other is encoded.
const MOST_ROWS: usize = 1 << 16;
/// Bytes of texts that are written together, so that memory is bounded however long they are.
const MOST_TEXT: usize = 32 << 20;

/// Writes the table. It is complete only with what [`Self::finish`] writes: no reader takes it for complete before.
pub(super) struct Parquet<W> {
    out: W,
    encoder: Encoder,
    rows: Rows,
    fields: LineFields,
    phases: Phases,
    /// Microseconds since 1970 when the recording began, if that is known.
    start_us: Option<i64>,
    converted: Converted,
}

impl<W: Write> Parquet<W> {
    pub(super) fn new(meta: &Meta, mut out: W) -> io::Result<Self> {
        let mut file = new_file(meta).map_err(io::Error::other)?;
        // before the first event, so that an output that cannot be written is noticed early
        out.write_all(&take_bytes(&mut file).map_err(io::Error::other)?)?;
        Ok(Self {
            out,
            encoder: Encoder::start(file)?,
            rows: Rows::new(),
            fields: LineFields::default(),
            phases: Phases::default(),
            start_us: microseconds(meta.start_unix),
            converted: Converted::default(),
        })
    }

    pub(super) fn event(&mut self, event: &Event) -> io::Result<()> {
        if let Event::Call(call) = event {
            if call.outcome == Outcome::Begun {
                // the trace has two lines for each call, and its first line is this one
                self.phases = Phases::Separate;
            } else {
                self.converted.calls += 1;
            }
            self.converted.unfinished += u64::from(call.outcome == Outcome::Unfinished);
        }
        self.head(&Head::of(event, self.phases));
        self.fields.write(event, &mut self.rows);
        self.rows.end_row();
        if self.rows.len() >= MOST_ROWS || self.rows.text_bytes() >= MOST_TEXT {
            return self.end_group();
        }
        Ok(())
    }

    fn head(&mut self, head: &Head<'_>) {
        let rows = &mut self.rows;
        rows.uint("event_id", head.id);
        rows.double("ts", head.at_ns as f64 / 1e9);
        let since_start_us = i64::try_from(head.at_ns / 1000).ok();
        if let Some(us) = self.start_us.zip(since_start_us).and_then(|(start, us)| start.checked_add(us)) {
            rows.int("time", us);
        }
        rows.text("type", head.kind);
        rows.text("name", head.name.as_str());
        rows.text("phase", head.phase);
        rows.uint("pid", head.tgid.0.into());
        rows.uint("tid", head.tid.0.into());
        rows.text("process", head.process);
        if let Some(incomplete) = head.incomplete {
            rows.flag(incomplete, true);
        }
        if let Some(ns) = head.duration_ns {
            rows.microseconds("duration_us", ns);
        }
    }

    /// Ends a group of rows: it is encoded while the next one is filled.
    fn end_group(&mut self) -> io::Result<()> {
        if self.rows.len() > 0 {
            self.converted.rows = Some(self.converted.rows.unwrap_or_default() + self.rows.len() as u64);
            self.converted.too_large += self.rows.too_large();
            self.out.write_all(&self.encoder.encode(&mut self.rows)?)?;
        }
        Ok(())
    }

    /// Ends the table; `end` is `None` if the trace was cut.
    pub(super) fn finish(mut self, end: Option<&End>) -> io::Result<Converted> {
        self.end_group()?;
        let (last_group, mut file) = self.encoder.end()?;
        self.out.write_all(&last_group)?;
        if let Some(end) = end {
            add_fields(&mut file, "end", end);
        }
        let footer = file.finish().and_then(|_| take_bytes(&mut file)).map_err(io::Error::other)?;
        self.out.write_all(&footer)?;
        self.out.flush()?;
        let rows = Some(self.converted.rows.unwrap_or_default());
        Ok(Converted { rows, ..self.converted })
    }
}

/// An empty table with the fields of the first line.
fn new_file(meta: &Meta) -> Result<File, ParquetError> {
    let properties = Arc::new(table_columns::properties()?);
    let mut file = SerializedFileWriter::new(Vec::new(), table_columns::schema()?, properties)?;
    add_fields(&mut file, "meta", meta);
    Ok(file)
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

/// Seconds since 1970 as microseconds; `None` if that is not known, which is 0 in a trace, or out of range.
fn microseconds(seconds: f64) -> Option<i64> {
    const MOST: f64 = 9e18;
    let us = (seconds * 1e6).round();
    (us > 0.0 && us < MOST).then_some(us as i64)
}
