//! The known processes, running and exited. The BPF rows of exited processes are read and removed in batches.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuprobe_analysis::{
    CudaKernelSeries, ExitedProcess, ExitedProcesses, GpuOps, KernelModuleRequests, LaunchTracker,
    ProcessInfo, ProcessSnapshot,
};
use gpuprobe_capture::{Batch, Capture, CaptureError, ExitedRows};
use gpuprobe_discover::pod_of;
use gpuprobe_event::counters::{GpuOpRows, LaunchCounts, ProcessKey};
use gpuprobe_event::{Container, Gpu, GpuNumbers, ProcessChange, ProcessEvent, Tgid};

/// Minimum time between two passes over the table of counters. On a host that starts hundreds of processes a second,
/// each pass handles several.
const TAKE_EVERY: Duration = Duration::from_millis(100);
/// From this many exited processes on, a pass starts at once: new processes need the rows.
const MANY: usize = 256;
/// Minimum time between two passes over the table of live allocations, which may be a hundred times larger.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Running processes by pid. A process gets a new key at exec.
    running: HashMap<Tgid, ProcessKey>,
    /// Processes that have rows in the BPF tables.
    infos: HashMap<ProcessKey, ProcessInfo>,
    /// Exited, with rows in the BPF tables of counters and processes.
    exited: HashSet<ProcessKey>,
    /// Exited, with allocations in the BPF table of live memory.
    exited_with_live_memory: HashSet<ProcessKey>,
    /// Exited, without rows in the BPF tables.
    archive: ExitedProcesses,
    /// Memory is tracked only for the addresses of copies, and not shown.
    without_memory: bool,
    /// The folder with the links of the kubelet to container logs; pod names are taken from them.
    logs: PathBuf,
    collected: Option<Instant>,
    released: Option<Instant>,
}

/// Time until an interval has passed.
fn left(since: Option<Instant>, every: Duration) -> Duration {
    since.map_or(Duration::ZERO, |since| every.saturating_sub(since.elapsed()))
}

impl Processes {
    /// Without processes. At most this many exited processes will be shown one by one.
    pub(crate) fn new(most_exited: u32) -> Self {
        Self { archive: ExitedProcesses::bounded(most_exited as usize), ..Self::default() }
    }

    /// Changes how many exited processes are shown one by one, and for how long.
    pub(crate) fn set_retention(&mut self, most: u32, time: Duration) {
        self.archive.keep_most(most as usize);
        self.archive.list_for(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Takes pod names from the links of the kubelet in this folder.
    pub(crate) fn with_logs(self, logs: &Path) -> Self {
        Self { logs: logs.to_owned(), ..self }
    }

    /// Omits the memory totals of exited processes.
    pub(crate) fn without_memory(self) -> Self {
        Self { without_memory: true, ..self }
    }

    /// Processes that have rows in the BPF tables.
    pub(crate) fn infos(&self) -> &HashMap<ProcessKey, ProcessInfo> {
        &self.infos
    }

    /// Sets the host's numbers of the GPUs of a process.
    pub(crate) fn set_gpus(&mut self, key: ProcessKey, gpus: GpuNumbers) {
        if let Some(info) = self.infos.get_mut(&key) {
            info.gpus = gpus;
        }
    }

    /// The host's number of a GPU of a process, running or exited.
    pub(crate) fn host_gpu(&self, pid: Tgid, gpu: u8) -> Option<u8> {
        let exited = || self.infos.keys().filter(|key| key.tgid == pid).max_by_key(|key| key.instance);
        let info = self.infos.get(self.running.get(&pid).or_else(exited)?)?;
        match info.gpus.of(gpu) {
            Gpu::Host(number) => Some(number),
            Gpu::OfProcess(_) => None,
        }
    }

    /// Adds what is new in the rows of launches, ioctl commands and unified memory.
    pub(crate) fn update(&mut self, gpu_ops: &GpuOpRows, now_ns: u64) {
        self.update_launches(&gpu_ops.launches, now_ns);
        for (key, rows) in by_process(&gpu_ops.graph_kernels, |row| row.process) {
            self.infos.entry(key).and_modify(|info| info.graph_kernels.update(rows, now_ns));
        }
        for (key, rows) in by_process(&gpu_ops.commands, |row| row.process) {
            self.infos.entry(key).and_modify(|info| info.requests.update(rows));
        }
        for (key, totals) in &gpu_ops.unified {
            self.infos.entry(*key).and_modify(|info| info.requests.update_unified(totals));
        }
    }

    /// The same for launches only.
    pub(crate) fn update_launches(&mut self, launches: &[LaunchCounts], now_ns: u64) {
        for (key, rows) in by_process(launches, |row| row.process) {
            self.infos.entry(key).and_modify(|info| info.launched.update(rows, now_ns));
        }
    }

    /// Exited processes without rows in the BPF tables.
    pub(crate) fn archive(&self) -> &ExitedProcesses {
        &self.archive
    }

    /// Processes that were moved to the sums by name since the last call of this.
    pub(crate) fn take_summed_up(&mut self) -> Vec<Arc<ProcessSnapshot>> {
        self.archive.take_summed_up()
    }

    /// Takes in the process events of a batch.
    pub(crate) fn take(&mut self, batch: &Batch, now_ns: u64) {
        let mut all: Vec<_> = batch.first_calls.iter().chain(&batch.processes).collect();
        // the two lists are separate; the events of a process must be handled in the order of their times
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
                (info.launched, info.graph_kernels) = self.launched_after(key, &info);
                self.running.insert(key.tgid, key);
                self.infos.insert(key, info);
            }
            // another program runs in this process: the memory of the previous one has been freed
            ProcessChange::Exec => self.end_others(key, now_ns),
            ProcessChange::Exit => {
                // its start event may be lost, but it has rows
                let info = self.info(process);
                self.infos.entry(key).or_insert(info);
                self.end(key, now_ns);
            }
        }
    }

    /// The previous process with this pid has exited, even if its exit event was lost.
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
            self.exited.insert(key);
        }
    }

    /// Time until [`Processes::collect_exited`] must run; `None` if there is nothing to collect.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.take_due().into_iter().chain(self.release_due()).min()
    }

    fn take_due(&self) -> Option<Duration> {
        match self.exited.len() {
            0 => None,
            MANY.. => Some(Duration::ZERO),
            _ => Some(left(self.collected, TAKE_EVERY)),
        }
    }

    /// Whether [`Processes::collect_exited`] would read rows now.
    pub(crate) fn rows_are_due(&self) -> bool {
        self.take_due() == Some(Duration::ZERO)
    }

    fn release_due(&self) -> Option<Duration> {
        (!self.exited_with_live_memory.is_empty()).then(|| left(self.released, RELEASE_EVERY))
    }

    /// Reads and removes the BPF rows of all exited processes in one pass, if it is time.
    pub(crate) fn collect_exited(&mut self, capture: &mut Capture) -> Result<(), CaptureError> {
        if self.rows_are_due() {
            let rows = capture.take_rows(&self.exited)?;
            self.archive_rows(rows);
            self.collected = Some(Instant::now());
        }
        if self.release_due() == Some(Duration::ZERO) {
            self.release(capture)?;
        }
        Ok(())
    }

    /// Removes the allocations of exited processes from the BPF table now.
    pub(crate) fn release(&mut self, capture: &mut Capture) -> Result<(), CaptureError> {
        if !self.exited_with_live_memory.is_empty() {
            capture.release_memory(&self.exited_with_live_memory)?;
            self.exited_with_live_memory.clear();
            self.released = Some(Instant::now());
        }
        Ok(())
    }

    /// Moves exited processes with their last rows to the archive.
    fn archive_rows(&mut self, rows: ExitedRows) {
        let mut exited: HashMap<ProcessKey, ExitedProcess> = HashMap::new();
        for key in self.exited.drain() {
            let info = self.infos.remove(&key).unwrap_or_default();
            let work = GpuOpRows::default();
            let (calls, failures) = (Vec::new(), Vec::new());
            exited.insert(key, ExitedProcess { key, info, calls, failures, memory: None, gpu_ops: work });
        }
        for row in rows.failures {
            exited.entry(row.process).and_modify(|process| process.failures.push(row));
        }
        for row in rows.calls {
            if let Some(process) = exited.get_mut(&row.process) {
                process.calls.push(row);
            }
        }
        self.exited_with_live_memory.extend(rows.exited_with_live_memory);
        for row in rows.memory.into_iter().filter(|_| !self.without_memory) {
            if let Some(process) = exited.get_mut(&row.process) {
                process.memory = Some(row);
            }
        }
        add_gpu_op_rows(&mut exited, rows.gpu_ops);
        let mut exited: Vec<_> = exited.into_values().collect();
        exited.sort_by_key(|p| (p.info.exited_at_ns, p.key));
        exited.into_iter().for_each(|process| self.archive.keep(process));
        let Self { archive, running, exited, infos, .. } = self;
        archive.make_room(|process| shares_series(running, exited, infos, process));
    }

    /// The series of launches, and of CUDA kernels in graphs, of a new process. Earlier processes with the same labels
    /// share them.
    fn launched_after(&self, key: ProcessKey, info: &ProcessInfo) -> (LaunchTracker, LaunchTracker) {
        let earlier = with_pid(&self.running, &self.exited, &self.infos, key.tgid);
        let earlier: Vec<_> = earlier.filter(|before| before.has_labels_of(info)).collect();
        let archived = self.archive.with_pid(key.tgid).filter(|before| before.is_labelled(key.tgid, info));
        let archived: Vec<_> = archived.map(|before| &before.gpu_ops).collect();
        let series = |info: fn(&ProcessInfo) -> &LaunchTracker, ops: fn(&GpuOps) -> &CudaKernelSeries| {
            let earlier = earlier.iter().map(|before| info(before).series());
            LaunchTracker::after(earlier.chain(archived.iter().map(|before| ops(before))))
        };
        let launched = series(|info| &info.launched, |ops| &ops.launched);
        (launched, series(|info| &info.graph_kernels, |ops| &ops.graph_kernels))
    }

    fn info(&self, process: &ProcessEvent) -> ProcessInfo {
        let container = process.container.as_deref();
        ProcessInfo {
            name: process.process.to_string(),
            ns_pid: process.ns_pid,
            container: container.map(|id| Container { id: id.to_owned(), pod: pod_of(&self.logs, id) }),
            uid: owner_of(process.tgid),
            exited_at_ns: None,
            gpus: GpuNumbers::default(),
            launched: LaunchTracker::default(),
            graph_kernels: LaunchTracker::default(),
            requests: KernelModuleRequests::default(),
        }
    }

    /// Forgets processes that exited long ago.
    pub(crate) fn forget_old(&mut self, now_ns: u64) {
        let Self { archive, running, exited, infos, .. } = self;
        archive.forget_old(now_ns, |process| shares_series(running, exited, infos, process));
    }
}

/// The user of a process; `None` if it has exited.
fn owner_of(pid: Tgid) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid())
}

/// The processes with this pid that have rows in the BPF tables: the running one and exited ones.
fn with_pid<'a>(
    running: &'a HashMap<Tgid, ProcessKey>,
    exited: &'a HashSet<ProcessKey>,
    infos: &'a HashMap<ProcessKey, ProcessInfo>,
    pid: Tgid,
) -> impl Iterator<Item = &'a ProcessInfo> {
    let exited = exited.iter().filter(move |key| key.tgid == pid);
    running.get(&pid).into_iter().chain(exited).filter_map(|key| infos.get(key))
}

/// Whether an archived process shares its metric series with one that has rows in the BPF tables.
fn shares_series(
    running: &HashMap<Tgid, ProcessKey>,
    exited: &HashSet<ProcessKey>,
    infos: &HashMap<ProcessKey, ProcessInfo>,
    process: &ProcessSnapshot,
) -> bool {
    with_pid(running, exited, infos, process.pid).any(|info| process.is_labelled(process.pid, info))
}

fn by_process<T>(rows: &[T], of: impl Fn(&T) -> ProcessKey) -> HashMap<ProcessKey, Vec<&T>> {
    let mut all: HashMap<_, Vec<_>> = HashMap::new();
    rows.iter().for_each(|row| all.entry(of(row)).or_default().push(row));
    all
}

/// Adds the rows of GPU operations to their processes.
fn add_gpu_op_rows(exited: &mut HashMap<ProcessKey, ExitedProcess>, rows: GpuOpRows) {
    for row in rows.calls {
        exited.entry(row.process).and_modify(|process| process.calls.push(row));
    }
    for row in rows.launches {
        exited.entry(row.process).and_modify(|process| process.gpu_ops.launches.push(row));
    }
    for row in rows.graphs {
        exited.entry(row.process).and_modify(|process| process.gpu_ops.graphs.push(row));
    }
    for row in rows.graph_kernels {
        exited.entry(row.process).and_modify(|process| process.gpu_ops.graph_kernels.push(row));
    }
    for row in rows.copies {
        exited.entry(row.process).and_modify(|process| process.gpu_ops.copies.push(row));
    }
    for row in rows.commands {
        exited.entry(row.process).and_modify(|process| process.gpu_ops.commands.push(row));
    }
    for row in rows.unified {
        exited.entry(row.0).and_modify(|process| process.gpu_ops.unified.push(row));
    }
    for row in rows.gaps {
        exited.entry(row.process).and_modify(|process| process.gpu_ops.gaps.push(row));
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tid;
    use gpuprobe_event::counters::{CallCounts, LATENCY_BUCKETS, LiveTotals, ProcessMemory};
    use gpuprobe_event::{DeviceTime, FunctionId, Space};

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
            rank: None,
            live: Vec::new(),
        };
        (ProcessKey { tgid: Tgid(tgid), instance }, event)
    }

    fn rows(keys: &[ProcessKey], live: u64) -> ExitedRows {
        let call = |&process| CallCounts {
            process,
            function: FunctionId(1),
            calls: 7,
            errors: 0,
            bytes: 0,
            total_ns: 0,
            driver: DeviceTime::default(),
            latency: [0; LATENCY_BUCKETS],
        };
        let memory = |&process| ProcessMemory {
            process,
            live: [LiveTotals { live_bytes: live, live_allocations: live }; Space::ALL.len()],
            allocated_bytes: 0,
            freed_bytes: 0,
            allocations: 1,
            failed_allocations: 0,
            frees: 0,
            failed_frees: 0,
            unknown_frees: 0,
            replaced: 0,
            replaced_bytes: 0,
            freed_with_context_allocations: 0,
            freed_with_context_bytes: 0,
            peak_bytes: 0,
            out_of_memory: 0,
        };
        ExitedRows {
            calls: keys.iter().map(call).collect(),
            failures: Vec::new(),
            memory: keys.iter().map(memory).collect(),
            sites: Vec::new(),
            gpu_ops: GpuOpRows::default(),
            exited_with_live_memory: keys.iter().filter(|_| live > 0).copied().collect(),
        }
    }

    #[test]
    fn events_of_both_lists_are_handled_in_time_order() {
        use ProcessChange::{Exec, Exit, Start};
        let mut processes = Processes::default();
        // a program executes another one, whose first call is in the other list; the second one exits too
        let batch = Batch {
            processes: vec![event(Start, 5, 1, 10), event(Exec, 5, 2, 20), event(Exit, 5, 2, 40)],
            first_calls: vec![event(Start, 5, 2, 30)],
            ..Batch::default()
        };
        processes.take(&batch, 100);
        assert_eq!(processes.exited.len(), 2);
        assert!(processes.running.is_empty());
        assert!(processes.infos.values().all(|i| i.exited_at_ns == Some(100)));
    }

    #[test]
    fn a_reused_pid_ends_its_previous_process_and_an_exit_without_a_start_counts() {
        use ProcessChange::{Exit, Start};
        let mut processes = Processes::default();
        let start = Batch {
            processes: vec![event(Start, 5, 1, 10), event(Start, 5, 9, 20), event(Exit, 6, 1, 30)],
            ..Batch::default()
        };
        processes.take(&start, 100);
        let (first, second, unknown) =
            (event(Start, 5, 1, 0).0, event(Start, 5, 9, 0).0, event(Exit, 6, 1, 0).0);
        assert_eq!(processes.exited, HashSet::from([first, unknown]));
        assert_eq!(processes.running[&Tgid(5)], second);
        assert_eq!(processes.due(), Some(Duration::ZERO));

        processes.archive_rows(rows(&[first], 3));
        assert_eq!(
            processes.exited_with_live_memory,
            HashSet::from([first]),
            "only processes with live memory are kept for the next pass"
        );
        let archived: Vec<_> = processes.archive().iter().map(|p| (p.pid, p.functions[0].calls)).collect();
        assert_eq!(archived, [(first.tgid, 7)], "a process without calls is not archived");
        assert_eq!(processes.infos().keys().collect::<Vec<_>>(), [&second]);
    }

    #[test]
    fn memory_that_is_tracked_only_for_addresses_is_not_shown() {
        let (key, start) = event(ProcessChange::Start, 5, 1, 10);
        let exit = event(ProcessChange::Exit, 5, 1, 20);
        for (processes, allocations) in
            [(Processes::default(), 1), (Processes::default().without_memory(), 0)]
        {
            let mut processes = processes;
            let batch = Batch { processes: vec![(key, start.clone()), exit.clone()], ..Batch::default() };
            processes.take(&batch, 100);
            processes.archive_rows(rows(&[key], 3));
            assert_eq!(processes.archive().totals().allocations, allocations);
            assert_eq!(processes.archive().iter().count(), 1);
            assert_eq!(
                processes.exited_with_live_memory,
                HashSet::from([key]),
                "its addresses are removed anyway"
            );
        }
    }

    #[test]
    fn a_program_that_executes_itself_keeps_its_series() {
        use ProcessChange::{Exec, Exit, Start};
        let mut processes = Processes::new(0);
        let calls = |processes: &Processes| {
            let shown = processes.archive().iter().flat_map(|p| &p.functions).map(|f| f.calls).sum::<u64>();
            let past = processes.archive().past().flat_map(|p| &p.functions).map(|f| f.calls).sum::<u64>();
            (shown, past)
        };
        let (first, second) = (event(Start, 5, 1, 0).0, event(Start, 5, 2, 0).0);
        let begin = vec![event(Start, 5, 1, 10), event(Exec, 5, 2, 20), event(Start, 5, 2, 30)];
        processes.take(&Batch { processes: begin, ..Batch::default() }, 100);
        processes.archive_rows(rows(&[first], 0));
        processes.forget_old(u64::MAX);
        assert_eq!(calls(&processes), (7, 0), "both share one series");

        processes.take(&Batch { processes: vec![event(Exit, 5, 2, 40)], ..Batch::default() }, 200);
        processes.forget_old(u64::MAX);
        assert_eq!(calls(&processes), (7, 0), "the second one still has rows");
        processes.archive_rows(rows(&[second], 0));
        assert_eq!(calls(&processes), (0, 14));
        assert_eq!(processes.archive().past().map(|p| p.processes).collect::<Vec<_>>(), [2]);
    }
}
