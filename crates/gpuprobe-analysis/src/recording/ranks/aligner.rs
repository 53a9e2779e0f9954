//! Reads several recordings for the first time, to find how their clocks differ and what their processes are.

use gpuprobe_event::{Event, MOST_RECORDINGS};

use super::alignment::{Alignment, number};
use super::bounds::{Bounds, on_clocks};
use super::clocks::{Clocks, Origin};
use super::matching::{Matched, Matcher};
use super::names::Names;

/// What was read of a recording.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    /// The largest number of a collective in its communicator.
    collectives: u64,
    has_ended: bool,
}

/// Collects an [`Alignment`].
#[derive(Debug)]
pub struct Aligner {
    origins: Vec<Origin>,
    clocks: Clocks,
    bounds: Bounds,
    matcher: Matcher,
    names: Names,
    read: Vec<Read>,
    matched: Vec<Matched>,
}

impl Aligner {
    /// For recordings that began there and then, at most [`MOST_RECORDINGS`].
    pub fn new(mut origins: Vec<Origin>) -> Self {
        origins.truncate(MOST_RECORDINGS);
        let clocks = Clocks::of(&origins);
        Self {
            bounds: Bounds::new(clocks.count()),
            clocks,
            matcher: Matcher::default(),
            names: Names::default(),
            read: vec![Read::default(); origins.len()],
            matched: Vec::new(),
            origins,
        }
    }

    /// The recording whose next event should be taken in: the one with the fewest collectives. All ranks make the same
    /// ones, so that few have to wait for others, also if the clocks of hosts are hours apart. `None` after the end of
    /// all.
    pub fn next(&self) -> Option<usize> {
        let open = self.read.iter().enumerate().filter(|(_, read)| !read.has_ended);
        open.min_by_key(|(_, read)| read.collectives).map(|(recording, _)| recording)
    }

    /// Takes in the next event of a recording.
    pub fn feed(&mut self, recording: usize, mut event: Event) {
        number(recording, &mut event);
        self.names.feed(&event);
        self.matcher.feed(&event, &mut self.matched);
        let last = self.matcher.take_last();
        self.read
            .get_mut(recording)
            .into_iter()
            .for_each(|read| read.collectives = read.collectives.max(last));
        self.bound();
    }

    /// A recording has ended.
    pub fn end(&mut self, recording: usize) {
        self.read.get_mut(recording).into_iter().for_each(|read| read.has_ended = true);
    }

    /// After the end of all recordings.
    pub fn finish(mut self) -> Alignment {
        self.matcher.finish(&mut self.matched);
        self.bound();
        let names = self.names.finish(&self.origins, &self.matcher.collectives());
        Alignment::new(&self.origins, &self.clocks, &self.bounds.solve(), names)
    }

    fn bound(&mut self) {
        let clocks = &self.clocks;
        for matched in self.matched.drain(..) {
            self.bounds.add(&on_clocks(&matched, |arrival, ns| clocks.at(arrival.tgid.recording(), ns)));
        }
    }
}
