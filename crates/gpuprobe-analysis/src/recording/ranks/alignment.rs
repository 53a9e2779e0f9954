//! Moves the events of several recordings to one clock, and makes their processes different.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::trace::Meta;
use gpuprobe_event::{Call, Event, Tgid, Tid};
use serde::Serialize;

use super::bounds::Correction;
use super::clocks::{Basis, Clocks, Origin};
use super::names::ProcessName;

/// A recording and its clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlignedRecording {
    /// The name of its trace.
    pub trace: String,
    /// Where it was made.
    pub host: String,
    pub basis: Basis,
    /// What is added to its times, beyond the difference of the Unix times at which the recordings began, so that they
    /// agree with those of the first.
    pub offset_ns: i64,
    /// How far that may be off; `None` if nothing shows it.
    pub uncertainty_ns: Option<u64>,
    /// What it is at least: otherwise a collective would end on a rank before another one began it.
    pub least_offset_ns: Option<i64>,
    /// What it is at most.
    pub most_offset_ns: Option<i64>,
    /// Collectives whose begin or end was compared with that on another clock.
    pub collectives: u64,
    /// The time on the common clock of its time 0.
    pub starts_ns: u64,
}

/// How the events of several recordings become those of one.
#[derive(Clone, Debug)]
pub struct Alignment {
    recordings: Vec<AlignedRecording>,
    names: HashMap<Tgid, ProcessName>,
}

impl Alignment {
    pub(super) fn new(
        origins: &[Origin],
        clocks: &Clocks,
        corrections: &[Correction],
        names: HashMap<Tgid, ProcessName>,
    ) -> Self {
        let none = Correction { ns: 0, uncertainty_ns: None, range_ns: (None, None), collectives: 0 };
        let of = |recording: usize| {
            let (clock, base_ns) = clocks.at(recording, 0);
            let correction = corrections.get(clock).copied().unwrap_or(none);
            (clock, correction, base_ns.saturating_add(correction.ns))
        };
        let earliest_ns = (0..origins.len()).map(|recording| of(recording).2).min().unwrap_or(0);
        let aligned = |(recording, origin): (usize, &Origin)| {
            let (clock, correction, begins_ns) = of(recording);
            let basis = match (recording, clocks.is_first(recording)) {
                (0, _) => Basis::First,
                (_, false) => Basis::SameHost,
                _ if clock == 0 || correction.collectives > 0 => Basis::Collectives,
                _ => Basis::UnixTime,
            };
            AlignedRecording {
                trace: origin.trace.clone(),
                host: origin.host.clone(),
                basis,
                offset_ns: correction.ns,
                uncertainty_ns: correction.uncertainty_ns,
                least_offset_ns: correction.range_ns.0,
                most_offset_ns: correction.range_ns.1,
                collectives: correction.collectives,
                starts_ns: begins_ns.abs_diff(earliest_ns),
            }
        };
        Self { recordings: origins.iter().enumerate().map(aligned).collect(), names }
    }

    pub fn recordings(&self) -> &[AlignedRecording] {
        &self.recordings
    }

    /// The first line of a trace with the events of all these.
    pub fn meta(&self, metas: &[Meta]) -> Meta {
        let Some(first) = metas.first() else { return Meta::default() };
        let mut hosts: Vec<&str> = Vec::new();
        for meta in metas {
            if !hosts.contains(&meta.host.as_str()) {
                hosts.push(&meta.host);
            }
        }
        let starts_ns = self.recordings.first().map_or(0, |first| first.starts_ns);
        Meta {
            host: hosts.join(", "),
            start_unix: first.start_unix - starts_ns as f64 / 1e9,
            start_monotonic_ns: None,
            boot: None,
            segment: None,
            ..first.clone()
        }
    }

    /// Moves an event of a recording to the common clock, and gives its processes numbers that no other recording has.
    pub fn place(&self, recording: usize, event: &mut Event) {
        number(recording, event);
        shift(event, self.recordings.get(recording).map_or(0, |aligned| aligned.starts_ns));
    }

    /// Names the process of a placed event by its host and rank, and if wanted, with its pid.
    pub fn rename(&self, event: &mut Event, with_pid: bool) {
        let named = |tgid: Tgid, process: &mut Arc<str>| {
            if let Some(known) = self.names.get(&tgid) {
                *process = Arc::clone(if with_pid { &known.with_pid } else { &known.name });
            }
        };
        match event {
            Event::Call(call) => named(call.tgid, &mut call.process),
            Event::Process(change) => named(change.tgid, &mut change.process),
            Event::Xid(xid) => xid.processes.iter_mut().for_each(|of| named(of.tgid, &mut of.process)),
            Event::OutOfMemory(event) => {
                named(event.tgid, &mut event.process);
                event.others.iter_mut().for_each(|of| named(of.tgid, &mut of.process));
            }
            Event::Execution(execution) => named(execution.tgid, &mut execution.process),
            Event::Range(range) => named(range.tgid, &mut range.process),
            Event::Agent(state) => named(state.tgid, &mut state.process),
            Event::Loss(_) => {}
        }
    }

    /// The number of a process in its job, and its name.
    pub(super) fn name_of(&self, tgid: Tgid) -> (Option<u32>, Option<&str>) {
        let known = self.names.get(&tgid);
        (known.and_then(|known| known.rank), known.map(|known| &*known.name))
    }

    /// The name of a process with host and rank; `None` if it is not known.
    pub fn process_name(&self, tgid: Tgid) -> Option<&str> {
        self.name_of(tgid).1
    }
}

/// Numbers processes, threads and events so that those of other recordings differ.
pub(super) fn number(recording: usize, event: &mut Event) {
    /// A recording has fewer events.
    const EVENTS_BITS: u32 = 44;
    let of_recording = (recording as u64) << EVENTS_BITS;
    let id = |id: &mut u64| *id = id.wrapping_add(of_recording);
    let process = |tgid: &mut Tgid| *tgid = tgid.of_recording(recording);
    let thread = |tid: &mut Tid| *tid = tid.of_recording(recording);
    let both = |tgid: &mut Tgid, tid: &mut Tid| {
        process(tgid);
        thread(tid);
    };
    match event {
        Event::Call(call) => {
            let Call { id: own, parent, tgid, tid, .. } = &mut **call;
            id(own);
            parent.iter_mut().for_each(id);
            both(tgid, tid);
        }
        Event::Process(change) => {
            id(&mut change.id);
            both(&mut change.tgid, &mut change.tid);
            change.parent.iter_mut().for_each(process);
        }
        Event::Loss(_) => {}
        Event::Xid(xid) => {
            id(&mut xid.id);
            xid.processes.iter_mut().for_each(|of| process(&mut of.tgid));
        }
        Event::OutOfMemory(event) => {
            id(&mut event.id);
            both(&mut event.tgid, &mut event.tid);
            event.others.iter_mut().for_each(|of| process(&mut of.tgid));
        }
        Event::Execution(execution) => {
            id(&mut execution.id);
            process(&mut execution.tgid);
            if let Some(by) = &mut execution.submission {
                id(&mut by.call);
                thread(&mut by.tid);
            }
        }
        Event::Range(range) => {
            id(&mut range.id);
            both(&mut range.tgid, &mut range.tid);
        }
        Event::Agent(state) => {
            id(&mut state.id);
            both(&mut state.tgid, &mut state.tid);
        }
    }
}

/// Moves an event to later.
fn shift(event: &mut Event, by_ns: u64) {
    let later = |ns: &mut u64| *ns = ns.saturating_add(by_ns);
    match event {
        Event::Call(call) => later(&mut call.start_ns),
        Event::Process(change) => later(&mut change.at_ns),
        Event::Loss(loss) => later(&mut loss.at_ns),
        Event::Xid(xid) => later(&mut xid.at_ns),
        Event::OutOfMemory(event) => later(&mut event.at_ns),
        Event::Execution(execution) => {
            later(&mut execution.start_ns);
            later(&mut execution.end_ns);
        }
        Event::Range(range) => {
            later(&mut range.start_ns);
            later(&mut range.end_ns);
        }
        Event::Agent(state) => {
            later(&mut state.begin_ns);
            later(&mut state.end_ns);
        }
    }
}
