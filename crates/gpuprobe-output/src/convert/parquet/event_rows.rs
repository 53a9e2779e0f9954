//! The rows of the events, and the groups in which they are encoded.

use std::io;
use std::sync::Arc;

use gpuprobe_event::trace::{Fields, Head, LineFields, Meta, Phases};
use gpuprobe_event::{Event, Outcome};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnDescPtr;

use super::Converted;
use super::chunk::PageCompressor;
use super::rows::Rows;
use super::table_columns;
use super::worker::Worker;

/// Rows that are encoded together. Readers work on such groups in parallel, and skip those that a filter excludes. Two
/// groups are in memory: one is filled while the other is encoded.
const MOST_ROWS: usize = 1 << 16;
/// Bytes of texts that are encoded together, so that memory is bounded however long they are.
const MOST_TEXT: usize = 32 << 20;

/// A file whose bytes are taken out as they come.
pub(super) type File = SerializedFileWriter<Vec<u8>>;

/// Rows that can be filled again, and the bytes of the group.
type Encoded = Result<(Rows, Vec<u8>), ParquetError>;

#[derive(Debug)]
struct Encoder {
    file: File,
    columns: Vec<ColumnDescPtr>,
    compressor: PageCompressor,
}

#[derive(Debug)]
pub(super) struct Table {
    rows: Rows,
    encoder: Worker<Rows, Encoded, Encoder>,
    fields: LineFields,
    phases: Phases,
    /// Microseconds since 1970 when the recording began, if that is known.
    start_us: Option<i64>,
    converted: Converted,
}

impl Table {
    pub(super) fn new(meta: &Meta, file: File) -> io::Result<Self> {
        let columns = file.schema_descr().columns().to_vec();
        let compressor = PageCompressor::new().map_err(io::Error::other)?;
        let encoder = Encoder { file, columns, compressor };
        Ok(Self {
            rows: Rows::new(),
            encoder: Worker::start("encoder", 1, encoder, Encoder::encode)?,
            fields: LineFields::default(),
            phases: Phases::default(),
            start_us: microseconds(meta.start_unix),
            converted: Converted { rows: Some(0), ..Converted::default() },
        })
    }

    /// Adds a row. Returns what was encoded meanwhile.
    pub(super) fn event(&mut self, event: &Event) -> io::Result<Vec<u8>> {
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
        Ok(Vec::new())
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

    /// Ends a group of rows: it is encoded while the next one is filled. Returns the bytes of the group before.
    fn end_group(&mut self) -> io::Result<Vec<u8>> {
        if self.rows.len() == 0 {
            return Ok(Vec::new());
        }
        self.converted.rows = self.converted.rows.map(|rows| rows + self.rows.len() as u64);
        self.converted.too_large += self.rows.too_large();
        let (emptied, bytes) = match self.encoder.make_room()? {
            Some(encoded) => encoded.map_err(io::Error::other)?,
            None => (Rows::new(), Vec::new()),
        };
        self.encoder.pass(std::mem::replace(&mut self.rows, emptied))?;
        Ok(bytes)
    }

    /// Ends the last group. Returns the bytes that are left, and the file for its end.
    pub(super) fn end(mut self) -> io::Result<(Converted, Vec<u8>, File)> {
        let mut bytes = self.end_group()?;
        while let Some(encoded) = self.encoder.next()? {
            bytes.append(&mut encoded.map_err(io::Error::other)?.1);
        }
        Ok((self.converted, bytes, self.encoder.end()?.file))
    }
}

/// An empty table.
pub(super) fn new_file() -> Result<File, ParquetError> {
    let properties = Arc::new(table_columns::properties()?);
    SerializedFileWriter::new(Vec::new(), table_columns::schema()?, properties)
}

impl Encoder {
    fn encode(&mut self, mut rows: Rows) -> Encoded {
        rows.write(&mut self.compressor, &self.columns, self.file.next_row_group()?)?;
        Ok((rows, take_bytes(&mut self.file)?))
    }
}

/// What was encoded since it was last taken out.
pub(super) fn take_bytes(file: &mut File) -> Result<Vec<u8>, ParquetError> {
    file.flush()?;
    Ok(std::mem::take(file.inner_mut()))
}

/// Seconds since 1970 as microseconds; `None` if that is not known, which is 0 in a trace, or out of range.
fn microseconds(seconds: f64) -> Option<i64> {
    const MOST: f64 = 9e18;
    let us = (seconds * 1e6).round();
    (us > 0.0 && us < MOST).then_some(us as i64)
}
