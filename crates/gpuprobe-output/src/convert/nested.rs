//! Feeds formats that show calls inside each other: a call is written with all the calls inside it.

use std::io;

use gpuprobe_analysis::{Levels, Nesting, Sample, Slice};
use gpuprobe_event::trace::End;
use gpuprobe_event::{Event, Outcome};

use super::Converted;
use super::trace_writer::TraceWriter;

pub(super) struct NestedCalls<'w> {
    writer: Box<dyn TraceWriter + 'w>,
    nesting: Nesting,
    levels: Levels,
    slices: Vec<Slice>,
    samples: Vec<Sample>,
    converted: Converted,
}

impl<'w> NestedCalls<'w> {
    pub(super) fn new(writer: Box<dyn TraceWriter + 'w>) -> Self {
        Self {
            writer,
            nesting: Nesting::default(),
            levels: Levels::default(),
            slices: Vec::new(),
            samples: Vec::new(),
            converted: Converted::default(),
        }
    }

    pub(super) fn feed(&mut self, event: Event) -> io::Result<()> {
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

    pub(super) fn finish(mut self, end: Option<&End>) -> io::Result<Converted> {
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
