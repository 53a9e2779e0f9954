//! Reads the names of Python frames in a thread of its own. The names are in the memory of the process, which may exit
//! at any time, while the symbols of the libraries of a stack can take seconds to read.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpuprobe_event::Tgid;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, poll};

use super::python_stacks::{PythonChanges, PythonStack, Pythons};
use super::resolver::Program;
use crate::host::wake_event::WakeEvent;
use crate::wire::{from_bytes, gp_python_record};

/// How long a stack waits for its Python frames, which were sent before it.
const PATIENCE: Duration = Duration::from_millis(200);

/// The interpreters of processes, and the thread that reads their frames.
#[derive(Debug)]
pub(crate) struct PythonReader {
    shared: Arc<Shared>,
    /// The ring of Python frames, until the thread has it.
    ring: Option<MapHandle>,
    thread: Option<ReadingThread>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Frames have been read.
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pythons: Pythons,
    stacks: WaitingPython,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // what a panicked thread left is still consistent: each record is added at once
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, bytes: &[u8]) {
        let raw: gp_python_record = from_bytes(bytes);
        let mut state = self.lock();
        let stack = state.pythons.resolve(&raw);
        state.stacks.add((raw.stack_kind, raw.id), stack);
        drop(state);
        self.arrived.notify_all();
    }
}

impl PythonReader {
    /// Without a ring no frames are read.
    pub(crate) fn new(ring: Option<MapHandle>) -> Self {
        Self { shared: Arc::default(), ring, thread: None }
    }

    /// Looks for the interpreter of a process. The first one that is found starts the thread: it has the privileges that
    /// this thread has then.
    pub(crate) fn observe(&mut self, tgid: Tgid, program: Program) {
        let mut state = self.shared.lock();
        state.pythons.observe(tgid, program);
        let is_needed = state.pythons.has_any();
        drop(state);
        if let Some(ring) = self.ring.take_if(|_| is_needed) {
            // without the thread, frames have no names
            self.thread = ReadingThread::start(&ring, Arc::clone(&self.shared)).ok();
        }
    }

    /// The Python frames that were sent with a stack. Waits for them for a moment.
    pub(crate) fn take(&mut self, stack_kind: u16, id: u64) -> Option<PythonStack> {
        let until = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        loop {
            if let Some(stack) = state.stacks.take((stack_kind, id)) {
                return stack;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.thread.is_none() {
                state.pythons.count_unread(1);
                return None;
            }
            let waited = self.shared.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn take_changes(&self) -> PythonChanges {
        self.shared.lock().pythons.take_changes()
    }

    /// Frames that could not be read.
    pub(crate) fn unread(&self) -> u64 {
        let state = self.shared.lock();
        state.pythons.unread() + state.stacks.dropped
    }

    /// Forgets an exited process.
    pub(crate) fn forget(&self, tgid: Tgid) {
        self.shared.lock().pythons.forget(tgid);
    }
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
struct ReadingThread {
    stop: Arc<WakeEvent>,
    handle: Option<JoinHandle<()>>,
}

impl ReadingThread {
    fn start(map: &MapHandle, shared: Arc<Shared>) -> io::Result<Self> {
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            shared.add(bytes);
            0
        };
        builder.add(map, take).map_err(io::Error::other)?;
        let ring = builder.build().map_err(io::Error::other)?;
        let stop = Arc::new(WakeEvent::new()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("python names".to_owned());
        let handle = thread.spawn(move || read_all(&ring, stopped.as_fd()))?;
        Ok(Self { stop, handle: Some(handle) })
    }
}

impl Drop for ReadingThread {
    fn drop(&mut self) {
        self.stop.set();
        self.handle.take().map(JoinHandle::join);
    }
}

fn read_all(ring: &RingBuffer<'_>, stop: BorrowedFd<'_>) {
    loop {
        // SAFETY: the descriptor belongs to the ring buffer, which lives as long as this function.
        let records = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
        let mut both =
            [PollFd::from_borrowed_fd(records, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        if poll(&mut both, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
            return;
        }
        // also what came before the end
        if ring.consume().is_err() || both[1].revents().contains(PollFlags::IN) {
            return;
        }
    }
}

/// Which stack Python frames belong to: its kind and its id.
type StackKey = (u16, u64);

/// Python frames whose stacks have not come yet; `None` if their process is not known.
#[derive(Debug, Default)]
pub(crate) struct WaitingPython {
    stacks: HashMap<StackKey, Option<PythonStack>>,
    order: VecDeque<StackKey>,
    /// Stacks for whose frames there was no room: they need not wait for them.
    without_room: VecDeque<StackKey>,
    dropped: u64,
}

impl WaitingPython {
    /// As many as arrive while the symbols of large libraries are read.
    const MAX: usize = 4096;
    /// More than there are stacks in the ring.
    const MAX_WITHOUT_ROOM: usize = 1 << 16;

    fn add(&mut self, key: StackKey, stack: Option<PythonStack>) {
        while self.order.len() >= Self::MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            self.stacks.insert(oldest, None);
            self.without_room.push_back(oldest);
            self.dropped += 1;
        }
        while self.without_room.len() > Self::MAX_WITHOUT_ROOM {
            self.without_room.pop_front().and_then(|oldest| self.stacks.remove(&oldest));
        }
        self.order.push_back(key);
        self.stacks.insert(key, stack);
    }

    fn take(&mut self, key: StackKey) -> Option<Option<PythonStack>> {
        let stack = self.stacks.remove(&key)?;
        // the oldest first: stacks come in nearly the same order
        if let Some(at) = self.order.iter().position(|of| *of == key) {
            self.order.remove(at);
        }
        Some(stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_wait_for_their_stacks_and_are_bounded() {
        let mut waiting = WaitingPython::default();
        for id in 0..WaitingPython::MAX as u64 + 3 {
            waiting.add((1, id), None);
        }
        assert_eq!((waiting.stacks.len(), waiting.order.len(), waiting.dropped), (4099, 4096, 3));
        assert_eq!((waiting.take((1, 2)), waiting.take((2, 5))), (Some(None), None), "dropped, not sent");
        assert_eq!(waiting.take((1, 5)), Some(None));
        assert_eq!((waiting.take((1, 5)), waiting.order.len()), (None, 4095));
        for id in 0..2 * WaitingPython::MAX_WITHOUT_ROOM as u64 {
            waiting.add((3, id), None);
        }
        let most = WaitingPython::MAX + WaitingPython::MAX_WITHOUT_ROOM;
        assert!(waiting.stacks.len() <= most && waiting.without_room.len() <= most);
    }

    #[test]
    fn a_stack_whose_frames_found_no_room_does_not_wait_for_them() {
        let mut reader = PythonReader::new(None);
        for id in 0..=WaitingPython::MAX as u64 {
            reader.shared.lock().stacks.add((1, id), None);
        }
        assert_eq!((reader.take(1, 0), reader.unread()), (None, 1), "counted once");
    }

    #[test]
    fn without_a_thread_nothing_waits() {
        let mut reader = PythonReader::new(None);
        let start = Instant::now();
        assert_eq!(reader.take(1, 1), None);
        assert!(start.elapsed() < PATIENCE);
        assert_eq!(reader.unread(), 1);
    }
}
