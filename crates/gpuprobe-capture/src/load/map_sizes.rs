//! How many entries each BPF map has.

use super::config::CaptureConfig;
use crate::wire::MapName;

/// The size of a map; `None` where it is no setting.
pub(crate) fn max_entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    op_entries(map, config).or_else(|| entries(map, config))
}

/// A GPU or two, with a primary context each; whoever has more takes the room of those that have fewer.
const CONTEXTS_PER_PROCESS: u32 = 4;

/// Directions, modes and kinds of host memory that a process uses; whoever uses more takes the room of others. The table is
/// read as often as counters are, and that takes as long as it is large.
const COPIES_PER_PROCESS: u32 = 4;
/// Graphs, executable ones, captures and events in them, of all processes. Room is taken as they are made.
const GRAPHS: u32 = 1 << 16;
/// Nodes of graphs that were made one by one.
const NODES: u32 = 1 << 18;
/// Physical memory is made in pieces of megabytes, so there are fewer of them; and what is large takes time to make when
/// the daemon starts.
const ALLOCATIONS_PER_PHYSICAL: u32 = 8;
/// Parts that the range of an allocation is kept in.
const PARTS_PER_ALLOCATION: u32 = 8;

/// How large a table of work is; those that are not used are as small as it gets.
fn op_entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    let (launches, copies) = (config.launches && config.rows, config.copies && config.rows);
    let (wanted, entries) = match map {
        MapName::Launches | MapName::UnusedLaunches => (launches, config.launch_entries),
        MapName::Streams | MapName::UnusedStreams => {
            (config.launches || config.copies, config.process_entries)
        }
        // the first row is none
        MapName::LaunchRows => (launches, config.launch_entries.saturating_add(1)),
        MapName::StreamRows => (config.launches || config.copies, config.process_entries.saturating_add(1)),
        MapName::Captures | MapName::Recorded => (config.launches || config.copies, GRAPHS),
        MapName::Graphs | MapName::Execs => (config.launches, GRAPHS),
        MapName::Nodes => (config.launches, NODES),
        MapName::GraphCounts => (launches || copies, config.process_entries),
        MapName::Copies => (copies, config.process_entries.saturating_mul(COPIES_PER_PROCESS)),
        MapName::Ranges => (config.copies, config.live_entries.saturating_mul(PARTS_PER_ALLOCATION)),
        _ => return None,
    };
    Some(if wanted { entries } else { 1 })
}

/// How large any other map is; none for those whose size is no setting.
fn entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    let contexts = config.process_entries * CONTEXTS_PER_PROCESS;
    Some(match map {
        MapName::Calls => config.ring_bytes,
        MapName::Live => config.live_entries,
        MapName::Physical | MapName::Handles | MapName::Mapped => {
            config.live_entries.div_ceil(ALLOCATIONS_PER_PHYSICAL)
        }
        MapName::Contexts | MapName::UnusedContexts => contexts,
        MapName::Addresses | MapName::Primaries | MapName::Identities => contexts,
        MapName::Sites => config.site_entries,
        MapName::SiteNodes => config.site_nodes(),
        MapName::Commands | MapName::Unified if !config.driver => 1,
        MapName::Counts | MapName::UnusedCounts | MapName::Failures | MapName::Commands => {
            config.count_entries
        }
        MapName::Processes | MapName::UnusedMemory | MapName::Unified => config.process_entries,
        // the first row is nobody's
        MapName::CountRows => config.count_entries + 1,
        MapName::MemoryRows => config.process_entries + 1,
        MapName::ContextRows => contexts + 1,
        _ => return None,
    })
}
