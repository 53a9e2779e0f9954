//! GPU time by CUDA kernel, with the time in which it was collected.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpuprobe_event::agent::Collection;
use gpuprobe_event::{Event, Gpu, ProcessChange, Tgid};

use super::kernel_seconds::{GpuKernelTime, KernelSeconds};
use super::process_gpu_time::{KernelTimes, ProcessGpuTime};

/// Feeds [`KernelSeconds`] with events.
#[derive(Debug, Default)]
pub struct SampledTime {
    seconds: KernelSeconds,
    processes: HashMap<Tgid, SampledProcess>,
    /// Until when the time of each GPU is counted.
    counted_until_ns: BTreeMap<Gpu, u64>,
}

#[derive(Debug, Default)]
struct SampledProcess {
    /// Since when its agent collects, or since when that is not counted yet.
    since_ns: Option<u64>,
    /// The GPUs that executed something for it.
    gpus: BTreeSet<Gpu>,
    kernels: KernelTimes,
}

impl SampledTime {
    /// Takes in an event. `gpu_of` is the host's GPU for a process's number of one.
    pub fn feed(&mut self, event: &Event, gpu_of: impl Fn(Tgid, u8) -> Gpu) {
        match event {
            Event::Execution(execution) => {
                // numbers of GPUs have eight bits
                let gpu = gpu_of(execution.tgid, u8::try_from(execution.gpu).unwrap_or(u8::MAX));
                let process = self.processes.entry(execution.tgid).or_default();
                process.gpus.insert(gpu);
                process.kernels.add(execution);
                self.seconds.add(gpu, execution);
            }
            Event::Agent(state) if state.collection == Collection::Collecting => {
                self.processes.entry(state.tgid).or_default().since_ns = Some(state.end_ns);
            }
            Event::Agent(state) => self.ended(state.tgid, state.begin_ns),
            _ => {}
        }
    }

    /// A process changed at this time.
    pub fn changed(&mut self, tgid: Tgid, change: ProcessChange, now_ns: u64) {
        if change != ProcessChange::Start {
            self.ended(tgid, now_ns);
            self.processes.remove(&tgid);
        }
    }

    fn ended(&mut self, tgid: Tgid, now_ns: u64) {
        self.count(tgid, now_ns);
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.since_ns = None;
        }
    }

    /// Counts the time of a process until now. Time that another one was collected too counts once.
    fn count(&mut self, tgid: Tgid, now_ns: u64) {
        let Some(process) = self.processes.get(&tgid) else { return };
        let Some(since_ns) = process.since_ns else { return };
        for gpu in &process.gpus {
            let counted_until_ns = self.counted_until_ns.entry(*gpu).or_default();
            let begin_ns = since_ns.max(*counted_until_ns);
            if now_ns > begin_ns {
                self.seconds.sampled(*gpu, now_ns - begin_ns);
                *counted_until_ns = now_ns;
            }
        }
    }

    /// GPU time of the CUDA kernels of each running process.
    pub fn by_process(&self) -> Vec<ProcessGpuTime> {
        let mut all: Vec<_> =
            self.processes.iter().filter_map(|(tgid, process)| process.kernels.report(*tgid)).collect();
        all.sort_unstable_by_key(|process| process.pid);
        all
    }

    /// GPU time by GPU until now.
    pub fn report(&mut self, now_ns: u64) -> Vec<(Gpu, GpuKernelTime)> {
        let all: Vec<Tgid> = self.processes.keys().copied().collect();
        all.into_iter().for_each(|tgid| self.count(tgid, now_ns));
        self.seconds.report()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuprobe_event::agent::GraphRecords;
    use gpuprobe_event::{AgentEvent, Execution, ExecutionKind, Tid};

    use super::*;
    use crate::executions::KernelGpuTime;

    fn state(tgid: u32, collection: Collection, at_ns: u64) -> Event {
        Event::Agent(Box::new(AgentEvent {
            id: 0,
            tgid: Tgid(tgid),
            tid: Tid(1),
            process: Arc::from("app"),
            begin_ns: at_ns,
            end_ns: at_ns,
            collection,
            graphs: GraphRecords::Nodes,
            code: 0,
            text: Arc::from(""),
        }))
    }

    fn execution(tgid: u32) -> Event {
        executed(tgid, ExecutionKind::Graph)
    }

    fn kernel(tgid: u32, name: Option<&str>) -> Event {
        let name = name.map(Arc::from);
        executed(tgid, ExecutionKind::Kernel { name, grid: [1; 3], block: [1; 3], shared_bytes: 0 })
    }

    fn executed(tgid: u32, kind: ExecutionKind) -> Event {
        Event::Execution(Box::new(Execution {
            id: 0,
            tgid: Tgid(tgid),
            process: Arc::from("app"),
            kind,
            start_ns: 10,
            end_ns: 30,
            gpu: 0,
            context: 1,
            stream: 7,
            correlation: 1,
            graph: None,
            submission: None,
        }))
    }

    #[test]
    fn processes_have_the_time_of_their_kernels_until_they_exit() {
        let mut sampled = SampledTime::default();
        let mut feed = |event| sampled.feed(&event, |_, number| Gpu::Host(number));
        for name in [Some("add"), Some("scale"), Some("scale"), None] {
            feed(kernel(2, name));
        }
        feed(kernel(1, Some("add")));
        feed(execution(3));
        let time = |kernel: &str, executions| KernelGpuTime {
            kernel: Arc::from(kernel),
            executions,
            total_ns: 20 * executions,
        };
        let process = |pid, kernels: Vec<_>, other_ns| ProcessGpuTime { pid: Tgid(pid), kernels, other_ns };
        let second = process(2, vec![time("scale", 2), time("add", 1)], 20);
        assert_eq!(sampled.by_process(), [process(1, vec![time("add", 1)], 0), second.clone()]);
        sampled.changed(Tgid(1), ProcessChange::Exit, 100);
        assert_eq!(sampled.by_process(), [second]);
        (0..3000)
            .for_each(|i| sampled.feed(&kernel(4, Some(&format!("k{i}"))), |_, number| Gpu::Host(number)));
        let many = sampled.by_process().pop().unwrap();
        assert_eq!((many.kernels.len(), many.other_ns), (1024, 20 * (3000 - 1024)), "it is bounded");
    }

    #[test]
    fn time_of_several_processes_on_a_gpu_counts_once() {
        let mut sampled = SampledTime::default();
        let mut feed = |event| sampled.feed(&event, |_, number| Gpu::Host(number));
        for tgid in [1, 2] {
            feed(state(tgid, Collection::Collecting, 100));
            feed(execution(tgid));
        }
        feed(state(1, Collection::Stopped, 600));
        feed(state(2, Collection::Stopped, 700));
        let report = sampled.report(5_000);
        assert_eq!(
            report.iter().map(|(gpu, time)| (*gpu, time.sampled_ns)).collect::<Vec<_>>(),
            [(Gpu::Host(0), 600)]
        );
        assert_eq!(report[0].1.executions, 2);
        let mut feed = |event| sampled.feed(&event, |_, number| Gpu::Host(number));
        feed(state(1, Collection::Collecting, 6_000));
        assert_eq!(sampled.report(6_500)[0].1.sampled_ns, 1_100, "of a window that is still open");
        sampled.changed(Tgid(1), ProcessChange::Exit, 7_000);
        assert_eq!(sampled.report(9_000)[0].1.sampled_ns, 1_600);
    }
}
