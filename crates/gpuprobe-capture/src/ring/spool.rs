//! Records that were copied out of the ring and wait to be decoded. Copying a record takes a fraction of the time that
//! decoding and writing it takes, so the ring does not fill up while the reader is behind.
//!
//! One thread copies out of the ring into memory. If much waits there, another one moves it to a file, because a write may
//! have to wait for the disk. What is in the file is always older than what is in memory.
//!
//! The stacks of unknown call sites do not wait: BPF sends more of them until they are known.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use super::records::Records;
use super::ring_reader::MAX_BATCH_CALLS;
use super::spool_file::SpoolFile;
use super::spool_queue::Shared;
use crate::host::urgency::Urgent;
use crate::wire::number;

/// A part is complete when it has this many bytes, or as many records as a batch.
const PART_BYTES: u64 = 2 << 20;
/// So many records are copied at once: the size of a part is looked at in between.
const COPIED_AT_ONCE: usize = 256;
/// How long the ring fills before it is copied again. The default ring takes 200 ms of two million small calls a second.
const COPY_EVERY: Duration = Duration::from_millis(4);

/// The file of a session's spools, which use it one after the other.
pub(crate) type SharedFile = Arc<Mutex<Option<SpoolFile>>>;

/// The threads that spool, and what they have spooled.
pub(crate) struct Spool {
    shared: Arc<Shared>,
    file: SharedFile,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("waiting_calls", &self.waiting_calls()).finish_non_exhaustive()
    }
}

impl Spool {
    /// Starts to copy. Nothing else may read the ring until [`Spool::next`] has returned `None`.
    pub(crate) fn start(ring: MapHandle, file: &SharedFile) -> io::Result<Self> {
        let mut spool = Self { shared: Arc::default(), file: Arc::clone(file), threads: Vec::new() };
        let (shared, stored) = (Arc::clone(&spool.shared), Arc::clone(file));
        let storing = move || store_all(&shared, &stored);
        spool.threads.push(Builder::new().name("spool to file".to_owned()).spawn(storing)?);
        let shared = Arc::clone(&spool.shared);
        let copying = move || {
            let result = copy_all(&ring, &shared);
            shared.lock().failure = result.err();
        };
        spool.threads.push(Builder::new().name("spool".to_owned()).spawn(copying)?);
        Ok(spool)
    }

    /// The oldest records, in place of `used`, whose memory is used again. If there are none left, the threads end, and
    /// the ring may be read again.
    pub(crate) fn next(&mut self, used: &mut Records) -> io::Result<bool> {
        if self.take(used)? {
            return Ok(true);
        }
        // the last part may have come meanwhile
        self.end_copying();
        if self.take(used)? {
            return Ok(true);
        }
        match self.shared.lock().failure.take() {
            Some(error) => Err(error),
            None => Ok(false),
        }
    }

    /// Takes the stacks of call sites that came with what has been taken, or after it.
    pub(crate) fn take_sites(&self, sites: &mut Records) {
        self.shared.lock().take_sites(sites);
        self.shared.made_room();
    }

    /// How many calls wait.
    pub(crate) fn waiting_calls(&self) -> u64 {
        self.shared.lock().calls()
    }

    /// Ends copying and discards what waits. Returns how many calls were discarded.
    pub(crate) fn discard(&mut self) -> u64 {
        self.end_copying();
        let discarded = self.shared.lock().discard();
        if let Some(file) = lock_file(&self.file).as_mut() {
            file.clear();
        }
        discarded
    }

    fn take(&self, used: &mut Records) -> io::Result<bool> {
        let mut queue = self.shared.lock();
        loop {
            if let Some(part) = queue.take_stored() {
                drop(queue);
                let taken = lock_file(&self.file).as_mut().map(|file| file.take(&part, used));
                self.shared.made_room();
                return taken.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).map(|()| true);
            }
            if !queue.is_storing {
                let is_found = queue.take_waiting(used);
                drop(queue);
                self.shared.made_room();
                return Ok(is_found);
            }
            queue = self.shared.wait(queue);
        }
    }

    fn end_copying(&mut self) {
        self.shared.end();
        for thread in self.threads.drain(..) {
            // a thread that panicked has left whole parts
            thread.join().ok();
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.discard();
    }
}

fn lock_file(file: &SharedFile) -> MutexGuard<'_, Option<SpoolFile>> {
    // what a panicked thread left is still consistent: a part is noted after it was written
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies records out of the ring until the end.
fn copy_all(map: &MapHandle, shared: &Shared) -> io::Result<()> {
    // it takes little time, and while it waits for a CPU the ring fills up
    let _urgent = Urgent::begin();
    let copied: Rc<RefCell<Copied>> = Rc::default();
    let taker = Rc::clone(&copied);
    let mut builder = RingBufferBuilder::new();
    let take = move |bytes: &[u8]| {
        taker.borrow_mut().take(bytes);
        0
    };
    builder.add(map, take).map_err(io::Error::other)?;
    let ring = builder.build().map_err(io::Error::other)?;
    while let Some(unused) = shared.wait_for_room() {
        copied.borrow_mut().part = unused;
        let is_drained = fill(&ring, &copied)?;
        let Copied { part, sites } = &mut *copied.borrow_mut();
        shared.add(std::mem::take(part), sites);
        if is_drained && !shared.sleep(COPY_EVERY) {
            break;
        }
    }
    Ok(())
}

/// What was copied last.
#[derive(Debug, Default)]
struct Copied {
    part: Records,
    sites: Records,
}

impl Copied {
    fn take(&mut self, bytes: &[u8]) {
        let is_site = bytes.first_chunk() == Some(&number::RECORD_SITE.to_ne_bytes());
        if is_site { self.sites.push(bytes) } else { self.part.push(bytes) }
    }
}

/// Fills one part. Returns whether the ring is empty.
fn fill(ring: &RingBuffer<'_>, copied: &RefCell<Copied>) -> io::Result<bool> {
    loop {
        let taken = ring.consume_raw_n(COPIED_AT_ONCE);
        let Ok(taken) = usize::try_from(taken) else {
            return Err(io::Error::from_raw_os_error(-taken));
        };
        if taken < COPIED_AT_ONCE {
            return Ok(true);
        }
        let Copied { part, sites } = &*copied.borrow();
        if part.len() + COPIED_AT_ONCE > MAX_BATCH_CALLS || part.size() + sites.size() >= PART_BYTES {
            return Ok(false);
        }
    }
}

/// Moves what waits in memory to the file while there is much of it, until the end.
fn store_all(shared: &Shared, file: &SharedFile) {
    while let Some(records) = shared.wait_for_much() {
        let stored = lock_file(file).as_mut().and_then(|file| file.add(&records));
        shared.stored(records, stored);
    }
}
