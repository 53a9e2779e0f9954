//! How many entries each BPF map has.

use super::config::CaptureConfig;
use crate::wire::MapName;

/// The size of a map; `None` if it is fixed.
pub(crate) fn max_entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    op_entries(map, config).or_else(|| entries(map, config))
}

/// Enough for one or two GPUs with a primary context each. Processes share the table, so some may have more.
const CONTEXTS_PER_PROCESS: u32 = 4;

/// Combinations of direction, mode and kind of host memory that a process uses. Processes share the table, so some
/// may have more. A larger table would take longer to read.
const COPIES_PER_PROCESS: u32 = 4;
/// Further rows of copies for each process, for threads that copy at once. Beyond them, threads share rows.
const LANES_PER_PROCESS: u32 = 1;
/// Graphs, executable graphs, captures, and events in captures, of all processes. Entries are allocated on demand.
const GRAPHS: u32 = 1 << 16;
/// Graph nodes that were added one by one, or changed in an executable graph. The oldest make room for new ones. These
/// maps are allocated completely.
const NODES: u32 = 1 << 15;
/// Physical memory is allocated in pieces of megabytes, so there are fewer of them; a larger map would slow down the
/// start of the daemon.
const ALLOCATIONS_PER_PHYSICAL: u32 = 8;
/// Address prefixes that the range of one allocation is split into.
const PARTS_PER_ALLOCATION: u32 = 8;

/// The ring of Python frames: several hundred stacks.
const PYTHON_BYTES: u32 = 1 << 20;
/// Some seconds of a busy GPU: 100,000 CUDA kernels.
const AGENT_BYTES: u32 = 16 << 20;

/// Up to this many rows of copies, threads of a process have rows of their own.
pub(crate) fn rows_by_lane(config: &CaptureConfig) -> u32 {
    config.process_entries.saturating_mul(LANES_PER_PROCESS)
}

/// Enough rows of copies for all processes, however many of them lanes take.
fn copy_rows(config: &CaptureConfig) -> u32 {
    config.process_entries.saturating_mul(COPIES_PER_PROCESS).saturating_add(rows_by_lane(config))
}

/// The size of a map for GPU operations. Unused maps have the smallest possible size.
fn op_entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    let (launches, copies) = (config.launches && config.rows, config.copies && config.rows);
    let (wanted, entries) = match map {
        MapName::Launches | MapName::UnusedLaunches => (launches, config.launch_entries),
        MapName::Streams | MapName::UnusedStreams => {
            (config.launches || config.copies, config.process_entries)
        }
        // row 0 stands for none
        MapName::LaunchRows => (launches, config.launch_entries.saturating_add(1)),
        MapName::StreamRows => (config.launches || config.copies, config.process_entries.saturating_add(1)),
        MapName::Captures | MapName::Recorded => (config.launches || config.copies, GRAPHS),
        MapName::Graphs | MapName::Execs => (config.launches, GRAPHS),
        MapName::Nodes | MapName::ExecNodes => (config.launches, NODES),
        MapName::ExecLaunches => (launches, GRAPHS),
        MapName::GraphCounts => (launches || copies, config.process_entries),
        MapName::Copies | MapName::UnusedCopies => (copies, copy_rows(config)),
        // row 0 stands for none
        MapName::CopyRows => (copies, copy_rows(config).saturating_add(1)),
        MapName::Ranges => (config.copies, config.live_entries.saturating_mul(PARTS_PER_ALLOCATION)),
        _ => return None,
    };
    Some(if wanted { entries } else { 1 })
}

/// The size of any other map; `None` if it is fixed.
fn entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    let contexts = config.process_entries * CONTEXTS_PER_PROCESS;
    Some(match map {
        MapName::Calls => config.ring_bytes,
        MapName::PythonStacks if config.finds_sites() || config.stacks => PYTHON_BYTES,
        MapName::AgentBatches if config.gpu_time => AGENT_BYTES,
        MapName::Live | MapName::Objects => config.live_entries,
        MapName::NamedKernels => config.live_entries.div_ceil(ALLOCATIONS_PER_PHYSICAL),
        MapName::Physical | MapName::Handles | MapName::Mapped => {
            config.live_entries.div_ceil(ALLOCATIONS_PER_PHYSICAL)
        }
        MapName::Contexts | MapName::UnusedContexts => contexts,
        MapName::Addresses | MapName::Primaries | MapName::Identities => contexts,
        MapName::Tensors | MapName::TensorAccounts if !config.tensors => 1,
        MapName::Tensors => config.live_entries,
        MapName::TensorAccounts => contexts,
        MapName::Sites => config.site_entries,
        MapName::Pythons if config.finds_sites() || config.stacks => config.process_entries,
        MapName::SiteNodes => config.site_nodes(),
        MapName::Commands | MapName::Unified if !config.device_syscalls => 1,
        MapName::Counts | MapName::UnusedCounts | MapName::Failures | MapName::Commands => {
            config.count_entries
        }
        MapName::Processes | MapName::UnusedMemory | MapName::Unified => config.process_entries,
        // row 0 stands for none
        MapName::CountRows => config.count_entries + 1,
        MapName::MemoryRows => config.process_entries + 1,
        MapName::ContextRows => contexts + 1,
        _ => return None,
    })
}
