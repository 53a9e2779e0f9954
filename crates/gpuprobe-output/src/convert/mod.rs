//! Converts a trace to the formats of other programs. It writes while it reads: memory use does not grow with the
//! trace.

mod annotations;
mod chrome;
mod folded;
mod lane_ends;
mod nested;
mod parquet;
mod perfetto;
mod trace_writer;
mod tracks;
mod weight;

use std::io::{self, Write};

use gpuprobe_event::Event;
use gpuprobe_event::trace::{End, Meta};
use nested::NestedCalls;
use trace_writer::TraceWriter;
pub use weight::Weight;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Chrome's JSON trace events, which chrome://tracing, Perfetto and speedscope read.
    Chrome,
    /// Perfetto's protobuf format.
    Perfetto,
    /// Folded stacks: one line for each stack of calls, with what happened there. Input for flame graphs.
    Folded(Weight),
    /// One table with a row for each line of the trace, for DuckDB and pandas.
    Parquet,
}

impl Target {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Chrome, Self::Perfetto, Self::Folded(Weight::Time), Self::Parquet];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chrome => "chrome",
            Self::Perfetto => "perfetto",
            Self::Folded(_) => "folded",
            Self::Parquet => "parquet",
        }
    }

    /// The file name extension.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Chrome => "json",
            Self::Perfetto => "perfetto-trace",
            Self::Folded(_) => "folded",
            Self::Parquet => "parquet",
        }
    }
}

/// The result of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Calls written.
    pub calls: u64,
    /// Calls among them that did not return.
    pub unfinished: u64,
    /// Calls whose times overlapped those of other calls on their thread and were adjusted.
    pub moved: u64,
    /// Rows written; `None` if the format has no rows.
    pub rows: Option<u64>,
    /// Numbers that a column of signed 64-bit numbers cannot hold and that are left out.
    pub too_large: u64,
}

/// A conversion in progress.
pub struct Conversion<'w>(Form<'w>);

/// What a format needs of the calls: nested in each other, or as the lines of the trace.
enum Form<'w> {
    Nested(Box<NestedCalls<'w>>),
    Lines(Box<parquet::Parquet<Box<dyn Write + 'w>>>),
}

impl std::fmt::Debug for Conversion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversion").finish_non_exhaustive()
    }
}

impl<'w> Conversion<'w> {
    /// Begins the output.
    pub fn new(target: Target, meta: &Meta, out: impl Write + 'w) -> io::Result<Self> {
        let writer: Box<dyn TraceWriter + 'w> = match target {
            Target::Chrome => Box::new(chrome::Chrome::new(meta, out)?),
            Target::Perfetto => Box::new(perfetto::Perfetto::new(meta, out)?),
            Target::Folded(weight) => Box::new(folded::Folded::new(weight, out)),
            Target::Parquet => {
                let out: Box<dyn Write + 'w> = Box::new(out);
                return Ok(Self(Form::Lines(Box::new(parquet::Parquet::new(meta, out)?))));
            }
        };
        Ok(Self(Form::Nested(Box::new(NestedCalls::new(writer)))))
    }

    /// Takes in the next event of the trace.
    pub fn feed(&mut self, event: Event) -> io::Result<()> {
        match &mut self.0 {
            Form::Nested(calls) => calls.feed(event),
            Form::Lines(rows) => rows.event(event),
        }
    }

    /// Ends the output; `end` is `None` if the trace was cut.
    pub fn finish(self, end: Option<&End>) -> io::Result<Converted> {
        match self.0 {
            Form::Nested(calls) => calls.finish(end),
            Form::Lines(rows) => rows.finish(end),
        }
    }
}
