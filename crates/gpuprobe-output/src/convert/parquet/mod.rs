//! Parquet: one table with a row for each line of the trace, in the order of the trace.
//!
//! The columns are written with the low-level writer of `parquet`. Its writer of Arrow arrays would need `arrow`, which
//! multiplies what is compiled, only to hold the same values in other buffers.

mod column;
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
use rows::Rows;

/// Rows that are written together. Readers work on such groups in parallel, and skip those that a filter excludes.
const MOST_ROWS: usize = 1 << 17;
/// Bytes of texts that are written together, so that memory is bounded however long they are.
const MOST_TEXT: usize = 32 << 20;

/// Writes the table. It is complete only with what [`Self::finish`] writes: no reader takes it for complete before.
pub(super) struct Parquet<W: Write + Send> {
    file: SerializedFileWriter<W>,
    rows: Rows,
    fields: LineFields,
    phases: Phases,
    /// Microseconds since 1970 when the recording began, if that is known.
    start_us: Option<i64>,
    converted: Converted,
}

impl<W: Write + Send> Parquet<W> {
    pub(super) fn new(meta: &Meta, out: W) -> io::Result<Self> {
        let begin = || {
            let mut file = SerializedFileWriter::new(
                out,
                table_columns::schema()?,
                Arc::new(table_columns::properties()?),
            )?;
            add_fields(&mut file, "meta", meta);
            Ok(file)
        };
        Ok(Self {
            file: begin().map_err(io_error)?,
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
            self.write_rows().map_err(io_error)?;
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

    /// Writes the rows so far as a row group.
    fn write_rows(&mut self) -> Result<(), ParquetError> {
        let rows = self.rows.len();
        if rows > 0 {
            self.rows.write(self.file.next_row_group()?)?;
            self.converted.rows = Some(self.converted.rows.unwrap_or_default() + rows as u64);
        }
        Ok(())
    }

    /// Ends the table; `end` is `None` if the trace was cut.
    pub(super) fn finish(mut self, end: Option<&End>) -> io::Result<Converted> {
        let mut finish = || {
            self.write_rows()?;
            if let Some(end) = end {
                add_fields(&mut self.file, "end", end);
            }
            self.file.finish()
        };
        finish().map_err(io_error)?;
        let rows = Some(self.converted.rows.unwrap_or_default());
        Ok(Converted { rows, too_large: self.rows.too_large(), ..self.converted })
    }
}

/// Adds the fields of the first or the last line to what is known of the whole file.
fn add_fields(file: &mut SerializedFileWriter<impl Write + Send>, of: &str, line: &impl Serialize) {
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

/// The error of the output, if that is what happened.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
