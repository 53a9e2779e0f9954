//! Ranges of NVTX become the agent's records.

use gpuprobe_event::agent::{AgentRecord, RangeRecord};

use super::activities::Activities;
use crate::nvtx::{self, FinishedRange, RING};

/// Ranges that are added at once, so that a program that never pauses cannot keep the agent here.
const MOST_AT_ONCE: usize = 16_384;

pub(super) fn add(to: &mut Activities) {
    for FinishedRange { kind, tid, start_ns, end_ns, domain, name, color } in
        std::iter::from_fn(|| RING.take()).take(MOST_AT_ONCE)
    {
        to.names.use_id(domain.id, || domain.to_text());
        to.names.use_id(name.id, || name.to_text());
        let range = RangeRecord { kind, tid, start_ns, end_ns, domain: domain.id, name: name.id, color };
        to.outbox.add(&AgentRecord::Range(range));
    }
    to.outbox.count_dropped(nvtx::take_dropped());
    to.add_names();
}
