//! One record of the agent.

use super::bytes::Reader;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentRecord {
    Activity(Activity),
    /// The text that an id stands for. It may come after the records that use it, and again.
    Name {
        id: u64,
        text: String,
    },
    State(AgentState),
    Range(RangeRecord),
}

/// Something that a GPU executed. Times are of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub kind: ActivityKind,
    /// For a copy: `CUpti_ActivityMemcpyKind`, as 1 for host to device.
    pub copy_kind: u8,
    /// 0 as well as the end, if the GPU's times could not be read.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The same for everything that one call submitted. Ascending in the order of calls.
    pub correlation: u32,
    /// The GPU by the process's number.
    pub device: u32,
    pub context: u32,
    /// CUPTI's number of the stream.
    pub stream: u32,
    /// CUPTI's number of the CUDA graph; 0 outside of graphs.
    pub graph: u32,
    pub graph_node: u64,
    /// Bytes of a copy or memset.
    pub bytes: u64,
    /// The id of the name of a CUDA kernel.
    pub name: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Static and dynamic shared memory of a CUDA kernel.
    pub shared_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivityKind {
    #[default]
    Kernel,
    Copy,
    Memset,
    /// A CUDA graph as a whole.
    Graph,
}

/// What the agent does from now on. It is sent again every two seconds, unchanged: a gpuprobe that attaches when another
/// one detaches cannot be noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentState {
    pub collection: Collection,
    pub graphs: GraphRecords,
    /// CUPTI's result code, if a call of it failed.
    pub code: u32,
    /// The agent's thread.
    pub tid: u32,
    /// When the change began and when it was complete. Calls between them may or may not be recorded.
    pub begin_ns: u64,
    pub end_ns: u64,
    /// For `Collecting`, the file of libcupti; otherwise why, for people.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collection {
    Collecting,
    /// Nothing probes the agent any more.
    Stopped,
    /// It could not begin.
    Refused,
    /// It left CUPTI to another user of it.
    LetGo,
    /// It gave up after an error while it collected.
    Failed,
}

/// How CUDA graphs are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GraphRecords {
    Whole,
    Nodes,
    /// Each node, although that was not asked for: graphs that exist already cannot be recorded as a whole.
    NodesOfRunning,
}

/// A range or mark of NVTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeRecord {
    pub kind: RangeKind,
    pub tid: u32,
    pub start_ns: u64,
    /// Equal to the start for a mark.
    pub end_ns: u64,
    /// The id of the name of its domain; 0 for the default domain.
    pub domain: u64,
    /// The id of its message.
    pub name: u64,
    /// ARGB; 0 if it has none.
    pub color: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeKind {
    /// Nested in the ranges of its thread.
    Nested,
    /// May begin and end in different threads.
    Process,
    Mark,
}

const ACTIVITY: u16 = 1;
const NAME: u16 = 2;
const STATE: u16 = 3;
const RANGE: u16 = 4;

/// Numbers of enum values, for both directions.
macro_rules! numbered {
    ($type:ty { $($variant:ident = $number:literal),* $(,)? }) => {
        impl $type {
            fn number(self) -> u8 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }

            fn of_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered!(ActivityKind { Kernel = 1, Copy = 2, Memset = 3, Graph = 4 });
numbered!(Collection { Collecting = 1, Stopped = 2, Refused = 3, LetGo = 4, Failed = 5 });
numbered!(GraphRecords { Whole = 1, Nodes = 2, NodesOfRunning = 3 });
numbered!(RangeKind { Nested = 1, Process = 2, Mark = 3 });

impl AgentRecord {
    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::Activity(_) => ACTIVITY,
            Self::Name { .. } => NAME,
            Self::State(_) => STATE,
            Self::Range(_) => RANGE,
        }
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Activity(activity) => activity.encode(to),
            Self::Name { id, text } => {
                to.extend(id.to_le_bytes());
                to.extend(text.as_bytes());
            }
            Self::State(state) => state.encode(to),
            Self::Range(range) => range.encode(to),
        }
    }

    /// `None` for a record that is cut off or of a kind that this version does not know. Bytes after those that are
    /// known are ignored.
    pub(super) fn decode(kind: u16, bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        match kind {
            ACTIVITY => Activity::decode(&mut from).map(Self::Activity),
            NAME => Some(Self::Name { id: from.u64()?, text: from.text() }),
            STATE => AgentState::decode(&mut from).map(Self::State),
            RANGE => RangeRecord::decode(&mut from).map(Self::Range),
            _ => None,
        }
    }
}

impl Activity {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend([self.kind.number(), self.copy_kind, 0, 0]);
        to.extend(self.correlation.to_le_bytes());
        for number in [self.start_ns, self.end_ns, self.graph_node, self.bytes, self.name] {
            to.extend(number.to_le_bytes());
        }
        for number in [self.device, self.context, self.stream, self.graph, self.shared_bytes] {
            to.extend(number.to_le_bytes());
        }
        for number in self.grid.into_iter().chain(self.block) {
            to.extend(number.to_le_bytes());
        }
    }

    fn decode(from: &mut Reader) -> Option<Self> {
        let (kind, copy_kind, _) = (ActivityKind::of_number(from.u8()?)?, from.u8()?, from.u16()?);
        let correlation = from.u32()?;
        let [start_ns, end_ns, graph_node, bytes, name] =
            [from.u64()?, from.u64()?, from.u64()?, from.u64()?, from.u64()?];
        let [device, context, stream, graph, shared_bytes] =
            [from.u32()?, from.u32()?, from.u32()?, from.u32()?, from.u32()?];
        let (grid, block) = (from.triple()?, from.triple()?);
        Some(Self {
            kind,
            copy_kind,
            start_ns,
            end_ns,
            correlation,
            device,
            context,
            stream,
            graph,
            graph_node,
            bytes,
            name,
            grid,
            block,
            shared_bytes,
        })
    }
}

impl AgentState {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend([self.collection.number(), self.graphs.number(), 0, 0]);
        to.extend(self.code.to_le_bytes());
        to.extend(self.begin_ns.to_le_bytes());
        to.extend(self.end_ns.to_le_bytes());
        to.extend(self.tid.to_le_bytes());
        to.extend(self.text.as_bytes());
    }

    fn decode(from: &mut Reader) -> Option<Self> {
        let (collection, graphs) = (Collection::of_number(from.u8()?)?, GraphRecords::of_number(from.u8()?)?);
        from.u16()?;
        let (code, begin_ns, end_ns, tid) = (from.u32()?, from.u64()?, from.u64()?, from.u32()?);
        Some(Self { collection, graphs, code, tid, begin_ns, end_ns, text: from.text() })
    }
}

impl RangeRecord {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend([self.kind.number(), 0, 0, 0]);
        to.extend(self.tid.to_le_bytes());
        for number in [self.start_ns, self.end_ns, self.domain, self.name] {
            to.extend(number.to_le_bytes());
        }
        to.extend(self.color.to_le_bytes());
    }

    fn decode(from: &mut Reader) -> Option<Self> {
        let (kind, _, _) = (RangeKind::of_number(from.u8()?)?, from.u8()?, from.u16()?);
        let tid = from.u32()?;
        let [start_ns, end_ns, domain, name] = [from.u64()?, from.u64()?, from.u64()?, from.u64()?];
        Some(Self { kind, tid, start_ns, end_ns, domain, name, color: from.u32()? })
    }
}
