//! Takes records out of the two BPF ring buffers and decodes them.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{ProcessChange, ProcessEvent};
use libbpf_rs::{AsRawLibbpf, Object, RingBuffer, RingBufferBuilder, libbpf_sys};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backlog::Backlog;
use super::batch::Batch;
use super::decoder::{Control, Decoder};
use super::records::Records;
use super::spool::{SharedFile, Spool};
use super::spool_file::SpoolFile;
use crate::error::CaptureError;
use crate::tables::task_iterator;
use crate::wire::object_handles::{handle_of, map_of};
use crate::wire::{MapName, ProgramName, gp_call};

/// The most calls that one batch takes out of the ring. So many events still fit in the CPU caches when they are
/// written.
pub(crate) const MAX_BATCH_CALLS: usize = 1 << 13;

/// Bytes as they came out of the rings. Calls are copied out before the control ring is read, so that the record of a
/// process is always known when its calls are decoded.
#[derive(Debug, Default)]
struct Pending {
    calls: Records,
    /// Stacks of call sites, to be decoded before the calls.
    sites: Records,
    control: Records,
}

/// The reader of both rings.
pub(crate) struct RingReader {
    calls: RingBuffer<'static>,
    control: RingBuffer<'static>,
    pending: Rc<RefCell<Pending>>,
    object: Rc<Object>,
    pub(crate) decoder: Decoder,
    /// Process events that are later than the last call taken, while more calls are left in the ring.
    deferred: Vec<(ProcessKey, ProcessEvent)>,
    /// Exited processes. Their last calls may still be in the ring.
    exited: Vec<ProcessKey>,
    backlog: Backlog,
    /// The file for spooled records; `None` if they are not spooled.
    spool_file: Option<SharedFile>,
    /// Reads the ring of calls while this reader is behind.
    spool: Option<Spool>,
    /// Calls that were discarded before they were decoded.
    pub(crate) discarded: u64,
}

impl RingReader {
    pub(crate) fn open(object: Rc<Object>, decoder: Decoder) -> Result<Self, CaptureError> {
        let pending = Rc::new(RefCell::new(Pending::default()));
        let calls = ring(&object, MapName::Calls, {
            let pending = Rc::clone(&pending);
            move |bytes| pending.borrow_mut().calls.push(bytes)
        })?;
        let control = ring(&object, MapName::Control, {
            let pending = Rc::clone(&pending);
            move |bytes| pending.borrow_mut().control.push(bytes)
        })?;
        Ok(Self {
            calls,
            control,
            pending,
            object,
            decoder,
            deferred: Vec::new(),
            exited: Vec::new(),
            backlog: Backlog::default(),
            spool_file: None,
            spool: None,
            discarded: 0,
        })
    }

    /// Spools records from now on while the reader is behind: in memory, and in the file if there is one.
    pub(crate) fn spool_to(&mut self, file: Option<SpoolFile>) {
        self.spool_file = Some(Arc::new(Mutex::new(file)));
        self.backlog = Backlog::of_spooling();
    }

    /// How many calls wait in the spool; `None` if the ring is read directly.
    pub(crate) fn spooled_calls(&self) -> Option<u64> {
        self.spool.as_ref().map(Spool::waiting_calls)
    }

    /// Discards what is spooled. What is in the ring is read next.
    pub(crate) fn discard_spooled(&mut self) {
        if let Some(mut spool) = self.spool.take() {
            self.discarded += spool.discard();
            // live memory has call sites, too
            spool.take_sites(&mut self.pending.borrow_mut().sites);
        }
    }

    /// Readable when the control ring has a record: processes wait for the answer to some of them.
    fn control_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring buffer, which lives as long as the borrow of self.
        unsafe { BorrowedFd::borrow_raw(self.control.epoll_fd()) }
    }

    /// Readable when the ring of calls has passed its wake-up mark.
    fn calls_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: as for `control_fd`.
        unsafe { BorrowedFd::borrow_raw(self.calls.epoll_fd()) }
    }

    /// Waits for records, for one of the other descriptors, or for the timeout.
    pub(crate) fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) {
        let mut all = vec![self.control_fd(), self.calls_fd()];
        all.extend_from_slice(others);
        wait(&all, self.backlog.wait_at_most(timeout));
    }

    /// Waits for calls or for the timeout.
    pub(crate) fn wait_for_calls(&self, timeout: Duration) {
        wait(&[self.calls_fd()], self.backlog.wait_at_most(timeout));
    }

    /// Takes calls out of the spool or the ring. Returns whether both are empty now.
    fn take_calls(&mut self) -> Result<bool, CaptureError> {
        if let Some(spool) = &mut self.spool {
            let Pending { calls, sites, .. } = &mut *self.pending.borrow_mut();
            let is_found = spool.next(calls).map_err(CaptureError::Spool)?;
            // afterwards: those of all calls that were taken have come by now
            spool.take_sites(sites);
            if is_found {
                self.backlog.taken(false);
                return Ok(false);
            }
            self.spool = None;
        }
        // limited: a paused process must not wait until a full ring is drained
        let taken = self.calls.consume_raw_n(MAX_BATCH_CALLS);
        if taken < 0 {
            let source = libbpf_rs::Error::from_raw_os_error(-taken);
            return Err(CaptureError::Bpf { what: "read the ring buffer of calls", source });
        }
        if let Some(file) = self.spool_file.as_ref().filter(|_| is_filling_up(&self.calls)) {
            match Spool::start(handle_of(&self.object, MapName::Calls)?, file) {
                Ok(spool) => self.spool = Some(spool),
                // the ring is read as without a spool
                Err(_) => self.stop_spooling(),
            }
        }
        let is_whole = usize::try_from(taken).is_ok_and(|taken| taken < MAX_BATCH_CALLS);
        let is_empty = is_whole && self.spool.is_none();
        self.backlog.taken(is_empty);
        Ok(is_empty)
    }

    fn stop_spooling(&mut self) {
        self.spool_file = None;
        self.backlog = Backlog::default();
    }

    /// Takes and decodes one batch. Also returns whether no calls are left.
    pub(crate) fn read(&mut self) -> Result<(Batch, bool), CaptureError> {
        let is_empty = self.take_calls()?;
        self.control.consume().map_err(CaptureError::bpf("read the ring buffer of processes"))?;
        let mut pending = self.pending.borrow_mut();
        let mut batch = Batch { processes: std::mem::take(&mut self.deferred), ..Batch::default() };
        for bytes in pending.control.iter() {
            match self.decoder.control(bytes) {
                Control::Process(key, process) => batch.processes.push((key, process)),
                Control::FirstCall(key, process) => batch.first_calls.push((key, process)),
                Control::PausedProcess(paused) => batch.paused.push(paused),
                Control::Xid(xid) => batch.xids.push(xid),
                Control::Undecodable => {}
            }
        }
        batch.calls = self.decoder.calls(&pending.sites);
        batch.calls.append(&mut self.decoder.calls(&pending.calls));
        pending.sites.clear();
        pending.calls.clear();
        pending.control.clear();
        drop(pending);
        self.decoder.sites.recognise_waiting();
        batch.stacks = self.decoder.sites.take_new_stacks();
        Ok((batch, is_empty))
    }

    /// Takes the process events out of a batch before which calls may be missing. The next batch has them. If the ring
    /// was emptied, `begun_ns` is the time before that.
    pub(crate) fn defer_processes(&mut self, batch: &mut Batch, begun_ns: Option<u64>) {
        self.deferred = match begun_ns {
            Some(begun_ns) => batch.take_exits_after(begun_ns),
            None => batch.take_later_processes(),
        };
    }

    /// Remembers the processes that exited in this batch, until their last calls have been read.
    pub(crate) fn note_exits(&mut self, batch: &Batch) {
        let exits = batch.processes.iter().filter(|(_, p)| p.change == ProcessChange::Exit);
        self.exited.extend(exits.map(|(key, _)| *key));
    }

    /// The exited processes, to be forgotten when the ring is empty.
    pub(crate) fn take_exited(&mut self) -> Vec<ProcessKey> {
        std::mem::take(&mut self.exited)
    }

    /// Calls that are open now, of all threads, outer ones before those made inside them, and launches whose records are
    /// deferred because their return is not probed, inner ones first.
    pub(crate) fn open_calls(&self) -> Result<Vec<gp_call>, CaptureError> {
        task_iterator::read(&self.object, ProgramName::OpenCalls)
    }
}

fn ring(
    object: &Object,
    name: MapName,
    mut take: impl FnMut(&[u8]) + 'static,
) -> Result<RingBuffer<'static>, CaptureError> {
    let map = map_of(object, name)?;
    let mut builder = RingBufferBuilder::new();
    let added = builder.add(&map, move |bytes: &[u8]| {
        take(bytes);
        0
    });
    added.map_err(CaptureError::bpf("open a ring buffer"))?;
    builder.build().map_err(CaptureError::bpf("open a ring buffer"))
}

/// Whether twice as much waits in the ring as wakes the reader, although records have just been taken.
fn is_filling_up(ring: &RingBuffer<'_>) -> bool {
    // SAFETY: the ring buffer lives as long as the borrow, and has one ring, which these functions only read.
    let (waiting, size) = unsafe {
        let ring = libbpf_sys::ring_buffer__ring(ring.as_libbpf_object().as_ptr(), 0);
        (libbpf_sys::ring__avail_data_size(ring), libbpf_sys::ring__size(ring))
    };
    waiting > size / 16
}

/// Waits until one of the descriptors is readable. Being interrupted counts as waking up.
fn wait(descriptors: &[BorrowedFd<'_>], timeout: Duration) {
    let mut polls: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    // a time that does not fit is as good as no limit
    let timeout = Timespec::try_from(timeout).ok();
    poll(&mut polls, timeout.as_ref()).ok();
}
