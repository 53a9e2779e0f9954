//! Chrome's trace events: one JSON object with a list of events. Its times are microseconds, here with three decimals.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use gpuprobe_analysis::timeline::stream_ops::stream_ops;
use gpuprobe_analysis::{Level, Sample, Slice};
use gpuprobe_event::agent::RangeKind;
use gpuprobe_event::trace::{
    AGENT, EXECUTION, End, Fields, Json, Meta, OUT_OF_MEMORY, RANGE, WrittenStacks, agent_fields,
    call_fields, execution_fields, out_of_memory_fields, process_fields, range_fields, stack_field, type_of,
    xid_fields,
};
use gpuprobe_event::{
    AgentEvent, Execution, LossEvent, OutOfMemoryEvent, Outcome, ProcessEvent, RangeEvent, Tgid, Tid,
    XidEvent,
};
use serde_json::json;

use super::lane_ends::LaneEnds;
use super::trace_writer::{TraceWriter, Track, thread_name};

/// Processes, threads and streams whose names are remembered as written. Beyond that, names are written again, which
/// is harmless; streams get a second track.
const MOST_NAMED: usize = 1 << 16;
/// The format has no tracks but threads, so a stream is a thread with a number above those that Linux gives (2^22).
const FIRST_TRACK: u32 = 1 << 30;

pub(super) struct Chrome<W> {
    out: W,
    event: Vec<u8>,
    is_first: bool,
    meta: Meta,
    processes: HashMap<Tgid, Arc<str>>,
    threads: HashMap<(Tgid, Tid), ()>,
    /// The tracks of each process that are no threads.
    tracks: HashMap<(Tgid, Track), Tid>,
    next_track: u32,
    lanes: LaneEnds<(Tgid, Track)>,
    /// The format has no references, and a stack is long.
    stacks: WrittenStacks,
}

/// The fields that every event begins with.
#[derive(Clone, Copy)]
struct Head<'a> {
    name: &'a str,
    category: &'a str,
    phase: &'a str,
    at_ns: u64,
    tgid: Tgid,
    tid: Tid,
}

impl<W: Write> Chrome<W> {
    pub(super) fn new(meta: &Meta, mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        Ok(Self {
            out,
            event: Vec::new(),
            is_first: true,
            meta: meta.clone(),
            processes: HashMap::new(),
            threads: HashMap::new(),
            tracks: HashMap::new(),
            next_track: FIRST_TRACK,
            lanes: LaneEnds::default(),
            stacks: WrittenStacks::default(),
        })
    }

    fn begin(&mut self, head: &Head<'_>) {
        self.event.clear();
        if !std::mem::take(&mut self.is_first) {
            self.event.extend_from_slice(b",\n");
        }
        self.event.push(b'{');
        let mut json = Json(&mut self.event);
        json.text("name", head.name);
        json.text("cat", head.category);
        json.text("ph", head.phase);
        self.time("ts", head.at_ns);
        let mut json = Json(&mut self.event);
        json.uint("pid", head.tgid.0.into());
        json.uint("tid", head.tid.0.into());
    }

    fn time(&mut self, name: &str, ns: u64) {
        // writing to a Vec cannot fail
        write!(self.event, ",\"{name}\":{}.{:03}", ns / 1000, ns % 1000).ok();
    }

    fn end(&mut self) -> io::Result<()> {
        self.event.push(b'}');
        self.out.write_all(&self.event)
    }

    /// Writes the name of a process or a thread.
    fn name(&mut self, kind: &str, tgid: Tgid, tid: Tid, name: &str) -> io::Result<()> {
        self.begin(&Head { name: kind, category: "__metadata", phase: "M", at_ns: 0, tgid, tid });
        let mut json = Json(&mut self.event);
        json.open("args");
        json.text("name", name);
        json.close();
        self.end()
    }

    fn introduce(&mut self, tgid: Tgid, tid: Tid, process: &Arc<str>) -> io::Result<()> {
        if self.processes.get(&tgid) != Some(process) {
            if self.processes.len() >= MOST_NAMED {
                self.processes.clear();
            }
            self.processes.insert(tgid, Arc::clone(process));
            self.name("process_name", tgid, Tid(tgid.0), process)?;
        }
        if !self.threads.contains_key(&(tgid, tid)) {
            if self.threads.len() >= MOST_NAMED {
                self.threads.clear();
            }
            self.threads.insert((tgid, tid), ());
            self.name("thread_name", tgid, tid, &thread_name(tgid, tid))?;
        }
        Ok(())
    }

    /// The number of a track that is no thread.
    fn track(&mut self, tgid: Tgid, track: Track) -> io::Result<Tid> {
        if let Some(tid) = self.tracks.get(&(tgid, track)) {
            return Ok(*tid);
        }
        if self.tracks.len() >= MOST_NAMED {
            self.tracks.clear();
        }
        let tid = Tid(self.next_track);
        self.next_track = self.next_track.saturating_add(1);
        self.tracks.insert((tgid, track), tid);
        self.name("thread_name", tgid, tid, &track.name(tgid))?;
        Ok(tid)
    }

    /// The number of the track of an interval that may overlap others there: these have further lanes.
    fn lane(&mut self, tgid: Tgid, track: Track, (start_ns, end_ns): (u64, u64)) -> io::Result<Tid> {
        let lane = self.lanes.place((tgid, track), start_ns, end_ns);
        self.track(tgid, track.with_lane(lane))
    }

    /// An event that takes time.
    fn complete(
        &mut self,
        head: &Head<'_>,
        duration_ns: u64,
        fields: impl FnOnce(&mut Json<'_>),
    ) -> io::Result<()> {
        self.begin(head);
        self.time("dur", duration_ns);
        let mut json = Json(&mut self.event);
        json.open("args");
        fields(&mut json);
        json.close();
        self.end()
    }

    /// An arrow from the submitting call to its execution.
    fn arrow(&mut self, execution: &Execution, to: Tid) -> io::Result<()> {
        let (Some(by), Some(at_ns)) = (execution.submission, execution.submitted_ns()) else { return Ok(()) };
        let (name, category, tgid) = ("launch", EXECUTION, execution.tgid);
        let from = Head { name, category, phase: "s", at_ns, tgid, tid: by.tid };
        let to = Head { phase: "f", at_ns: execution.start_ns, tid: to, ..from };
        for head in [from, to] {
            self.begin(&head);
            let mut json = Json(&mut self.event);
            json.uint("id", execution.id);
            if head.phase == "f" {
                json.text("bp", "e");
            }
            self.end()?;
        }
        Ok(())
    }

    /// Writes an instant on its stream for each GPU operation of these calls.
    fn stream_ops(&mut self, slices: &[Slice]) -> io::Result<()> {
        for op in stream_ops(slices) {
            let call = &op.slice.call;
            let tid = self.track(call.tgid, Track::Stream(op.stream))?;
            let (category, at_ns, tgid) = (type_of(call.class), op.slice.start_ns, call.tgid);
            let head = Head { name: op.name, category, phase: "i", at_ns, tgid, tid };
            self.instant(&head, "t", |json| {
                json.uint("event_id", call.id);
                if let Some(size) = call.effect.size() {
                    json.uint("size", size);
                }
            })?;
        }
        Ok(())
    }

    /// An instant event; `scope` is `t` for a thread, `p` for a process and `g` for global.
    fn instant(
        &mut self,
        head: &Head<'_>,
        scope: &str,
        fields: impl FnOnce(&mut Json<'_>),
    ) -> io::Result<()> {
        self.begin(head);
        let mut json = Json(&mut self.event);
        json.text("s", scope);
        json.open("args");
        fields(&mut json);
        json.close();
        self.end()
    }
}

impl<W: Write> TraceWriter for Chrome<W> {
    fn slices(&mut self, slices: &[Slice]) -> io::Result<()> {
        for Slice { call, start_ns, end_ns, .. } in slices {
            self.introduce(call.tgid, call.tid, &call.process)?;
            let at_ns = *start_ns;
            let (category, tgid, tid) = (type_of(call.class), call.tgid, call.tid);
            let mut head = Head { name: &call.name, category, phase: "X", at_ns, tgid, tid };
            let has_stack = self.stacks.is_new(call);
            let fields = |json: &mut Json<'_>| {
                json.uint("event_id", call.id);
                if call.outcome == Outcome::Unfinished {
                    json.flag("unfinished", true);
                }
                call_fields(call, json);
                if has_stack {
                    stack_field(call, json);
                }
            };
            if matches!(call.outcome, Outcome::Begun | Outcome::Unobserved | Outcome::Instant) {
                head.phase = "i";
                self.instant(&head, "t", fields)?;
                continue;
            }
            self.complete(&head, end_ns - start_ns, fields)?;
        }
        self.stream_ops(slices)
    }

    fn process(&mut self, change: &ProcessEvent) -> io::Result<()> {
        self.introduce(change.tgid, change.tid, &change.process)?;
        let ProcessEvent { at_ns, tgid, tid, .. } = *change;
        let name = change.change.as_str();
        let head = Head { name, category: "process", phase: "i", at_ns, tgid, tid };
        self.instant(&head, "p", |json| process_fields(change, json))
    }

    fn loss(&mut self, loss: &LossEvent) -> io::Result<()> {
        let (name, at_ns) = (loss.cause.as_str(), loss.at_ns);
        let head = Head { name, category: "loss", phase: "i", at_ns, tgid: Tgid(0), tid: Tid(0) };
        self.instant(&head, "g", |json| {
            json.uint("count", loss.count);
            json.text("meaning", loss.cause.meaning());
        })
    }

    fn xid(&mut self, xid: &XidEvent) -> io::Result<()> {
        let head = Head {
            name: "xid",
            category: "kernel",
            phase: "i",
            at_ns: xid.at_ns,
            tgid: Tgid(0),
            tid: Tid(0),
        };
        self.instant(&head, "g", |json| xid_fields(xid, json))
    }

    fn out_of_memory(&mut self, event: &OutOfMemoryEvent) -> io::Result<()> {
        let &OutOfMemoryEvent { at_ns, tgid, tid, .. } = event;
        let head = Head { name: OUT_OF_MEMORY, category: OUT_OF_MEMORY, phase: "i", at_ns, tgid, tid };
        self.instant(&head, "p", |json| out_of_memory_fields(event, json))
    }

    fn execution(&mut self, execution: &Execution) -> io::Result<()> {
        let Execution { tgid, start_ns, end_ns, gpu, stream, .. } = *execution;
        self.introduce(tgid, Tid(tgid.0), &execution.process)?;
        let tid = self.lane(tgid, Track::Gpu { gpu, stream, lane: 0 }, (start_ns, end_ns))?;
        let (name, category) = (execution.kind.title(), EXECUTION);
        let head = Head { name, category, phase: "X", at_ns: start_ns, tgid, tid };
        self.complete(&head, execution.duration_ns(), |json| {
            json.uint("event_id", execution.id);
            execution_fields(execution, json);
        })?;
        self.arrow(execution, tid)
    }

    fn range(&mut self, range: &RangeEvent) -> io::Result<()> {
        let RangeEvent { tgid, start_ns, end_ns, .. } = *range;
        self.introduce(tgid, range.tid, &range.process)?;
        let tid = match range.kind {
            RangeKind::Nested | RangeKind::Mark => self.track(tgid, Track::ThreadRanges(range.tid))?,
            RangeKind::Process => self.lane(tgid, Track::ProcessRanges { lane: 0 }, (start_ns, end_ns))?,
        };
        let head = Head { name: &range.name, category: RANGE, phase: "X", at_ns: start_ns, tgid, tid };
        let fields = |json: &mut Json<'_>| range_fields(range, json);
        match range.kind {
            RangeKind::Mark => self.instant(&Head { phase: "i", ..head }, "t", fields),
            RangeKind::Nested | RangeKind::Process => {
                self.complete(&head, end_ns.saturating_sub(start_ns), fields)
            }
        }
    }

    fn agent(&mut self, state: &AgentEvent) -> io::Result<()> {
        let &AgentEvent { tgid, tid, end_ns: at_ns, .. } = state;
        self.introduce(tgid, tid, &state.process)?;
        let name = state.collection.as_str();
        let head = Head { name, category: AGENT, phase: "i", at_ns, tgid, tid };
        self.instant(&head, "p", |json| agent_fields(state, json))
    }

    fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        let unit = if sample.level == Level::CopyRate { "bytes/s" } else { "bytes" };
        let (name, at_ns, tgid) = (sample.level.as_str(), sample.at_ns, sample.tgid);
        self.begin(&Head { name, category: "counter", phase: "C", at_ns, tgid, tid: Tid(tgid.0) });
        let mut json = Json(&mut self.event);
        json.open("args");
        json.uint(unit, sample.value);
        json.close();
        self.end()
    }

    fn finish(&mut self, end: Option<&End>) -> io::Result<()> {
        // `end` is null if the trace was cut
        let other = json!({ "meta": self.meta, "end": end });
        writeln!(self.out, "\n],\"otherData\":{other}}}")?;
        self.out.flush()
    }
}
