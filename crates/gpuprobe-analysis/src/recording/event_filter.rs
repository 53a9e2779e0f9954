//! Selects events of a recording: by process, thread, function, CUDA kernel, time and duration.

use std::sync::Arc;

use gpuprobe_event::trace::End;
use gpuprobe_event::{
    Call, Effect, Event, Execution, ExecutionKind, GraphContents, GraphLaunch, MemoryBySite, Outcome,
    RangeEvent, TensorSummary, Tgid, Tid, XidEvent,
};
use serde::Serialize;

/// A pattern for names of functions; with `is_excluded`, matching functions are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPattern {
    pub pattern: glob::Pattern,
    pub is_excluded: bool,
}

/// A pattern for names of CUDA kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPattern {
    text: String,
    /// `None` if the text is not a valid glob: names can contain any character.
    glob: Option<glob::Pattern>,
}

impl KernelPattern {
    /// Matches names that contain this text, or that match it as a glob.
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), glob: glob::Pattern::new(text).ok() }
    }

    fn matches(&self, name: &str) -> bool {
        name.contains(&self.text) || self.glob.as_ref().is_some_and(|glob| glob.matches(name))
    }
}

/// Which events of a recording to keep. An empty list or `None` keeps all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    pub pids: Vec<Tgid>,
    pub tids: Vec<Tid>,
    /// A call is kept if an inclusion matches, or if there are only exclusions, and no exclusion matches.
    pub functions: Vec<FunctionPattern>,
    /// Only launches of these CUDA kernels, and launches of graphs that run them.
    pub kernels: Vec<KernelPattern>,
    /// Only events from this time on, in nanoseconds since the recording began. A call that began earlier is kept if
    /// it lasted until then.
    pub from_ns: Option<u64>,
    /// Only events before this time.
    pub to_ns: Option<u64>,
    /// Only calls that took at least this long, and those that did not return.
    pub min_ns: Option<u64>,
    /// The filter in words, for people.
    pub text: String,
}

/// What a filter did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filtered {
    /// The filter in words.
    pub filter: String,
    /// The events of the recording, without losses, which are never removed.
    pub events: u64,
    /// How many of them were removed.
    pub removed: u64,
    /// Calls that were kept.
    #[serde(skip)]
    pub kept_calls: u64,
    /// Operations of a stream may be missing, so that the time between the others is not idle time.
    #[serde(skip)]
    pub has_partial_streams: bool,
}

impl Filtered {
    /// Adds what the same filter did to another recording.
    pub fn add(&mut self, more: &Self) {
        self.events = self.events.saturating_add(more.events);
        self.removed = self.removed.saturating_add(more.removed);
        self.kept_calls = self.kept_calls.saturating_add(more.kept_calls);
    }
}

impl EventFilter {
    /// Whether it keeps everything.
    pub fn is_empty(&self) -> bool {
        *self == Self { text: self.text.clone(), ..Self::default() }
    }

    /// Whether it may remove some operations of a stream and keep others of the same time.
    pub fn has_partial_streams(&self) -> bool {
        !self.tids.is_empty()
            || !self.functions.is_empty()
            || !self.kernels.is_empty()
            || self.min_ns.is_some()
    }

    /// The event, if it is kept. A launch of a graph is kept with those of its CUDA kernels that are wanted.
    pub fn apply(&self, mut event: Event) -> Option<Event> {
        if !self.keeps(&event) {
            return None;
        }
        if let Event::Call(call) = &mut event
            && let Effect::GraphLaunch(launch) = &mut call.effect
            && let Some(contents) = launch.contents.as_mut().filter(|_| !self.kernels.is_empty())
        {
            let wanted = contents.kernels.iter().filter(|(name, _)| self.has_name(name.as_ref()));
            *contents = Arc::new(GraphContents { kernels: wanted.cloned().collect() });
            launch.kernels = Some(contents.kernels.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n)));
        }
        Some(event)
    }

    /// Whether an event is kept. Losses always are: they concern the figures of what is kept.
    fn keeps(&self, event: &Event) -> bool {
        match event {
            Event::Call(call) => self.keeps_call(call),
            Event::Process(change) => self.has_pid(change.tgid) && self.is_in_time(change.at_ns),
            Event::Loss(_) => true,
            Event::Xid(xid) => self.keeps_xid(xid),
            Event::OutOfMemory(event) => self.has_pid(event.tgid) && self.is_in_time(event.at_ns),
            Event::Execution(execution) => self.keeps_execution(execution),
            Event::Range(range) => self.keeps_range(range),
            // the state of the agent explains what is kept, also if it began earlier
            Event::Agent(state) => self.has_pid(state.tgid),
        }
    }

    /// Removes figures from the last line of a trace that include removed events.
    pub fn end(&self, end: &End) -> End {
        let mut end = end.clone();
        if self.is_empty() {
            return end;
        }
        end.memory = None;
        let by_process_only = Self { pids: self.pids.clone(), text: self.text.clone(), ..Self::default() };
        if *self == by_process_only {
            end.unified.retain(|of| self.has_pid(Tgid(of.pid)));
            // call sites that are not listed have no pid
            end.memory_by_site.sites.retain(|site| self.has_pid(site.pid));
            end.tensors.retain(|pid| self.has_pid(pid));
        } else {
            end.unified.clear();
            end.memory_by_site = MemoryBySite::default();
            end.tensors = TensorSummary::default();
        }
        end
    }

    fn keeps_call(&self, call: &Call) -> bool {
        self.has_thread(call.tgid, call.tid)
            && self.has_function(&call.name)
            && self.has_kernel(call)
            && self.is_during(call)
            && self.is_long(call)
    }

    /// An execution is kept by its process, submitting thread, CUDA kernel, time and duration. It has no function.
    fn keeps_execution(&self, execution: &Execution) -> bool {
        let has_kernel = || match &execution.kind {
            ExecutionKind::Kernel { name, .. } => self.has_name(name.as_ref()),
            ExecutionKind::Copy { .. } | ExecutionKind::Memset { .. } | ExecutionKind::Graph => false,
        };
        let tid = execution.submission.map_or(Tid(0), |by| by.tid);
        self.has_thread(execution.tgid, tid)
            && self.functions.iter().all(|of| of.is_excluded)
            && (self.kernels.is_empty() || has_kernel())
            && self.overlaps(execution.start_ns, execution.end_ns)
            && self.min_ns.is_none_or(|min_ns| execution.duration_ns() >= min_ns)
    }

    fn keeps_range(&self, range: &RangeEvent) -> bool {
        let duration_ns = range.end_ns.saturating_sub(range.start_ns);
        self.has_thread(range.tgid, range.tid)
            && self.overlaps(range.start_ns, range.end_ns)
            && self.min_ns.is_none_or(|min_ns| duration_ns >= min_ns)
    }

    fn has_thread(&self, pid: Tgid, tid: Tid) -> bool {
        self.has_pid(pid) && (self.tids.is_empty() || self.tids.contains(&tid))
    }

    fn overlaps(&self, start_ns: u64, end_ns: u64) -> bool {
        self.from_ns.is_none_or(|from_ns| end_ns >= from_ns)
            && self.to_ns.is_none_or(|to_ns| start_ns < to_ns)
    }

    fn keeps_xid(&self, xid: &XidEvent) -> bool {
        let concerns = xid.processes.is_empty() || xid.processes.iter().any(|of| self.has_pid(of.tgid));
        concerns && self.is_in_time(xid.at_ns)
    }

    fn has_pid(&self, pid: Tgid) -> bool {
        self.pids.is_empty() || self.pids.contains(&pid)
    }

    fn has_function(&self, name: &str) -> bool {
        let matches = |is_excluded: bool| {
            self.functions.iter().any(|of| of.is_excluded == is_excluded && of.pattern.matches(name))
        };
        (self.functions.iter().all(|of| of.is_excluded) || matches(false)) && !matches(true)
    }

    fn has_kernel(&self, call: &Call) -> bool {
        let in_graph = || match &call.effect {
            Effect::GraphLaunch(GraphLaunch { contents: Some(contents), .. }) => {
                contents.kernels.iter().any(|(name, _)| self.has_name(name.as_ref()))
            }
            _ => false,
        };
        self.kernels.is_empty() || self.has_name(call.effect.kernel()) || in_graph()
    }

    fn has_name(&self, kernel: Option<&Arc<str>>) -> bool {
        kernel.is_some_and(|name| self.kernels.iter().any(|pattern| pattern.matches(name)))
    }

    fn is_in_time(&self, at_ns: u64) -> bool {
        self.from_ns.is_none_or(|from_ns| at_ns >= from_ns) && self.to_ns.is_none_or(|to_ns| at_ns < to_ns)
    }

    fn is_during(&self, call: &Call) -> bool {
        let last_ns = match call.outcome {
            Outcome::Returned { duration_ns, .. } => call.start_ns.saturating_add(duration_ns),
            Outcome::Unfinished => u64::MAX,
            // an entry before the time says nothing that the return of the call does not say
            Outcome::Instant | Outcome::Begun | Outcome::Unobserved => call.start_ns,
        };
        self.overlaps(call.start_ns, last_ns)
    }

    fn is_long(&self, call: &Call) -> bool {
        let Some(min_ns) = self.min_ns else { return true };
        match call.outcome {
            Outcome::Returned { duration_ns, .. } => duration_ns >= min_ns,
            Outcome::Unfinished => true,
            Outcome::Instant | Outcome::Begun | Outcome::Unobserved => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, LiveSite, LossCause, LossEvent, MemorySummary, ProcessChange};

    use super::*;
    use crate::samples::{call, launch, of_kernel, process, took, unfinished};

    fn keeps(filter: &EventFilter, call: Call) -> bool {
        filter.keeps(&Event::Call(Box::new(call)))
    }

    fn functions(globs: &[&str]) -> EventFilter {
        let pattern = |glob: &&str| FunctionPattern {
            pattern: glob::Pattern::new(glob.trim_start_matches('!')).unwrap(),
            is_excluded: glob.starts_with('!'),
        };
        EventFilter { functions: globs.iter().map(pattern).collect(), ..EventFilter::default() }
    }

    #[test]
    fn processes_and_threads() {
        let malloc = || call(Api::Runtime, "cudaMalloc", 0);
        assert!(keeps(&EventFilter::default(), malloc()));
        for (pid, tid, kept) in [(100, 100, true), (100, 7, false), (7, 100, false)] {
            let filter = EventFilter {
                pids: vec![Tgid(1), Tgid(pid)],
                tids: vec![Tid(tid)],
                ..EventFilter::default()
            };
            assert_eq!(keeps(&filter, malloc()), kept, "{pid} {tid}");
        }
        let other = EventFilter { pids: vec![Tgid(7)], ..EventFilter::default() };
        assert!(!other.keeps(&Event::Process(process(ProcessChange::Exit, 9, None))));
        assert!(other.keeps(&Event::Loss(LossEvent { at_ns: 0, cause: LossCause::RingFull, count: 1 })));
    }

    #[test]
    fn functions_and_exclusions() {
        let malloc = || call(Api::Runtime, "cudaMalloc", 0);
        for (globs, kept) in [
            (&["cudaM*"][..], true),
            (&["cudaFree", "*Malloc"], true),
            (&["cudaFree"], false),
            (&["!cudaFree"], true),
            (&["cuda*", "!*Malloc"], false),
        ] {
            assert_eq!(keeps(&functions(globs), malloc()), kept, "{globs:?}");
        }
    }

    #[test]
    fn cuda_kernels_by_part_of_the_name_or_glob() {
        let scale = || of_kernel(launch("cudaLaunchKernel", None), Some("void scale<float>(float*, int)"));
        for (text, kept) in [
            ("scale", true),
            ("void scale<float>(float*, int)", true),
            ("void scale<*", true),
            ("[", false),
            ("gemm", false),
        ] {
            let filter = EventFilter { kernels: vec![KernelPattern::new(text)], ..EventFilter::default() };
            assert_eq!(keeps(&filter, scale()), kept, "{text}");
            assert!(!keeps(&filter, of_kernel(scale(), None)));
            assert!(!keeps(&filter, call(Api::Runtime, "cudaMalloc", 0)));
        }
    }

    #[test]
    fn a_call_is_kept_if_it_overlaps_the_time() {
        let at = |start_ns, ns| Call { start_ns, ..took(call(Api::Runtime, "cudaFree", 0), ns) };
        let filter = EventFilter { from_ns: Some(100), to_ns: Some(200), ..EventFilter::default() };
        for (start_ns, ns, kept) in
            [(90, 9, false), (90, 10, true), (0, 1000, true), (199, 5, true), (200, 5, false)]
        {
            assert_eq!(keeps(&filter, at(start_ns, ns)), kept, "{start_ns} {ns}");
        }
        assert!(keeps(&filter, unfinished(at(0, 0))), "it may still be running");
        assert!(!keeps(&filter, Call { outcome: Outcome::Begun, ..at(0, 0) }));
        assert!(!keeps(&filter, at(u64::MAX, u64::MAX)));
    }

    #[test]
    fn short_calls_and_entries_are_removed_by_a_minimum() {
        let filter = EventFilter { min_ns: Some(50), ..EventFilter::default() };
        let lasting = |ns| took(call(Api::Runtime, "cudaFree", 0), ns);
        assert!(keeps(&filter, lasting(50)) && !keeps(&filter, lasting(49)));
        assert!(keeps(&filter, unfinished(lasting(0))));
        assert!(!keeps(&filter, Call { outcome: Outcome::Begun, ..lasting(0) }));
    }

    #[test]
    fn figures_of_the_whole_recording_are_removed_from_its_last_line() {
        let site = |pid| LiveSite {
            pid: Tgid(pid),
            process: "p".to_owned(),
            call_site: "main".to_owned(),
            allocations: 1,
            bytes: 1,
        };
        let end = End {
            memory: Some(Box::new(MemorySummary::default())),
            memory_by_site: MemoryBySite::new(vec![site(1), site(2)], 0),
            ..End::default()
        };
        let by_pid = EventFilter { pids: vec![Tgid(2)], ..EventFilter::default() };
        assert_eq!(EventFilter::default().end(&end), end);
        assert!(by_pid.end(&end).memory.is_none());
        assert_eq!(by_pid.end(&end).memory_by_site.sites, [site(2)]);
        assert!(functions(&["cuda*"]).end(&end).memory_by_site.is_empty());
    }

    #[test]
    fn graph_launches_are_kept_with_the_wanted_kernels() {
        let contents = GraphContents::of([(Some("gemm".into()), 3), (Some("norm".into()), 2), (None, 1)]);
        let launch =
            GraphLaunch { kernels: Some(6), contents: Some(Arc::new(contents)), ..GraphLaunch::default() };
        let effect = Effect::GraphLaunch(launch);
        let event = Event::Call(Box::new(Call { effect, ..call(Api::Driver, "cuGraphLaunch", 0) }));
        let of = |text: &str| {
            let filter = EventFilter { kernels: vec![KernelPattern::new(text)], ..EventFilter::default() };
            match filter.apply(event.clone()) {
                Some(Event::Call(call)) => match call.effect {
                    Effect::GraphLaunch(launch) => {
                        Some((launch.kernels, launch.contents.unwrap().kernels.len()))
                    }
                    _ => None,
                },
                _ => None,
            }
        };
        assert_eq!(of("gemm"), Some((Some(3), 1)));
        assert_eq!(of("*m"), Some((Some(5), 2)));
        assert_eq!(of("other"), None);
        assert_eq!(EventFilter::default().apply(event.clone()), Some(event.clone()));
    }
}
