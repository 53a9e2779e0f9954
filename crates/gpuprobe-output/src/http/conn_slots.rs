//! Connection slots, which bound the resources of all clients together, and the choice of a connection to close if
//! there is no free slot.
//!
//! tower's concurrency and load limits are not used: they make new requests wait or refuse them. Here a new client
//! takes the slot of a silent, stalled or slow one.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{self, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::counts::{Counts, Reason};
use super::latest::TextId;
use super::password_queue::Client;

/// The limits for clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Simultaneous connections.
    pub(super) connections: usize,
    /// How long a request may take to arrive, including the TLS handshake.
    pub(super) request: Duration,
    /// How long an answer may take until the client has received all of it.
    pub(super) answer: Duration,
    /// If all slots are taken, a connection whose client has read nothing for this long is closed for a new one.
    pub(super) stalled: Duration,
    /// If there is no such connection, one that has been open for this long is closed.
    pub(super) patience: Duration,
    /// The longest request head.
    pub(super) head_bytes: usize,
    /// Distinct texts that are still being sent to some client.
    pub(super) texts: usize,
    /// The total size of these texts, if there is more than one.
    pub(super) text_bytes: usize,
}

pub(super) const LIMITS: Limits = Limits {
    connections: 256,
    request: Duration::from_secs(5),
    answer: Duration::from_secs(10),
    stalled: Duration::from_millis(20),
    patience: Duration::from_secs(2),
    head_bytes: 16 << 10,
    texts: 8,
    text_bytes: 256 << 20,
};

/// Between two attempts to find a slot, if none was released.
const RETRY: Duration = Duration::from_millis(5);

/// Open connections by number: the lowest is the oldest.
#[derive(Debug)]
pub(super) struct ConnTable {
    limits: Limits,
    open: Mutex<BTreeMap<u64, Open>>,
    freed: Notify,
}

#[derive(Debug)]
struct Open {
    begun: Instant,
    /// When its request had arrived.
    requested: Option<Instant>,
    /// Since when the client reads nothing, although there is more to send.
    stalled: Option<Instant>,
    text: Option<TextId>,
    task: Option<AbortHandle>,
}

impl ConnTable {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default(), freed: Notify::new() })
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, for which another connection may be closed.
    pub(super) async fn take_slot(
        self: &Arc<Self>,
        number: u64,
        client: Client,
        counts: &Counts,
    ) -> Arc<ConnSlot> {
        while self.open().len() >= self.limits.connections {
            if self.close_one() {
                counts.refused(Reason::CrowdedOut);
            } else {
                timeout(RETRY, self.freed.notified()).await.ok();
            }
        }
        let open = Open { begun: Instant::now(), requested: None, stalled: None, text: None, task: None };
        self.open().insert(number, open);
        Arc::new(ConnSlot { table: Arc::clone(self), number, client })
    }

    /// Closes a connection in favour of a new one: the oldest that has sent no request, else the one that has read
    /// nothing for longest, else the oldest that has been open for long. Returns `false` if there is none.
    fn close_one(&self) -> bool {
        let Limits { stalled, patience, .. } = self.limits;
        let mut open = self.open();
        let silent = || open.iter().find(|(_, open)| open.requested.is_none());
        let unread = || {
            let since = open.iter().filter_map(|(number, open)| Some((open.stalled?, number)));
            let (since, number) = since.min()?;
            (since.elapsed() > stalled).then(|| open.get_key_value(number))?
        };
        let slow = || open.iter().find(|(_, open)| open.begun.elapsed() > patience);
        let victim = silent().or_else(unread).or_else(slow).map(|(number, _)| *number);
        let Some(victim) = victim.and_then(|number| open.remove(&number)) else { return false };
        victim.close();
        true
    }

    /// Closes the connections that still receive the oldest texts while there are too many texts or too many bytes.
    /// Returns the number of closed connections.
    fn drop_old_texts(&self) -> usize {
        let mut open = self.open();
        let mut texts: BTreeMap<TextId, Vec<u64>> = BTreeMap::new();
        for (number, open) in open.iter() {
            if let Some(text) = open.text {
                texts.entry(text).or_default().push(*number);
            }
        }
        let mut closed = 0;
        while texts.len() > self.limits.texts
            || texts.len() > 1 && texts.keys().map(|text| text.bytes).sum::<usize>() > self.limits.text_bytes
        {
            let Some((_, readers)) = texts.pop_first() else { break };
            for victim in readers.iter().filter_map(|number| open.remove(number)) {
                victim.close();
                closed += 1;
            }
        }
        closed
    }
}

impl Open {
    fn close(self) {
        if let Some(task) = self.task {
            task.abort();
        }
    }
}

/// A slot of the connection table, released when this is dropped.
#[derive(Debug)]
pub(super) struct ConnSlot {
    table: Arc<ConnTable>,
    number: u64,
    client: Client,
}

impl ConnSlot {
    fn with<T>(&self, then: impl FnOnce(&mut Open) -> T) -> Option<T> {
        // a closed connection is no longer in the table
        self.table.open().get_mut(&self.number).map(then)
    }

    pub(super) fn client(&self) -> Client {
        self.client
    }

    /// Sets the task that answers the connection.
    pub(super) fn set_task(&self, task: AbortHandle) {
        self.with(|open| open.task = Some(task));
    }

    /// Notes that the request has arrived.
    pub(super) fn request_arrived(&self) {
        self.with(|open| open.requested = Some(Instant::now()));
    }

    pub(super) fn requested_at(&self) -> Option<Instant> {
        self.with(|open| open.requested).flatten()
    }

    /// Notes that this text is being sent. Other connections may be closed for it.
    pub(super) fn sends(&self, text: TextId, counts: &Counts) {
        self.with(|open| open.text = Some(text));
        for _ in 0..self.table.drop_old_texts() {
            counts.refused(Reason::OldText);
        }
    }

    fn note_write(&self, written: &Poll<io::Result<usize>>) {
        let is_stalled = written.is_pending();
        self.with(|open| match is_stalled {
            true => open.stalled = open.stalled.or_else(|| Some(Instant::now())),
            false => open.stalled = None,
        });
    }
}

impl Drop for ConnSlot {
    fn drop(&mut self) {
        self.table.open().remove(&self.number);
        self.table.freed.notify_one();
    }
}

/// A connection that notes whether its client reads what is sent.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) stream: TcpStream,
    pub(super) slot: Arc<ConnSlot>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.slot.note_write(&written);
        written
    }

    // without these two methods a text would be copied once more
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.slot.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
