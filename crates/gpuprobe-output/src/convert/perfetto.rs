//! Perfetto's format: a sequence of packets, each of which describes a track or an event on one. Field numbers are
//! those of `perfetto/trace/trace_packet.proto` and the files it includes.

use std::collections::HashSet;
use std::io::{self, Write};

use gpuprobe_analysis::timeline::stream_ops::stream_ops;
use gpuprobe_analysis::{Sample, Slice};
use gpuprobe_event::agent::{Collection, RangeKind};
use gpuprobe_event::trace::{
    AGENT, EXECUTION, End, Fields, Meta, OUT_OF_MEMORY, RANGE, agent_fields, call_fields, execution_fields,
    out_of_memory_fields, process_fields, range_fields, stack_field, type_of, xid_fields,
};
use gpuprobe_event::{
    AgentEvent, Call, Effect, Execution, LossEvent, OutOfMemoryEvent, Outcome, ProcessChange, ProcessEvent,
    RangeEvent, Tgid, XidEvent,
};

use super::annotations::{Annotations, Interned};
use super::lane_ends::LaneEnds;
use super::trace_writer::{TraceWriter, Track};
use super::tracks::{LOSSES, Tracks};
use crate::proto;

/// All packets belong to one sequence.
const SEQUENCE: u64 = 1;
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
const REALTIME: u64 = 1;
const BOOTTIME: u64 = 6;

/// The type of an event on a track.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Begin = 1,
    End = 2,
    Instant = 3,
    Counter = 4,
}

mod packet {
    pub(super) const IN_TRACE: u32 = 1;
    pub(super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
    pub(super) const FIRST_ON_SEQUENCE: u32 = 87;
}

mod event {
    pub(super) const CATEGORY_IIDS: u32 = 3;
    pub(super) const TYPE: u32 = 9;
    pub(super) const NAME_IID: u32 = 10;
    pub(super) const TRACK_UUID: u32 = 11;
    pub(super) const COUNTER_VALUE: u32 = 30;
}

pub(super) struct Perfetto<W> {
    out: W,
    packet: Vec<u8>,
    interned: Interned,
    tracks: Tracks,
    /// Track and end of each open slice; `None` for an instant, which has no end.
    open: Vec<Option<(u64, u64)>>,
    lanes: LaneEnds<(Tgid, Track)>,
    /// Processes whose submissions may have executions, to which arrows lead.
    collecting: HashSet<Tgid>,
}

impl<W: Write> Perfetto<W> {
    pub(super) fn new(meta: &Meta, out: W) -> io::Result<Self> {
        let mut perfetto = Self {
            out,
            packet: Vec::new(),
            interned: Interned::default(),
            tracks: Tracks::default(),
            open: Vec::new(),
            lanes: LaneEnds::default(),
            collecting: HashSet::new(),
        };
        perfetto.clear_state(true)?;
        perfetto.clock(meta)?;
        Ok(perfetto)
    }

    /// Forgets all interned names, here and in the reader.
    fn clear_state(&mut self, is_first: bool) -> io::Result<()> {
        self.interned.clear();
        proto::uint(&mut self.packet, packet::SEQUENCE_FLAGS, STATE_CLEARED);
        if is_first {
            proto::uint(&mut self.packet, packet::FIRST_ON_SEQUENCE, 1);
        }
        self.send()
    }

    /// The Unix time of `ts` 0, if the trace has it.
    fn clock(&mut self, meta: &Meta) -> io::Result<()> {
        let unix_ns = meta.start_unix * 1e9;
        if !(1.0..9.0e18).contains(&unix_ns) {
            return Ok(());
        }
        let snapshot = proto::begin(&mut self.packet, packet::CLOCK_SNAPSHOT);
        for (clock, ns) in [(BOOTTIME, 0), (REALTIME, unix_ns as u64)] {
            let one = proto::begin(&mut self.packet, 1);
            proto::uint(&mut self.packet, 1, clock);
            proto::uint(&mut self.packet, 2, ns);
            proto::end(&mut self.packet, one);
        }
        proto::end(&mut self.packet, snapshot);
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        proto::uint(&mut self.packet, packet::SEQUENCE_ID, SEQUENCE);
        // the tag and the length are numbers of at most ten bytes
        let mut head = Vec::with_capacity(20);
        proto::head(&mut head, packet::IN_TRACE, self.packet.len());
        self.out.write_all(&head)?;
        self.out.write_all(&self.packet)?;
        self.packet.clear();
        Ok(())
    }

    /// Describes tracks that are new.
    fn describe(&mut self) -> io::Result<()> {
        while let Some(descriptor) = self.tracks.next_new() {
            proto::bytes(&mut self.packet, packet::TRACK_DESCRIPTOR, &descriptor);
            self.send()?;
        }
        Ok(())
    }

    /// Writes one event; `named` is its category and name, which the end of a slice has not.
    fn event(
        &mut self,
        (kind, track, at_ns): (Kind, u64, u64),
        named: Option<(&str, &str)>,
        fields: impl FnOnce(&mut Annotations<'_>),
    ) -> io::Result<()> {
        self.describe()?;
        if self.interned.is_full() {
            self.clear_state(false)?;
        }
        proto::uint(&mut self.packet, packet::TIMESTAMP, at_ns);
        let event = proto::begin(&mut self.packet, packet::TRACK_EVENT);
        proto::uint(&mut self.packet, event::TYPE, kind as u64);
        proto::uint(&mut self.packet, event::TRACK_UUID, track);
        if let Some((category, name)) = named {
            proto::uint(&mut self.packet, event::CATEGORY_IIDS, self.interned.category(category));
            proto::uint(&mut self.packet, event::NAME_IID, self.interned.event(name));
        }
        fields(&mut Annotations::new(&mut self.packet, &mut self.interned));
        proto::end(&mut self.packet, event);
        if let Some(new) = self.interned.take_new() {
            proto::bytes(&mut self.packet, packet::INTERNED_DATA, new);
        }
        proto::uint(&mut self.packet, packet::SEQUENCE_FLAGS, NEEDS_STATE);
        self.send()
    }

    /// Ends slices until `depth` are open.
    fn close_to(&mut self, depth: usize) -> io::Result<()> {
        while self.open.len() > depth
            && let Some(open) = self.open.pop()
        {
            if let Some((track, end_ns)) = open {
                self.event((Kind::End, track, end_ns), None, |_| {})?;
            }
        }
        Ok(())
    }

    /// The track of an interval that may overlap others there: these have further lanes.
    fn lane(
        &mut self,
        tgid: Tgid,
        process: &str,
        track: Track,
        (start_ns, end_ns): (u64, u64),
    ) -> io::Result<u64> {
        self.tracks.process(tgid, process);
        self.write_waiting()?;
        let lane = match track {
            // nested, and written at their ends
            Track::ThreadRanges(_) | Track::Stream(_) => 0,
            Track::Gpu { .. } | Track::ProcessRanges { .. } => {
                self.lanes.place((tgid, track), start_ns, end_ns)
            }
        };
        Ok(self.tracks.track(tgid, track.with_lane(lane)))
    }

    fn slice(&mut self, slice: &Slice) -> io::Result<()> {
        let Slice { call, start_ns, end_ns, depth } = slice;
        self.close_to(*depth)?;
        self.tracks.process(call.tgid, &call.process);
        self.write_waiting()?;
        let track = self.tracks.thread(call.tgid, call.tid);
        let has_no_end = matches!(call.outcome, Outcome::Begun | Outcome::Unobserved | Outcome::Instant);
        let kind = if has_no_end { Kind::Instant } else { Kind::Begin };
        let has_executions = self.collecting.contains(&call.tgid) && is_submission(call);
        self.event((kind, track, *start_ns), Some((type_of(call.class), &call.name)), |to| {
            to.uint("event_id", call.id);
            if call.outcome == Outcome::Unfinished {
                to.flag("unfinished", true);
            }
            call_fields(call, to);
            stack_field(call, to);
            if has_executions {
                to.flow(call.id);
            }
        })?;
        // an instant has no end, but takes a position at its depth
        self.open.push((kind == Kind::Begin).then_some((track, *end_ns)));
        Ok(())
    }

    /// Writes changes of processes that were delayed until the process had a name.
    fn write_waiting(&mut self) -> io::Result<()> {
        while let Some((track, change)) = self.tracks.next_waiting() {
            let named = Some(("process", change.change.as_str()));
            self.event((Kind::Instant, track, change.at_ns), named, |to| process_fields(&change, to))?;
        }
        Ok(())
    }
}

impl<W: Write> TraceWriter for Perfetto<W> {
    fn slices(&mut self, slices: &[Slice]) -> io::Result<()> {
        for slice in slices {
            self.slice(slice)?;
        }
        self.close_to(0)?;
        for op in stream_ops(slices) {
            let call = &op.slice.call;
            self.tracks.process(call.tgid, &call.process);
            let track = self.tracks.track(call.tgid, Track::Stream(op.stream));
            let named = Some((type_of(call.class), op.name));
            self.event((Kind::Instant, track, op.slice.start_ns), named, |to| {
                to.uint("event_id", call.id);
                if let Some(size) = call.effect.size() {
                    to.uint("size", size);
                }
            })?;
        }
        Ok(())
    }

    fn process(&mut self, change: &ProcessEvent) -> io::Result<()> {
        self.tracks.changed(change);
        // a forked process has the name of its parent until it calls exec
        if change.change != ProcessChange::Start {
            self.tracks.process(change.tgid, &change.process);
        }
        self.write_waiting()
    }

    fn loss(&mut self, loss: &LossEvent) -> io::Result<()> {
        self.tracks.losses();
        let named = Some(("loss", loss.cause.as_str()));
        self.event((Kind::Instant, LOSSES, loss.at_ns), named, |to| {
            to.uint("count", loss.count);
            to.text("meaning", loss.cause.meaning());
        })
    }

    fn xid(&mut self, xid: &XidEvent) -> io::Result<()> {
        self.tracks.losses();
        self.event((Kind::Instant, LOSSES, xid.at_ns), Some(("kernel", "xid")), |to| xid_fields(xid, to))
    }

    fn out_of_memory(&mut self, event: &OutOfMemoryEvent) -> io::Result<()> {
        self.tracks.losses();
        let at = (Kind::Instant, LOSSES, event.at_ns);
        self.event(at, Some((OUT_OF_MEMORY, OUT_OF_MEMORY)), |to| out_of_memory_fields(event, to))
    }

    fn execution(&mut self, execution: &Execution) -> io::Result<()> {
        let Execution { tgid, start_ns, end_ns, gpu, stream, .. } = *execution;
        let track =
            self.lane(tgid, &execution.process, Track::Gpu { gpu, stream, lane: 0 }, (start_ns, end_ns))?;
        let named = Some((EXECUTION, execution.kind.title()));
        self.event((Kind::Begin, track, start_ns), named, |to| {
            to.uint("event_id", execution.id);
            execution_fields(execution, to);
            if let Some(by) = execution.submission {
                to.flow(by.call);
            }
        })?;
        self.event((Kind::End, track, end_ns.max(start_ns)), None, |_| {})
    }

    fn range(&mut self, range: &RangeEvent) -> io::Result<()> {
        let RangeEvent { tgid, start_ns, end_ns, .. } = *range;
        let track = match range.kind {
            RangeKind::Nested | RangeKind::Mark => Track::ThreadRanges(range.tid),
            RangeKind::Process => Track::ProcessRanges { lane: 0 },
        };
        let track = self.lane(tgid, &range.process, track, (start_ns, end_ns))?;
        let kind = if range.kind == RangeKind::Mark { Kind::Instant } else { Kind::Begin };
        self.event((kind, track, start_ns), Some((RANGE, &range.name)), |to| range_fields(range, to))?;
        match range.kind {
            RangeKind::Mark => Ok(()),
            RangeKind::Nested | RangeKind::Process => {
                self.event((Kind::End, track, end_ns.max(start_ns)), None, |_| {})
            }
        }
    }

    fn agent(&mut self, state: &AgentEvent) -> io::Result<()> {
        self.tracks.process(state.tgid, &state.process);
        self.write_waiting()?;
        let track = self.tracks.thread(state.tgid, state.tid);
        if state.collection == Collection::Collecting {
            self.collecting.insert(state.tgid);
        }
        let named = Some((AGENT, state.collection.as_str()));
        self.event((Kind::Instant, track, state.end_ns), named, |to| agent_fields(state, to))
    }

    fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        let track = self.tracks.counter(sample.tgid, sample.level);
        self.describe()?;
        // a counter has no name, so it needs no interned data
        proto::uint(&mut self.packet, packet::TIMESTAMP, sample.at_ns);
        let event = proto::begin(&mut self.packet, packet::TRACK_EVENT);
        proto::uint(&mut self.packet, event::TYPE, Kind::Counter as u64);
        proto::uint(&mut self.packet, event::TRACK_UUID, track);
        // the field is signed
        proto::uint(&mut self.packet, event::COUNTER_VALUE, sample.value.min(i64::MAX.cast_unsigned()));
        proto::end(&mut self.packet, event);
        self.send()
    }

    fn finish(&mut self, _: Option<&End>) -> io::Result<()> {
        self.tracks.name_all();
        self.write_waiting()?;
        self.describe()?;
        self.out.flush()
    }
}

/// Whether a call gives a GPU something to execute.
fn is_submission(call: &Call) -> bool {
    !call.nested && matches!(call.effect, Effect::Launch(_) | Effect::GraphLaunch(_) | Effect::Transfer(_))
}
