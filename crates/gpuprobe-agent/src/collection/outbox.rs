//! Gathers records into batches and sends them to the probes.

use gpuprobe_event::agent::{AgentRecord, BatchEncoder, BatchHeader};

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    batch: BatchEncoder,
    header: BatchHeader,
    /// The counts of the last batch.
    sent: BatchHeader,
}

impl Outbox {
    /// Adds a record; a full batch is sent before.
    pub(crate) fn add(&mut self, record: &AgentRecord) {
        if !self.batch.add(record) {
            self.send();
            if !self.batch.add(record) {
                self.header.dropped += 1;
            }
        }
    }

    pub(crate) fn count_dropped(&mut self, records: u64) {
        self.header.dropped += records;
    }

    pub(crate) fn count_unknown(&mut self) {
        self.header.unknown += 1;
    }

    /// Sends what there is; only the counts, if nothing else is new.
    pub(crate) fn send(&mut self) {
        if self.batch.is_empty() && self.header == self.sent {
            return;
        }
        self.header.sequence += 1;
        self.sent = self.header;
        crate::probe_functions::emit(self.batch.finish(&self.header));
        self.batch.clear();
    }
}
