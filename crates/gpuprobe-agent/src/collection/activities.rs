//! CUPTI's records become the agent's.

use std::ptr;

use gpuprobe_event::agent::AgentRecord;

use super::clock::Clock;
use super::names::{LONGEST_NAME, Names};
use super::outbox::Outbox;
use crate::buffers::{Completed, POOL};
use crate::cupti::{self, Cupti, Failure};

#[derive(Debug, Default)]
pub(super) struct Activities {
    clock: Clock,
    pub(super) names: Names,
    pub(super) outbox: Outbox,
}

impl Activities {
    /// Compares the clocks for the first time. Names are sent anew, because those who ask now may not be those who asked
    /// before.
    pub(super) fn begin(&mut self, cupti: &Cupti) -> Result<(), Failure> {
        self.clock = Clock::default();
        self.names = Names::default();
        cupti.timestamp()?;
        self.clock.sample(|| cupti.timestamp().ok());
        Ok(())
    }

    /// Has CUPTI deliver buffers.
    pub(super) fn flush(&mut self, cupti: &Cupti, forced: bool) -> Result<(), Failure> {
        cupti.flush(forced)?;
        // the last comparison is good enough if this one fails
        self.clock.sample(|| cupti.timestamp().ok());
        self.outbox.count_dropped(cupti.dropped());
        Ok(())
    }

    /// Adds the records of all buffers that CUPTI has delivered.
    pub(super) fn read_buffers(&mut self, cupti: &Cupti) {
        for buffer in POOL.completed() {
            self.read_buffer(cupti, &buffer);
        }
        self.add_names();
    }

    fn read_buffer(&mut self, cupti: &Cupti, buffer: &Completed) {
        let (first, valid_bytes) = (buffer.first_byte(), buffer.valid_bytes);
        let end = first.addr() + valid_bytes;
        let (mut record, mut passed) = (ptr::null_mut(), first.addr().wrapping_sub(1));
        loop {
            // SAFETY: CUPTI has completed this buffer with so many valid bytes, and the record is the one it named last.
            let next = match unsafe { cupti.next_record(first, valid_bytes, record) } {
                // a record that is elsewhere, or named again, would be read for ever
                Ok(Some(next)) if next.addr() > passed && next.addr() < end => next,
                Ok(None) => break,
                Ok(Some(_)) | Err(_) => {
                    // at least one record is there that cannot be read
                    self.outbox.count_unknown();
                    break;
                }
            };
            (record, passed) = (next, next.addr());
            // SAFETY: from the record to the end of the valid bytes, in a buffer that this thread alone has.
            let bytes = unsafe { std::slice::from_raw_parts(next.cast_const(), end - next.addr()) };
            self.add(bytes);
        }
    }

    fn add(&mut self, record: &[u8]) {
        let Some(cupti::Record { mut activity, name }) = cupti::read(record) else {
            self.outbox.count_unknown();
            return;
        };
        activity.name = self.names.id_at(name, || text_at(name));
        activity.start_ns = self.clock.convert(activity.start_ns);
        activity.end_ns = self.clock.convert(activity.end_ns);
        self.outbox.add(&AgentRecord::Activity(activity));
    }

    pub(super) fn add_names(&mut self) {
        for (id, text) in self.names.take_due() {
            self.outbox.add(&AgentRecord::Name { id, text });
        }
    }
}

/// The text at an address in a record of CUPTI.
fn text_at(address: u64) -> String {
    let mut bytes = Vec::new();
    let first: *const u8 = ptr::with_exposed_provenance(address as usize);
    while bytes.len() < LONGEST_NAME {
        // SAFETY: CUPTI keeps the names of CUDA kernels until the process exits. They end with 0, and nothing behind
        // that is read.
        let byte = unsafe { first.add(bytes.len()).read() };
        if byte == 0 {
            break;
        }
        bytes.push(byte);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
