//! Out-of-memory errors of frameworks.

use std::sync::Arc;

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{OutOfMemoryEvent, Tgid, Tid};

use super::Decoder;
use crate::tables::memory_tables::gpu;
use crate::wire::gp_out_of_memory_record;

impl Decoder {
    /// An error as the framework reported it. Later stages add what had the memory.
    pub(super) fn out_of_memory(&self, raw: &gp_out_of_memory_record) -> OutOfMemoryEvent {
        let key = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        OutOfMemoryEvent {
            id: raw.id,
            at_ns: self.clock.since_start(raw.at_ns),
            tgid: key.tgid,
            tid: Tid(raw.tid),
            process: Arc::clone(self.names.get(&key).unwrap_or(&self.unnamed)),
            gpu: gpu(raw.device.into()),
            requested_bytes: raw.requested_bytes,
            in_use_bytes: raw.in_use_bytes,
            reserved_bytes: raw.reserved_bytes,
            site: self.sites.site(raw.site),
            ..OutOfMemoryEvent::default()
        }
    }
}
