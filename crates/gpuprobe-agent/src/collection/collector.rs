//! What the agent does now, and the changes between that.

use gpuprobe_event::agent::{AgentRecord, AgentState, Collection, GraphRecords};

use super::activation;
use super::activities::Activities;
use super::ranges;
use crate::buffers::POOL;
use crate::cupti::{self, Cupti, Failure, Kind};
use crate::probe_functions::Request;
use crate::{at_exit, monotonic, nvtx};

const FLUSH_PERIOD_NS: u64 = 250_000_000;
/// How often names and the state are sent again.
const REPEAT_PERIOD_NS: u64 = 2_000_000_000;
/// How long it is tried again to initialize CUPTI.
const LONGEST_INITIALIZATION_NS: u64 = 2_000_000_000;
const OTHER_USER: &str = "another profiler is to use CUPTI in this process";

enum Phase {
    /// No probe is attached.
    Idle,
    Collecting(Cupti),
    /// A probe is attached, but the agent refused, gave up, or let go. It tries again only for a new probe.
    Off,
}

/// Owns what the agent has, except for what the program's threads touch.
pub(crate) struct Collector {
    phase: Phase,
    /// The last change, as it was reported.
    state: AgentState,
    activities: Activities,
    /// Probes at the last look.
    probes: u16,
    /// CUPTI has collected in this process before: CUDA graphs may exist.
    has_collected: bool,
    /// CUPTI could not be initialized yet: why, and since when.
    too_early: Option<(Failure, u64)>,
    flushed_ns: u64,
    repeated_ns: u64,
}

impl Collector {
    pub(crate) fn new() -> Self {
        let state = AgentState {
            collection: Collection::Stopped,
            graphs: GraphRecords::Nodes,
            code: 0,
            tid: 0,
            begin_ns: 0,
            end_ns: 0,
            text: String::new(),
        };
        Self {
            phase: Phase::Idle,
            state,
            activities: Activities::default(),
            probes: 0,
            has_collected: false,
            too_early: None,
            flushed_ns: 0,
            repeated_ns: 0,
        }
    }

    /// The agent's thread, as it is reported.
    pub(crate) fn set_thread(&mut self, tid: u32) {
        self.state.tid = tid;
    }

    /// Begins inside of `cuInit`, if a probe is attached: the first launch is recorded already, and no CUDA graph exists
    /// yet. NVIDIA's examples begin there, too. If CUPTI cannot be initialized there, the agent's thread tries it again.
    pub(crate) fn begin_during_cu_init(&mut self) {
        let request = look();
        if request.probes == 0 || !matches!(self.phase, Phase::Idle) {
            return;
        }
        // CUPTI crashes if it is to record graphs as a whole that exist already
        let graphs = match request.nodes {
            true => GraphRecords::Nodes,
            false if self.has_collected => GraphRecords::NodesOfRunning,
            false => GraphRecords::Whole,
        };
        self.phase = self.begin(request, graphs);
        self.activities.outbox.send();
    }

    pub(crate) fn records_whole_graphs(&self) -> bool {
        matches!(self.phase, Phase::Collecting(_)) && self.state.graphs == GraphRecords::Whole
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, cuda_is_used: bool) {
        let request = look();
        let is_new = request.probes > self.probes;
        self.probes = request.probes;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle if request.probes > 0 && cuda_is_used => {
                let graphs = if request.nodes { GraphRecords::Nodes } else { GraphRecords::NodesOfRunning };
                self.begin(request, graphs)
            }
            Phase::Idle => {
                self.too_early = None;
                Phase::Idle
            }
            Phase::Off if request.probes == 0 => Phase::Idle,
            Phase::Off => {
                self.repeat_if_due(is_new);
                Phase::Off
            }
            Phase::Collecting(cupti) if request.probes == 0 => self.stopped(&cupti),
            Phase::Collecting(cupti) if request.let_go => self.let_go(&cupti),
            Phase::Collecting(cupti) => {
                self.repeat_if_due(is_new);
                match self.collect(&cupti, request) {
                    Ok(()) => Phase::Collecting(cupti),
                    Err(failure) => self.failed(&cupti, &failure),
                }
            }
        };
        ranges::add(&mut self.activities);
        self.activities.outbox.send();
    }

    /// Sends what there still is: the process exits.
    pub(crate) fn finish(&mut self) {
        if let Phase::Collecting(cupti) = std::mem::replace(&mut self.phase, Phase::Off) {
            // nothing else can be done about a failure now
            drop(self.activities.flush(&cupti, true));
            self.activities.read_buffers(&cupti);
        }
        if let Some((failure, begin_ns)) = self.too_early.take() {
            self.report(Collection::Refused, failure.code, begin_ns, failure.to_string());
        }
        ranges::add(&mut self.activities);
        self.activities.outbox.send();
    }

    /// `None` if CUPTI is to be left to another user.
    fn try_to_begin(&mut self, request: Request, graphs: GraphRecords) -> Result<Option<Cupti>, Failure> {
        self.probes = request.probes;
        self.state.graphs = graphs;
        if request.let_go {
            return Ok(None);
        }
        let cupti = cupti::find()?;
        cupti.check_that_it_is_unused()?;
        self.activities.begin(&cupti)?;
        activation::enable(&cupti, graphs)?;
        Ok(Some(cupti))
    }

    fn begin(&mut self, request: Request, graphs: GraphRecords) -> Phase {
        let begin_ns = monotonic::now_ns();
        let begun = self.try_to_begin(request, graphs);
        let first_ns = self.too_early.take().map_or(begin_ns, |(_, first_ns)| first_ns);
        match begun {
            Ok(Some(cupti)) => {
                self.has_collected = true;
                at_exit::register(at_exit::When::AfterCupti);
                self.flushed_ns = begin_ns;
                self.report(Collection::Collecting, 0, begin_ns, cupti.file.clone());
                Phase::Collecting(cupti)
            }
            Ok(None) => {
                self.report(Collection::LetGo, 0, begin_ns, OTHER_USER.to_owned());
                Phase::Off
            }
            Err(failure)
                if failure.is_of_initialization
                    && begin_ns.saturating_sub(first_ns) < LONGEST_INITIALIZATION_NS =>
            {
                at_exit::register(at_exit::When::BeforeCupti);
                self.too_early = Some((failure, first_ns));
                Phase::Idle
            }
            Err(failure) => {
                self.report(Collection::Refused, failure.code, begin_ns, failure.to_string());
                Phase::Off
            }
        }
    }

    fn collect(&mut self, cupti: &Cupti, request: Request) -> Result<(), Failure> {
        let now = monotonic::now_ns();
        if request.nodes && self.state.graphs == GraphRecords::Whole {
            // that cannot be undone: graphs exist now
            cupti.disable(Kind::Graph)?;
            self.state.graphs = GraphRecords::Nodes;
            self.report(Collection::Collecting, 0, now, cupti.file.clone());
        }
        if now.wrapping_sub(self.flushed_ns) >= FLUSH_PERIOD_NS {
            self.flushed_ns = now;
            self.activities.flush(cupti, false)?;
        }
        self.activities.read_buffers(cupti);
        Ok(())
    }

    /// For a probe that was attached later. One that came when another one went changes no count.
    fn repeat_if_due(&mut self, is_new: bool) {
        let now = monotonic::now_ns();
        if is_new || now.wrapping_sub(self.repeated_ns) >= REPEAT_PERIOD_NS {
            self.repeated_ns = now;
            self.activities.outbox.add(&AgentRecord::State(self.state.clone()));
            self.activities.names.repeat();
            self.activities.add_names();
        }
    }

    fn stopped(&mut self, cupti: &Cupti) -> Phase {
        let begin_ns = monotonic::now_ns();
        activation::disable(cupti, self.state.graphs);
        // nothing is left to undo, and no probe gets the result
        drop(self.activities.flush(cupti, true));
        self.end(cupti);
        self.report(Collection::Stopped, 0, begin_ns, "no probe is attached any more".to_owned());
        Phase::Idle
    }

    /// Leaves CUPTI as it is: its next user registers its own callbacks, and must not lose kinds that it enables as well.
    /// Graphs as a whole are the exception, since other profilers do not expect them.
    fn let_go(&mut self, cupti: &Cupti) -> Phase {
        let begin_ns = monotonic::now_ns();
        if self.state.graphs == GraphRecords::Whole {
            // there is nothing else to try
            drop(cupti.disable(Kind::Graph));
        }
        self.end(cupti);
        self.report(Collection::LetGo, 0, begin_ns, OTHER_USER.to_owned());
        Phase::Off
    }

    fn failed(&mut self, cupti: &Cupti, failure: &Failure) -> Phase {
        let begin_ns = monotonic::now_ns();
        activation::disable(cupti, self.state.graphs);
        self.end(cupti);
        self.report(Collection::Failed, failure.code, begin_ns, failure.to_string());
        Phase::Off
    }

    /// Reads what is there. Later buffers are not read.
    fn end(&mut self, cupti: &Cupti) {
        self.activities.read_buffers(cupti);
        POOL.read_completed(false);
    }

    fn report(&mut self, collection: Collection, code: u32, begin_ns: u64, text: String) {
        self.state.collection = collection;
        self.state.code = code;
        self.state.begin_ns = begin_ns;
        self.state.end_ns = monotonic::now_ns();
        self.state.text = text;
        self.repeated_ns = self.state.end_ns;
        self.activities.outbox.add(&AgentRecord::State(self.state.clone()));
    }
}

/// What gpuprobe asks for. Ranges need nothing but that.
pub(crate) fn look() -> Request {
    let request = Request::read();
    nvtx::set_recorded(request.probes > 0);
    at_exit::set_awaited(request.probes > 0);
    request
}
