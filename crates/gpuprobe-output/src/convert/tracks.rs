//! The tracks of a Perfetto file: processes with their threads, streams and counters.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use gpuprobe_analysis::Level;
use gpuprobe_event::{ProcessChange, ProcessEvent, Tgid, Tid};

use super::trace_writer::{Track, thread_name};
use crate::proto;

/// The track of losses, which belong to no process.
pub(super) const LOSSES: u64 = 1;
/// Tracks that are remembered. Beyond that all are forgotten and described again, as new tracks with the same names.
const MOST_TRACKS: usize = 1 << 18;
/// Changes of a process that wait for its name. With more of them the process is named at once.
const MOST_WAITING: usize = 16;

mod descriptor {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const THREAD: u32 = 4;
    pub(super) const PARENT_UUID: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
}

const UNIT_NAME: u32 = 6;
const UNIT: u32 = 3;
const UNIT_BYTES: u64 = 3;

#[derive(Default)]
pub(super) struct Tracks {
    processes: HashMap<Tgid, Process>,
    /// Track ids used so far; [`LOSSES`] comes before them.
    count: u64,
    remembered: usize,
    has_losses: bool,
    new: VecDeque<Vec<u8>>,
    named: VecDeque<(u64, ProcessEvent)>,
}

#[derive(Default)]
struct Process {
    uuid: u64,
    is_named: bool,
    has_exited: bool,
    waiting: Vec<ProcessEvent>,
    name: Option<Arc<str>>,
    threads: HashMap<Tid, u64>,
    tracks: HashMap<Track, u64>,
    counters: BTreeMap<Level, u64>,
}

impl Tracks {
    /// The next description of a track that is not yet written.
    pub(super) fn next_new(&mut self) -> Option<Vec<u8>> {
        self.new.pop_front()
    }

    /// The next change of a process that now has a name, and its track.
    pub(super) fn next_waiting(&mut self) -> Option<(u64, ProcessEvent)> {
        self.named.pop_front()
    }

    /// Keeps a change until its process has a name.
    pub(super) fn changed(&mut self, change: &ProcessEvent) {
        if change.change == ProcessChange::Start
            && self.processes.get(&change.tgid).is_some_and(|process| process.has_exited)
        {
            // the pid was reused by another process
            self.processes.remove(&change.tgid);
        }
        let process = self.of(change.tgid);
        process.has_exited |= change.change == ProcessChange::Exit;
        process.name = Some(Arc::clone(&change.process));
        process.waiting.push(change.clone());
        if process.is_named || process.waiting.len() >= MOST_WAITING {
            self.process(change.tgid, &change.process);
        }
    }

    /// Names a process, unless it has a name: readers use the first.
    pub(super) fn process(&mut self, tgid: Tgid, name: &str) {
        let process = self.of(tgid);
        let uuid = process.uuid;
        let waiting = std::mem::take(&mut process.waiting);
        if !std::mem::replace(&mut process.is_named, true) {
            self.describe(uuid, |out| {
                let process = proto::begin(out, descriptor::PROCESS);
                proto::uint(out, 1, tgid.0.into());
                proto::text(out, 6, name);
                proto::end(out, process);
            });
        }
        self.named.extend(waiting.into_iter().map(|change| (uuid, change)));
    }

    /// Names all processes without a name by the last name seen.
    pub(super) fn name_all(&mut self) {
        let mut unnamed: Vec<_> = self
            .processes
            .iter()
            .filter(|(_, p)| !p.is_named)
            .map(|(tgid, p)| (*tgid, p.name.clone()))
            .collect();
        unnamed.sort_unstable();
        for (tgid, name) in unnamed {
            self.process(tgid, name.as_deref().unwrap_or_default());
        }
    }

    pub(super) fn thread(&mut self, tgid: Tgid, tid: Tid) -> u64 {
        if let Some(uuid) = self.of(tgid).threads.get(&tid) {
            return *uuid;
        }
        let uuid = self.next();
        self.of(tgid).threads.insert(tid, uuid);
        self.describe(uuid, |out| {
            let thread = proto::begin(out, descriptor::THREAD);
            proto::uint(out, 1, tgid.0.into());
            proto::uint(out, 2, tid.0.into());
            proto::text(out, 5, &thread_name(tgid, tid));
            proto::end(out, thread);
        });
        uuid
    }

    /// A track that is no thread.
    pub(super) fn track(&mut self, tgid: Tgid, track: Track) -> u64 {
        if let Some(uuid) = self.of(tgid).tracks.get(&track) {
            return *uuid;
        }
        let uuid = self.next();
        let process = self.of(tgid);
        process.tracks.insert(track, uuid);
        let parent = process.uuid;
        self.describe(uuid, |out| {
            proto::uint(out, descriptor::PARENT_UUID, parent);
            proto::text(out, descriptor::NAME, &track.name(tgid));
        });
        uuid
    }

    pub(super) fn counter(&mut self, tgid: Tgid, level: Level) -> u64 {
        if let Some(uuid) = self.of(tgid).counters.get(&level) {
            return *uuid;
        }
        let uuid = self.next();
        let process = self.of(tgid);
        process.counters.insert(level, uuid);
        let parent = process.uuid;
        self.describe(uuid, |out| {
            proto::uint(out, descriptor::PARENT_UUID, parent);
            proto::text(out, descriptor::NAME, level.as_str());
            let counter = proto::begin(out, descriptor::COUNTER);
            match level {
                Level::Live | Level::Copied => proto::uint(out, UNIT, UNIT_BYTES),
                Level::CopyRate => proto::text(out, UNIT_NAME, "bytes/s"),
            }
            proto::end(out, counter);
        });
        uuid
    }

    pub(super) fn losses(&mut self) {
        if !std::mem::replace(&mut self.has_losses, true) {
            self.describe(LOSSES, |out| proto::text(out, descriptor::NAME, "lost"));
        }
    }

    fn of(&mut self, tgid: Tgid) -> &mut Process {
        if self.remembered >= MOST_TRACKS {
            self.remembered = 0;
            self.name_all();
            self.processes.clear();
        }
        let (count, remembered) = (&mut self.count, &mut self.remembered);
        self.processes.entry(tgid).or_insert_with(|| {
            *count += 1;
            *remembered += 1;
            Process { uuid: *count + LOSSES, ..Process::default() }
        })
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.remembered += 1;
        self.count + LOSSES
    }

    fn describe(&mut self, uuid: u64, rest: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        proto::uint(&mut out, descriptor::UUID, uuid);
        rest(&mut out);
        self.new.push_back(out);
    }
}
