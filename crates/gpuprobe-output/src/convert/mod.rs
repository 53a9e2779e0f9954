//! Converts a trace to the formats of other programs. It writes while it reads: memory use does not grow with the
//! trace.

mod annotations;
mod chrome;
mod folded;
mod lane_ends;
mod perfetto;
mod proto;
mod trace_writer;
mod tracks;
mod weight;

use std::io::{self, Write};

use gpuprobe_analysis::{Levels, Nesting, Sample, Slice};
use gpuprobe_event::trace::{End, Meta};
use gpuprobe_event::{Event, Outcome};
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
}

impl Target {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Chrome, Self::Perfetto, Self::Folded(Weight::Time)];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chrome => "chrome",
            Self::Perfetto => "perfetto",
            Self::Folded(_) => "folded",
        }
    }

    /// The file name extension.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Chrome => "json",
            Self::Perfetto => "perfetto-trace",
            Self::Folded(_) => "folded",
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
}

/// A conversion in progress.
pub struct Conversion<'w> {
    writer: Box<dyn TraceWriter + 'w>,
    nesting: Nesting,
    levels: Levels,
    slices: Vec<Slice>,
    samples: Vec<Sample>,
    converted: Converted,
}

impl std::fmt::Debug for Conversion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversion").field("converted", &self.converted).finish_non_exhaustive()
    }
}

impl<'w> Conversion<'w> {
    /// Begins the output.
    pub fn new(target: Target, meta: &Meta, out: impl Write + 'w) -> io::Result<Self> {
        let writer: Box<dyn TraceWriter + 'w> = match target {
            Target::Chrome => Box::new(chrome::Chrome::new(meta, out)?),
            Target::Perfetto => Box::new(perfetto::Perfetto::new(meta, out)?),
            Target::Folded(weight) => Box::new(folded::Folded::new(weight, out)),
        };
        Ok(Self {
            writer,
            nesting: Nesting::default(),
            levels: Levels::default(),
            slices: Vec::new(),
            samples: Vec::new(),
            converted: Converted::default(),
        })
    }

    /// Takes in the next event of the trace.
    pub fn feed(&mut self, event: Event) -> io::Result<()> {
        self.levels.feed(&event, &mut self.samples);
        match event {
            Event::Call(call) => {
                self.nesting.feed(call, &mut self.slices);
                self.write_slices()?;
            }
            Event::Process(change) => {
                self.nesting.process(&change, &mut self.slices);
                self.write_slices()?;
                self.writer.process(&change)?;
            }
            Event::Loss(loss) => self.writer.loss(&loss)?,
            Event::Xid(xid) => self.writer.xid(&xid)?,
            Event::OutOfMemory(event) => self.writer.out_of_memory(&event)?,
            Event::Execution(execution) => self.writer.execution(&execution)?,
            Event::Range(range) => self.writer.range(&range)?,
            Event::Agent(state) => self.writer.agent(&state)?,
        }
        self.write_samples()
    }

    /// Ends the output; `end` is `None` if the trace was cut.
    pub fn finish(mut self, end: Option<&End>) -> io::Result<Converted> {
        self.nesting.finish(&mut self.slices);
        self.write_slices()?;
        self.levels.finish(&mut self.samples);
        self.write_samples()?;
        self.writer.finish(end)?;
        Ok(Converted { moved: self.nesting.moved(), ..self.converted })
    }

    fn write_slices(&mut self) -> io::Result<()> {
        if self.slices.is_empty() {
            return Ok(());
        }
        self.converted.calls += self.slices.len() as u64;
        let unfinished = |slice: &&Slice| slice.call.outcome == Outcome::Unfinished;
        self.converted.unfinished += self.slices.iter().filter(unfinished).count() as u64;
        self.writer.slices(&self.slices)?;
        self.slices.clear();
        Ok(())
    }

    fn write_samples(&mut self) -> io::Result<()> {
        self.samples.drain(..).try_for_each(|sample| self.writer.sample(&sample))
    }
}
