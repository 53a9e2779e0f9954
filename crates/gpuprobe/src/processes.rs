//! The processes that are known: who runs, who has ended, and when the kernel's rows of these are taken out.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuprobe_analysis::{Asked, Ended, EndedProcess, Launched, ProcessInfo, ProcessSnapshot};
use gpuprobe_capture::{Batch, Capture, CaptureError, Rows};
use gpuprobe_discover::pod_of;
use gpuprobe_event::counters::{LaunchCounts, ProcessKey, WorkRows};
use gpuprobe_event::{Container, GpuNumbers, ProcessChange, ProcessEvent, Tgid};

/// The shortest time between two passes over the table of counters. A host that starts hundreds of processes a second
/// has a few of them in each pass.
const TAKE_EVERY: Duration = Duration::from_millis(100);
/// So many ended processes do not wait for that time: new ones need their room.
const MANY: usize = 256;
/// The shortest time between two passes over the table of live allocations, which may be a hundred times larger.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Who runs, by pid: there is one program at a time.
    running: HashMap<Tgid, ProcessKey>,
    /// What is known of those that have rows in the kernel.
    infos: HashMap<ProcessKey, ProcessInfo>,
    /// Ended, with rows in the kernel's tables of counters and processes.
    over: HashSet<ProcessKey>,
    /// Ended, with allocations in the kernel's table of live memory.
    holding: HashSet<ProcessKey>,
    ended: Ended,
    /// Whether what they did to memory is nobody's concern: it is followed for the addresses of copies alone.
    without_memory: bool,
    /// Where the kubelet keeps links to the logs of containers, by which their pods are known.
    logs: PathBuf,
    taken: Option<Instant>,
    released: Option<Instant>,
}

/// How long until something may be done again.
fn left(since: Option<Instant>, every: Duration) -> Duration {
    since.map_or(Duration::ZERO, |since| every.saturating_sub(since.elapsed()))
}

impl Processes {
    /// Nobody yet; of those that end, at most so many will be shown one by one.
    pub(crate) fn new(most_ended: u32) -> Self {
        Self { ended: Ended::bounded(most_ended as usize), ..Self::default() }
    }

    /// Of those that end, at most so many are shown one by one from now on, for so long.
    pub(crate) fn keep_ended(&mut self, most: u32, time: Duration) {
        self.ended.keep_most(most as usize);
        self.ended.show_for(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Asks the kubelet's links in this folder for the pods of containers.
    pub(crate) fn with_logs(self, logs: &Path) -> Self {
        Self { logs: logs.to_owned(), ..self }
    }

    /// Leaves out what those that end did to memory.
    pub(crate) fn without_memory(self) -> Self {
        Self { without_memory: true, ..self }
    }

    /// What is known of those that have rows in the kernel.
    pub(crate) fn infos(&self) -> &HashMap<ProcessKey, ProcessInfo> {
        &self.infos
    }

    /// Which of the host's GPUs those of a process are.
    pub(crate) fn set_gpus(&mut self, key: ProcessKey, gpus: GpuNumbers) {
        if let Some(info) = self.infos.get_mut(&key) {
            info.gpus = gpus;
        }
    }

    /// Counts what is new in the rows of launches, and of what was asked of the driver.
    pub(crate) fn look_at(&mut self, work: &WorkRows, now_ns: u64) {
        self.look_at_launches(&work.launches, now_ns);
        for (key, rows) in by_process(&work.commands, |row| row.process) {
            self.infos.entry(key).and_modify(|info| info.asked.look(rows));
        }
        for (key, totals) in &work.unified {
            self.infos.entry(*key).and_modify(|info| info.asked.look_at_unified(totals));
        }
    }

    /// The same, of launches alone.
    pub(crate) fn look_at_launches(&mut self, launches: &[LaunchCounts], now_ns: u64) {
        for (key, rows) in by_process(launches, |row| row.process) {
            self.infos.entry(key).and_modify(|info| info.launched.look(rows, now_ns));
        }
    }

    /// Those that ended and have none any more.
    pub(crate) fn ended(&self) -> &Ended {
        &self.ended
    }

    /// Takes in what happened.
    pub(crate) fn take(&mut self, batch: &Batch, now_ns: u64) {
        let mut all: Vec<_> = batch.first_calls.iter().chain(&batch.processes).collect();
        // the two are told apart from each other; what one process does is in the order of its times
        all.sort_by_key(|(_, process)| process.at_ns);
        for (key, process) in all {
            self.change(*key, process, now_ns);
        }
    }

    fn change(&mut self, key: ProcessKey, process: &ProcessEvent, now_ns: u64) {
        match process.change {
            ProcessChange::Start => {
                self.end_others(key, now_ns);
                let mut info = self.info(process);
                info.launched = self.launched_after(key, &info);
                self.running.insert(key.tgid, key);
                self.infos.insert(key, info);
            }
            // another program runs in this process: what the one before it held is gone
            ProcessChange::Exec => self.end_others(key, now_ns),
            ProcessChange::Exit => {
                // its start may have been lost; its rows are there all the same
                let info = self.info(process);
                self.infos.entry(key).or_insert(info);
                self.end(key, now_ns);
            }
        }
    }

    /// Whoever had this pid before has ended, also where that was not told.
    fn end_others(&mut self, key: ProcessKey, now_ns: u64) {
        if let Some(before) = self.running.get(&key.tgid).copied().filter(|before| *before != key) {
            self.end(before, now_ns);
        }
    }

    fn end(&mut self, key: ProcessKey, now_ns: u64) {
        if self.running.get(&key.tgid) == Some(&key) {
            self.running.remove(&key.tgid);
        }
        if let Some(info) = self.infos.get_mut(&key) {
            info.exited_at_ns.get_or_insert(now_ns);
            self.over.insert(key);
        }
    }

    /// How long [`Processes::settle`] can wait; `None` where there is nothing for it to do.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.take_due().into_iter().chain(self.release_due()).min()
    }

    fn take_due(&self) -> Option<Duration> {
        match self.over.len() {
            0 => None,
            MANY.. => Some(Duration::ZERO),
            _ => Some(left(self.taken, TAKE_EVERY)),
        }
    }

    /// Whether [`Processes::settle`] would take the rows of some now.
    pub(crate) fn takes_now(&self) -> bool {
        self.take_due() == Some(Duration::ZERO)
    }

    fn release_due(&self) -> Option<Duration> {
        (!self.holding.is_empty()).then(|| left(self.released, RELEASE_EVERY))
    }

    /// Takes the rows of ended processes out of the kernel, all of them in one pass, when it is time.
    pub(crate) fn settle(&mut self, capture: &mut Capture) -> Result<(), CaptureError> {
        if self.takes_now() {
            let rows = capture.take_rows(&self.over)?;
            self.keep(rows);
            self.taken = Some(Instant::now());
        }
        if self.release_due() == Some(Duration::ZERO) {
            self.release(capture)?;
        }
        Ok(())
    }

    /// Takes the allocations of ended processes out of the kernel now.
    pub(crate) fn release(&mut self, capture: &mut Capture) -> Result<(), CaptureError> {
        if !self.holding.is_empty() {
            capture.release_memory(&self.holding)?;
            self.holding.clear();
            self.released = Some(Instant::now());
        }
        Ok(())
    }

    /// Keeps the last rows of those that are over.
    fn keep(&mut self, rows: Rows) {
        let mut ended: HashMap<ProcessKey, EndedProcess> = HashMap::new();
        for key in self.over.drain() {
            let info = self.infos.remove(&key).unwrap_or_default();
            let work = WorkRows::default();
            let (calls, failures) = (Vec::new(), Vec::new());
            ended.insert(key, EndedProcess { key, info, calls, failures, memory: None, work });
        }
        for row in rows.failures {
            ended.entry(row.process).and_modify(|process| process.failures.push(row));
        }
        for row in rows.calls {
            if let Some(process) = ended.get_mut(&row.process) {
                process.calls.push(row);
            }
        }
        self.holding.extend(rows.holding);
        for row in rows.memory.into_iter().filter(|_| !self.without_memory) {
            if let Some(process) = ended.get_mut(&row.process) {
                process.memory = Some(row);
            }
        }
        keep_work(&mut ended, rows.work);
        let mut ended: Vec<_> = ended.into_values().collect();
        ended.sort_by_key(|p| (p.info.exited_at_ns, p.key));
        ended.into_iter().for_each(|process| self.ended.keep(process));
        let Self { ended, running, over, infos, .. } = self;
        ended.make_room(|process| shares_series(running, over, infos, process));
    }

    /// What a process launched that begins now: nothing, but those before it that had its labels share its series.
    fn launched_after(&self, key: ProcessKey, info: &ProcessInfo) -> Launched {
        let over = with_pid(&self.running, &self.over, &self.infos, key.tgid);
        let over = over.filter(|before| before.has_labels_of(info)).map(|before| before.launched.series());
        let kept = self.ended.with_pid(key.tgid).filter(|before| before.is_labelled(key.tgid, info));
        Launched::after(over.chain(kept.map(|before| &before.work.launched)))
    }

    fn info(&self, process: &ProcessEvent) -> ProcessInfo {
        let container = process.container.as_deref();
        ProcessInfo {
            name: process.process.to_string(),
            ns_pid: process.ns_pid,
            container: container.map(|id| Container { id: id.to_owned(), pod: pod_of(&self.logs, id) }),
            exited_at_ns: None,
            gpus: GpuNumbers::default(),
            launched: Launched::default(),
            asked: Asked::default(),
        }
    }

    /// Forgets those that ended long ago.
    pub(crate) fn forget_old(&mut self, now_ns: u64) {
        let Self { ended, running, over, infos, .. } = self;
        ended.forget_old(now_ns, |process| shares_series(running, over, infos, process));
    }
}

/// What is known of those that have rows in the kernel and this pid: one that runs, and those that are over.
fn with_pid<'a>(
    running: &'a HashMap<Tgid, ProcessKey>,
    over: &'a HashSet<ProcessKey>,
    infos: &'a HashMap<ProcessKey, ProcessInfo>,
    pid: Tgid,
) -> impl Iterator<Item = &'a ProcessInfo> {
    let over = over.iter().filter(move |key| key.tgid == pid);
    running.get(&pid).into_iter().chain(over).filter_map(|key| infos.get(key))
}

/// Whether the series of a process that ended are those of one that has rows in the kernel.
fn shares_series(
    running: &HashMap<Tgid, ProcessKey>,
    over: &HashSet<ProcessKey>,
    infos: &HashMap<ProcessKey, ProcessInfo>,
    process: &ProcessSnapshot,
) -> bool {
    with_pid(running, over, infos, process.pid).any(|info| process.is_labelled(process.pid, info))
}

fn by_process<T>(rows: &[T], of: impl Fn(&T) -> ProcessKey) -> HashMap<ProcessKey, Vec<&T>> {
    let mut all: HashMap<_, Vec<_>> = HashMap::new();
    rows.iter().for_each(|row| all.entry(of(row)).or_default().push(row));
    all
}

/// Gives the rows about work to the processes that they are of.
fn keep_work(ended: &mut HashMap<ProcessKey, EndedProcess>, rows: WorkRows) {
    for row in rows.calls {
        ended.entry(row.process).and_modify(|process| process.calls.push(row));
    }
    for row in rows.launches {
        ended.entry(row.process).and_modify(|process| process.work.launches.push(row));
    }
    for row in rows.graphs {
        ended.entry(row.process).and_modify(|process| process.work.graphs.push(row));
    }
    for row in rows.copies {
        ended.entry(row.process).and_modify(|process| process.work.copies.push(row));
    }
    for row in rows.commands {
        ended.entry(row.process).and_modify(|process| process.work.commands.push(row));
    }
    for row in rows.unified {
        ended.entry(row.0).and_modify(|process| process.work.unified.push(row));
    }
    for row in rows.gaps {
        ended.entry(row.process).and_modify(|process| process.work.gaps.push(row));
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tid;
    use gpuprobe_event::counters::{CallCounts, Held, LATENCY_BUCKETS, ProcessMemory};
    use gpuprobe_event::{DriverTime, FunctionId, Space};

    use super::*;

    fn event(change: ProcessChange, tgid: u32, instance: u64, at_ns: u64) -> (ProcessKey, ProcessEvent) {
        let event = ProcessEvent {
            id: 0,
            at_ns,
            change,
            tgid: Tgid(tgid),
            tid: Tid(tgid),
            process: "app".into(),
            parent: None,
            ns_pid: None,
            container: None,
            exit_status: None,
            held: Vec::new(),
        };
        (ProcessKey { tgid: Tgid(tgid), instance }, event)
    }

    fn rows(keys: &[ProcessKey], live: u64) -> Rows {
        let call = |&process| CallCounts {
            process,
            function: FunctionId(1),
            calls: 7,
            errors: 0,
            bytes: 0,
            total_ns: 0,
            driver: DriverTime::default(),
            latency: [0; LATENCY_BUCKETS],
        };
        let memory = |&process| ProcessMemory {
            process,
            held: [Held { live_bytes: live, live_allocations: live }; Space::ALL.len()],
            allocated_bytes: 0,
            freed_bytes: 0,
            allocations: 1,
            failed_allocations: 0,
            frees: 0,
            failed_frees: 0,
            unknown_frees: 0,
            replaced: 0,
            replaced_bytes: 0,
            ended_allocations: 0,
            ended_bytes: 0,
            peak_bytes: 0,
        };
        Rows {
            calls: keys.iter().map(call).collect(),
            failures: Vec::new(),
            memory: keys.iter().map(memory).collect(),
            sites: Vec::new(),
            work: WorkRows::default(),
            holding: keys.iter().filter(|_| live > 0).copied().collect(),
        }
    }

    #[test]
    fn what_comes_in_two_lists_is_taken_in_the_order_of_its_times() {
        use ProcessChange::{Exec, Exit, Start};
        let mut processes = Processes::default();
        // a program executes another, whose first call comes in the other list; the second ends too
        let batch = Batch {
            processes: vec![event(Start, 5, 1, 10), event(Exec, 5, 2, 20), event(Exit, 5, 2, 40)],
            first_calls: vec![event(Start, 5, 2, 30)],
            ..Batch::default()
        };
        processes.take(&batch, 100);
        assert_eq!(processes.over.len(), 2);
        assert!(processes.running.is_empty());
        assert!(processes.infos.values().all(|i| i.exited_at_ns == Some(100)));
    }

    #[test]
    fn a_pid_used_again_ends_who_had_it_and_an_exit_without_a_start_counts() {
        use ProcessChange::{Exit, Start};
        let mut processes = Processes::default();
        let start = Batch {
            processes: vec![event(Start, 5, 1, 10), event(Start, 5, 9, 20), event(Exit, 6, 1, 30)],
            ..Batch::default()
        };
        processes.take(&start, 100);
        let (first, second, unknown) =
            (event(Start, 5, 1, 0).0, event(Start, 5, 9, 0).0, event(Exit, 6, 1, 0).0);
        assert_eq!(processes.over, HashSet::from([first, unknown]));
        assert_eq!(processes.running[&Tgid(5)], second);
        assert_eq!(processes.due(), Some(Duration::ZERO));

        processes.keep(rows(&[first], 3));
        assert_eq!(processes.holding, HashSet::from([first]), "only who holds something is looked for");
        let kept: Vec<_> = processes.ended().iter().map(|p| (p.pid, p.functions[0].calls)).collect();
        assert_eq!(kept, [(first.tgid, 7)], "who did nothing is not kept");
        assert_eq!(processes.infos().keys().collect::<Vec<_>>(), [&second]);
    }

    #[test]
    fn memory_that_is_followed_for_its_addresses_alone_is_nobodys_concern() {
        let (key, start) = event(ProcessChange::Start, 5, 1, 10);
        let exit = event(ProcessChange::Exit, 5, 1, 20);
        for (processes, allocations) in
            [(Processes::default(), 1), (Processes::default().without_memory(), 0)]
        {
            let mut processes = processes;
            let batch = Batch { processes: vec![(key, start.clone()), exit.clone()], ..Batch::default() };
            processes.take(&batch, 100);
            processes.keep(rows(&[key], 3));
            assert_eq!(processes.ended().totals().allocations, allocations);
            assert_eq!(processes.ended().iter().count(), 1);
            assert_eq!(processes.holding, HashSet::from([key]), "its addresses are taken out all the same");
        }
    }

    #[test]
    fn a_program_that_executes_itself_keeps_its_series_to_the_end() {
        use ProcessChange::{Exec, Exit, Start};
        let mut processes = Processes::new(0);
        let calls = |processes: &Processes| {
            let shown = processes.ended().iter().flat_map(|p| &p.functions).map(|f| f.calls).sum::<u64>();
            let past = processes.ended().past().flat_map(|p| &p.functions).map(|f| f.calls).sum::<u64>();
            (shown, past)
        };
        let (first, second) = (event(Start, 5, 1, 0).0, event(Start, 5, 2, 0).0);
        let begin = vec![event(Start, 5, 1, 10), event(Exec, 5, 2, 20), event(Start, 5, 2, 30)];
        processes.take(&Batch { processes: begin, ..Batch::default() }, 100);
        processes.keep(rows(&[first], 0));
        processes.forget_old(u64::MAX);
        assert_eq!(calls(&processes), (7, 0), "the series of the second is that of the first");

        processes.take(&Batch { processes: vec![event(Exit, 5, 2, 40)], ..Batch::default() }, 200);
        processes.forget_old(u64::MAX);
        assert_eq!(calls(&processes), (7, 0), "the rows of the second are still in the kernel");
        processes.keep(rows(&[second], 0));
        assert_eq!(calls(&processes), (0, 14));
        assert_eq!(processes.ended().past().map(|p| p.processes).collect::<Vec<_>>(), [2]);
    }
}
