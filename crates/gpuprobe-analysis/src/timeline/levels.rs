//! Live memory and copied bytes of processes over time, as samples at the times of change.

use std::collections::HashMap;

use gpuprobe_event::{Allocation, Call, Effect, Event, MemoryAmount, ProcessChange, ProcessEvent, Tgid};

/// The interval over which a rate is computed.
const WINDOW_NS: u64 = 10_000_000;
/// Processes that are followed at once.
const MOST_PROCESSES: usize = 1 << 18;

/// A quantity over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Live bytes of all kinds.
    Live,
    /// Bytes moved by copies and memsets since the start of the trace.
    Copied,
    /// Bytes moved per second, in intervals of 10 ms, by the time the calls return. For asynchronous copies that is
    /// the time of submission, not of execution.
    CopyRate,
}

impl Level {
    pub const ALL: [Self; 3] = [Self::Live, Self::Copied, Self::CopyRate];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live memory",
            Self::Copied => "copied",
            Self::CopyRate => "copy rate",
        }
    }
}

/// A value from a point in time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub at_ns: u64,
    pub tgid: Tgid,
    pub level: Level,
    /// Bytes, or bytes per second.
    pub value: u64,
}

/// Follows the levels of all processes. The samples of one level of one process are sorted by time.
#[derive(Debug, Default)]
pub struct Levels {
    processes: HashMap<Tgid, Process>,
    /// How often there was no room for a process since the last clean-up.
    refused: usize,
}

#[derive(Debug, Default)]
struct Process {
    live: u64,
    copied: u64,
    /// The current interval of the copy rate, and the bytes copied in it.
    window: u64,
    in_window: u64,
    /// The time of the last sample. Calls of several threads are recorded roughly in the order of their returns. A
    /// later record replaces the value of an earlier one, so its time must not be before the earlier one's.
    at_ns: u64,
    exited_ns: Option<u64>,
}

impl Levels {
    /// Takes in an event and appends the samples that it causes to `out`.
    pub fn feed(&mut self, event: &Event, out: &mut Vec<Sample>) {
        match event {
            Event::Call(call) => self.call(call, out),
            Event::Process(change) if change.change == ProcessChange::Start => self.start(change, out),
            Event::Process(change) => {
                let Some(process) = self.processes.get_mut(&change.tgid) else { return };
                let at_ns = process.later(change.at_ns);
                process.exited_ns = Some(at_ns);
                if std::mem::take(&mut process.live) > 0 {
                    out.push(Sample { at_ns, tgid: change.tgid, level: Level::Live, value: 0 });
                }
            }
            Event::Loss(_)
            | Event::Xid(_)
            | Event::OutOfMemory(_)
            | Event::Execution(_)
            | Event::Range(_)
            | Event::Agent(_) => {}
        }
    }

    fn start(&mut self, start: &ProcessEvent, out: &mut Vec<Sample>) {
        if let Some(process) = self.processes.get_mut(&start.tgid) {
            process.exited_ns = None;
        }
        if start.live.is_empty() || !self.has_room(start.tgid) {
            return;
        }
        // the trace starts with memory that was allocated before
        let process = self.processes.entry(start.tgid).or_default();
        process.live = bytes_of(&start.live);
        let (at_ns, value) = (process.later(start.at_ns), process.live);
        out.push(Sample { at_ns, tgid: start.tgid, level: Level::Live, value });
    }

    /// Whether a process is followed or can be.
    fn has_room(&mut self, tgid: Tgid) -> bool {
        if self.processes.len() < MOST_PROCESSES || self.processes.contains_key(&tgid) {
            return true;
        }
        // no real trace has more processes at once. Processes without live memory are forgotten and start again. If
        // there are none, the next search is made only after many more refusals
        if self.refused.is_multiple_of(MOST_PROCESSES) {
            self.processes.retain(|_, process| process.live > 0 && process.exited_ns.is_none());
        }
        let has_room = self.processes.len() < MOST_PROCESSES;
        self.refused = if has_room { 0 } else { self.refused + 1 };
        has_room
    }

    /// Ends the trace and appends the last rates.
    pub fn finish(&mut self, out: &mut Vec<Sample>) {
        let mut all: Vec<_> = self.processes.drain().collect();
        all.sort_unstable_by_key(|(tgid, _)| *tgid);
        for (tgid, mut process) in all {
            process.rate(tgid, u64::MAX, out);
        }
    }

    fn call(&mut self, call: &Call, out: &mut Vec<Sample>) {
        if !call.took_effect() {
            return;
        }
        let duration_ns = call.duration_ns().unwrap_or(0);
        let change = match &call.effect {
            Effect::Transfer(_) => Change { moved: call.moved_bytes(), ..Change::default() },
            Effect::Alloc(Allocation { bytes, replaced, .. }) => Change {
                allocated: *bytes,
                freed: replaced.map_or(0, |replaced| replaced.bytes),
                ..Change::default()
            },
            Effect::Free(free) => {
                Change { freed: free.freed.map_or(0, |freed| freed.bytes), ..Change::default() }
            }
            Effect::ContextEnd(freed) => Change { freed: bytes_of(freed), ..Change::default() },
            _ => return,
        };
        if change == Change::default() || !self.has_room(call.tgid) {
            return;
        }
        let process = self.processes.entry(call.tgid).or_default();
        if process.exited_ns.is_some_and(|at| call.start_ns < at) {
            // a late record of an exited process
            return;
        }
        let at_ns = process.later(call.start_ns.saturating_add(duration_ns));
        let sample = |level, value| Sample { at_ns, tgid: call.tgid, level, value };
        if change.moved > 0 {
            process.rate(call.tgid, at_ns / WINDOW_NS, out);
            process.in_window = process.in_window.saturating_add(change.moved);
            process.copied = process.copied.saturating_add(change.moved);
            out.push(sample(Level::Copied, process.copied));
        } else {
            // if records were lost, more may be freed than was allocated
            process.live = process.live.saturating_sub(change.freed).saturating_add(change.allocated);
            out.push(sample(Level::Live, process.live));
        }
    }
}

/// The change that one call makes, in bytes: either copied bytes or live bytes.
#[derive(Debug, Default, PartialEq)]
struct Change {
    moved: u64,
    allocated: u64,
    /// Subtracted before `allocated` is added.
    freed: u64,
}

fn bytes_of(memory: &[MemoryAmount]) -> u64 {
    memory.iter().fold(0, |sum, amount| sum.saturating_add(amount.bytes))
}

impl Process {
    fn later(&mut self, at_ns: u64) -> u64 {
        self.at_ns = self.at_ns.max(at_ns);
        self.at_ns
    }

    /// Appends the rate of the last interval when another one starts.
    fn rate(&mut self, tgid: Tgid, window: u64, out: &mut Vec<Sample>) {
        if window <= self.window {
            return;
        }
        let last = std::mem::replace(&mut self.window, window);
        let bytes = std::mem::take(&mut self.in_window);
        if bytes == 0 {
            return;
        }
        let mut push = |window: u64, value| {
            let at_ns = window.saturating_mul(WINDOW_NS);
            out.push(Sample { at_ns, tgid, level: Level::CopyRate, value });
        };
        push(last, bytes.saturating_mul(1_000_000_000 / WINDOW_NS));
        if window > last + 1 {
            push(last + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::{CopyDirection, HostMemory};
    use gpuprobe_event::{CopyPart, Space, Transfer};

    use super::*;
    use crate::samples::{alloc, call, copy, free, process, unfinished};

    fn fed(events: impl IntoIterator<Item = Event>) -> Vec<(Level, u64, u64)> {
        let (mut levels, mut out) = (Levels::default(), Vec::new());
        events.into_iter().for_each(|event| levels.feed(&event, &mut out));
        levels.finish(&mut out);
        out.into_iter().map(|sample| (sample.level, sample.at_ns, sample.value)).collect()
    }

    fn call_event(call: Call) -> Event {
        Event::Call(Box::new(call))
    }

    fn ends_at(call: Call, end_ns: u64) -> Event {
        call_event(Call { start_ns: end_ns - 1000, ..call })
    }

    #[test]
    fn memory_is_live_until_it_is_freed_or_its_process_exits() {
        let events = [
            call_event(alloc(0x10, 100, 10)),
            call_event(alloc(0x20, 50, 20)),
            call_event(free(0x10, Some(100), 30)),
            Event::Process(process(ProcessChange::Exit, 5000, Some(0))),
            call_event(alloc(0x30, 7, 40)),
        ];
        let live = |at, value| (Level::Live, at, value);
        assert_eq!(fed(events), [live(10, 100), live(20, 150), live(1030, 50), live(5000, 0)]);
    }

    #[test]
    fn a_trace_can_start_with_live_memory() {
        let kind = |allocations, bytes| MemoryAmount { kind: Space::Device, allocations, bytes };
        let live = vec![kind(2, 150), kind(1, 50)];
        let start = ProcessEvent { live, ..process(ProcessChange::Start, 5, None) };
        let events = [Event::Process(start), call_event(free(0x10, Some(100), 30))];
        assert_eq!(fed(events), [(Level::Live, 5, 200), (Level::Live, 1030, 100)]);
    }

    #[test]
    fn a_later_record_has_no_earlier_time() {
        let events = [call_event(alloc(0x10, 100, 5000)), call_event(free(0x10, Some(100), 30))];
        assert_eq!(fed(events), [(Level::Live, 5000, 100), (Level::Live, 5000, 0)]);
    }

    #[test]
    fn copy_rates_are_computed_by_interval() {
        let window = WINDOW_NS;
        let copied = |bytes, end_ns| ends_at(copy(CopyDirection::HostToDevice, bytes, 0), end_ns);
        let events = [
            copied(10, window + 1000),
            copied(20, window + 2000),
            copied(5, 2 * window + 1000),
            copied(1, 9 * window),
        ];
        let rates: Vec<_> = fed(events).into_iter().filter(|(level, ..)| *level == Level::CopyRate).collect();
        let rate = |window: u64, value| (Level::CopyRate, window * WINDOW_NS, value);
        assert_eq!(rates, [rate(1, 3000), rate(2, 500), rate(3, 0), rate(9, 100), rate(10, 0)]);
    }

    #[test]
    fn a_batch_of_copies_is_the_sum_of_its_parts() {
        let (direction, host) = (CopyDirection::Unknown, HostMemory::Unknown);
        let part = |bytes| CopyPart { direction, host, copies: 1, bytes };
        let mut batch = copy(direction, 0, 0);
        batch.effect =
            Effect::Transfer(Transfer { parts: vec![part(10), part(5)], ..Transfer::new(direction, true) });
        assert_eq!(fed([call_event(batch)])[0], (Level::Copied, 1100, 15));
    }

    #[test]
    fn failures_and_calls_without_bytes_change_nothing() {
        let sync = call(gpuprobe_event::Api::Runtime, "cudaDeviceSynchronize", 0);
        let events = [copy(CopyDirection::HostToDevice, 9, 1), unfinished(alloc(0x10, 1, 10)), sync];
        assert_eq!(fed(events.map(call_event)), []);
    }

    #[test]
    fn the_search_for_room_is_not_repeated_for_every_process_beyond_the_bound() {
        let mut levels = Levels::default();
        let mut of = |pid: u32| {
            let mut out = Vec::new();
            levels.feed(&call_event(Call { tgid: Tgid(pid), ..alloc(0x10, 1, 10) }), &mut out);
            out.len()
        };
        let most = u32::try_from(MOST_PROCESSES).unwrap();
        assert_eq!((0..most).map(&mut of).sum::<usize>(), MOST_PROCESSES);
        // searching all processes for each of these would take minutes
        assert_eq!((most..most + 100_000).map(&mut of).sum::<usize>(), 0);
        assert_eq!(of(5), 1);
    }

    #[test]
    fn implausible_sums_do_not_overflow() {
        let big = || ends_at(copy(CopyDirection::Unknown, u64::MAX, 0), u64::MAX);
        let levels = fed([big(), big(), call_event(alloc(1, u64::MAX, u64::MAX))]);
        assert!(levels.iter().all(|(_, _, value)| *value == u64::MAX || *value == 0), "{levels:?}");
    }
}
