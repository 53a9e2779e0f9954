//! Reads the ring of batches that agents inside of processes report.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use gpuprobe_event::agent::{AgentRecord, BatchDecoder, BatchHeader};
use gpuprobe_event::{LossCause, Losses, Tgid, Tid};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::error::CaptureError;
use crate::wire::{from_bytes, gp_agent_record, number};

/// What came from a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReport {
    pub tgid: Tgid,
    /// The thread it came from.
    pub tid: Tid,
    pub content: AgentContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentContent {
    Batch(BatchHeader, Vec<AgentRecord>),
    /// The thread begins to use CUPTI.
    UsesCupti,
}

/// The ring, and what is known of the agents.
pub(crate) struct AgentRing {
    ring: RingBuffer<'static>,
    received: Rc<RefCell<Received>>,
}

#[derive(Debug, Default)]
struct Received {
    /// Processes whose agents were asked. The probes also get what others have asked the agents of other processes for.
    watched: HashSet<Tgid>,
    reports: Vec<AgentReport>,
    /// What the last batch of each agent said.
    headers: HashMap<Tgid, BatchHeader>,
    losses: Losses,
}

impl std::fmt::Debug for AgentRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentRing").field("received", &self.received).finish_non_exhaustive()
    }
}

impl AgentRing {
    pub(crate) fn open(map: &MapHandle) -> Result<Self, CaptureError> {
        let received: Rc<RefCell<Received>> = Rc::default();
        let taker = Rc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            taker.borrow_mut().take(bytes);
            0
        };
        builder.add(map, take).map_err(CaptureError::bpf(READ))?;
        Ok(Self { ring: builder.build().map_err(CaptureError::bpf(READ))?, received })
    }

    /// Readable when there are batches.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring buffer, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }

    pub(crate) fn read(&self) -> Result<Vec<AgentReport>, CaptureError> {
        self.ring.consume().map_err(CaptureError::bpf(READ))?;
        Ok(std::mem::take(&mut self.received.borrow_mut().reports))
    }

    /// Takes what comes from this process from now on.
    pub(crate) fn watch(&self, tgid: Tgid) {
        self.received.borrow_mut().watched.insert(tgid);
    }

    pub(crate) fn forget(&self, tgid: Tgid) {
        let mut received = self.received.borrow_mut();
        received.headers.remove(&tgid);
        received.watched.remove(&tgid);
    }

    /// Records that were lost before they came here, and batches that are none.
    pub(crate) fn losses(&self) -> Losses {
        self.received.borrow().losses.clone()
    }
}

const READ: &str = "read the ring buffer of agents";

impl Received {
    fn take(&mut self, bytes: &[u8]) {
        let Some((head, rest)) = bytes.split_at_checked(size_of::<gp_agent_record>()) else {
            self.losses.add(LossCause::Undecodable, 1);
            return;
        };
        let head: gp_agent_record = from_bytes(head);
        let (tgid, tid) = (Tgid(head.tgid), Tid(head.tid));
        if !self.watched.contains(&tgid) {
            return;
        }
        let content = if head.probe == number::AGENT_EMIT {
            let batch = rest.get(..head.length as usize).unwrap_or(rest);
            self.batch(tgid, batch)
        } else {
            Some(AgentContent::UsesCupti)
        };
        match content {
            Some(content) => self.reports.push(AgentReport { tgid, tid, content }),
            None => self.losses.add(LossCause::Undecodable, 1),
        }
    }

    fn batch(&mut self, tgid: Tgid, batch: &[u8]) -> Option<AgentContent> {
        let mut decoder = BatchDecoder::new(batch).ok()?;
        let records = decoder.by_ref().collect();
        let header = decoder.header;
        // what was dropped before the first batch is not ours
        let last = self.headers.insert(tgid, header).unwrap_or(header);
        self.losses.add(LossCause::LostExecution, header.dropped.saturating_sub(last.dropped));
        let unknown = decoder.skipped + header.unknown.saturating_sub(last.unknown);
        self.losses.add(LossCause::Undecodable, unknown);
        Some(AgentContent::Batch(header, records))
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::agent::BatchEncoder;

    use super::*;
    use crate::wire::as_bytes;

    fn record(probe: u32, batch: &[u8]) -> Vec<u8> {
        let head = gp_agent_record { probe, length: batch.len() as u32, tgid: 7, tid: 8 };
        // BPF sends records of a few sizes
        [as_bytes(&head), batch, &[0; 100]].concat()
    }

    fn batch(header: BatchHeader) -> Vec<u8> {
        let mut encoder = BatchEncoder::new();
        assert!(encoder.add(&AgentRecord::Name { id: 1, text: "add".to_owned() }));
        record(number::AGENT_EMIT, encoder.finish(&header))
    }

    fn received() -> Received {
        Received { watched: HashSet::from([Tgid(7)]), ..Received::default() }
    }

    #[test]
    fn what_comes_from_other_processes_is_not_counted() {
        let mut received = Received::default();
        received.take(&batch(BatchHeader { sequence: 1, dropped: 0, unknown: 0 }));
        received.take(&batch(BatchHeader { sequence: 2, dropped: 5, unknown: 5 }));
        received.take(&record(number::AGENT_EMIT, b"no batch"));
        assert_eq!((received.reports.len(), received.losses.total()), (0, 0));
    }

    #[test]
    fn what_an_agent_dropped_is_counted_once() {
        let mut received = received();
        for dropped in [5, 5, 9] {
            received.take(&batch(BatchHeader { sequence: dropped, dropped, unknown: 0 }));
        }
        let losses: Vec<_> = received.losses.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(losses, [(LossCause::LostExecution, 4)]);
        assert_eq!(received.reports.len(), 3);
        let header = BatchHeader { sequence: 5, dropped: 5, unknown: 0 };
        let name = AgentRecord::Name { id: 1, text: "add".to_owned() };
        let expected = AgentContent::Batch(header, vec![name]);
        assert_eq!(received.reports[0], AgentReport { tgid: Tgid(7), tid: Tid(8), content: expected });
    }

    #[test]
    fn other_bytes_are_counted_and_another_user_of_cupti_is_reported() {
        let mut received = received();
        received.take(&[1, 2, 3]);
        received.take(&record(number::AGENT_EMIT, b"no batch"));
        received.take(&record(number::AGENT_CUPTI, b""));
        assert_eq!(received.losses.total(), 2);
        let found: Vec<_> = received.reports.iter().map(|report| &report.content).collect();
        assert_eq!(found, [&AgentContent::UsesCupti]);
    }
}
