//! One trace, or several of one job that are read as one.

use std::path::PathBuf;

use anyhow::{Error, Result};
use gpuprobe_analysis::{EventFilter, Filtered};
use gpuprobe_event::Event;
use gpuprobe_event::trace::{End, Meta};

use super::input::TraceInput;
use super::several::{Endings, SeveralTraces};

/// Traces that are open.
pub(crate) enum Traces {
    One(Box<TraceInput>),
    Several(Box<SeveralTraces>),
}

/// What was read of them.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) end: Option<End>,
    /// What is missing, a line each.
    pub(crate) missing: Vec<String>,
    pub(crate) filtered: Option<Filtered>,
    /// Why a trace could not be read to its end.
    pub(crate) broken: Option<Error>,
}

impl Traces {
    /// Opens traces of which only the events that the filter keeps are read.
    pub(crate) fn open(paths: &[PathBuf], filter: EventFilter) -> Result<Self> {
        Ok(match paths {
            [one] => Self::One(Box::new(TraceInput::open_filtered(one, filter)?)),
            several => Self::Several(Box::new(SeveralTraces::align(several, filter)?)),
        })
    }

    /// The first line of a trace with all events.
    pub(crate) fn meta(&self) -> Meta {
        match self {
            Self::One(input) => input.reader.meta().clone(),
            Self::Several(traces) => traces.meta(),
        }
    }

    /// Calls `then` for every event that the filter keeps, of several traces on one clock and by time. Their processes
    /// are named by host and rank, with the pid if that is wanted.
    pub(crate) fn read(self, with_pid: bool, mut then: impl FnMut(Event) -> Result<()>) -> Result<Read> {
        match self {
            Self::One(mut input) => {
                let ending = input.for_each_event(then)?;
                input.end_progress();
                let missing = ending.missing(input.damaged());
                Ok(Read { end: ending.end, missing, filtered: ending.filtered, broken: ending.broken })
            }
            Self::Several(traces) => {
                let endings = traces.for_each_event(|mut event| {
                    traces.alignment.rename(&mut event, with_pid);
                    then(event)
                })?;
                let Endings { end, missing, broken, filtered } = endings;
                Ok(Read { end: Some(end), missing, filtered, broken })
            }
        }
    }
}
