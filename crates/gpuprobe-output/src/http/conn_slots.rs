//! Places for connections, and who loses theirs: what clients take up together has a bound.

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

/// What clients may take up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at once.
    pub(super) connections: usize,
    /// How long a request may take to arrive, with the handshake before it.
    pub(super) request: Duration,
    /// How long an answer may take, until the client has all of it.
    pub(super) answer: Duration,
    /// Where all places are taken, who has taken nothing of its answer for so long is cut for a new one.
    pub(super) stalled: Duration,
    /// So is, where nobody is slower than that, who is there for so long.
    pub(super) patience: Duration,
    /// The longest head of a request.
    pub(super) head_bytes: usize,
    /// Texts of which some part is still to be sent to somebody, each counted once.
    pub(super) texts: usize,
    /// What these may come to in bytes, where there is more than one.
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

/// Between looks for a place, where nobody has given one back.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Connections that are open, by number: the lowest is the oldest.
#[derive(Debug)]
pub(super) struct Table {
    limits: Limits,
    open: Mutex<BTreeMap<u64, Open>>,
    freed: Notify,
}

#[derive(Debug)]
struct Open {
    begun: Instant,
    asked: Option<Instant>,
    /// Since when the client takes nothing, though there is more for it.
    stalled: Option<Instant>,
    text: Option<TextId>,
    task: Option<AbortHandle>,
}

impl Table {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default(), freed: Notify::new() })
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, for which somebody else may lose theirs.
    pub(super) async fn place(self: &Arc<Self>, number: u64, client: Client, counts: &Counts) -> Arc<Place> {
        while self.open().len() >= self.limits.connections {
            if self.crowd_out() {
                counts.refused(Reason::CrowdedOut);
            } else {
                timeout(LOOK_AGAIN, self.freed.notified()).await.ok();
            }
        }
        let open = Open { begun: Instant::now(), asked: None, stalled: None, text: None, task: None };
        self.open().insert(number, open);
        Arc::new(Place { table: Arc::clone(self), number, client })
    }

    /// Cuts one off that does not deserve its place; `false` where all do.
    fn crowd_out(&self) -> bool {
        let Limits { stalled, patience, .. } = self.limits;
        let mut open = self.open();
        let silent = || open.iter().find(|(_, open)| open.asked.is_none());
        let unread = || {
            let since = open.iter().filter_map(|(number, open)| Some((open.stalled?, number)));
            let (since, number) = since.min()?;
            (since.elapsed() > stalled).then(|| open.get_key_value(number))?
        };
        let slow = || open.iter().find(|(_, open)| open.begun.elapsed() > patience);
        let victim = silent().or_else(unread).or_else(slow).map(|(number, _)| *number);
        let Some(victim) = victim.and_then(|number| open.remove(&number)) else { return false };
        victim.cut();
        true
    }

    /// Cuts off who still takes the oldest texts, where there are too many or too long ones; tells how many that were.
    fn drop_old_texts(&self) -> usize {
        let mut open = self.open();
        let mut texts: BTreeMap<TextId, Vec<u64>> = BTreeMap::new();
        for (number, open) in open.iter() {
            if let Some(text) = open.text {
                texts.entry(text).or_default().push(*number);
            }
        }
        let mut cut = 0;
        while texts.len() > self.limits.texts
            || texts.len() > 1 && texts.keys().map(|text| text.bytes).sum::<usize>() > self.limits.text_bytes
        {
            let Some((_, readers)) = texts.pop_first() else { break };
            for victim in readers.iter().filter_map(|number| open.remove(number)) {
                victim.cut();
                cut += 1;
            }
        }
        cut
    }
}

impl Open {
    fn cut(self) {
        if let Some(task) = self.task {
            task.abort();
        }
    }
}

/// A place among the connections, given back when this goes.
#[derive(Debug)]
pub(super) struct Place {
    table: Arc<Table>,
    number: u64,
    client: Client,
}

impl Place {
    fn with<T>(&self, then: impl FnOnce(&mut Open) -> T) -> Option<T> {
        // one that was cut off is not there any more
        self.table.open().get_mut(&self.number).map(then)
    }

    /// Who has it.
    pub(super) fn client(&self) -> Client {
        self.client
    }

    /// The connection is answered by this task.
    pub(super) fn is_of(&self, task: AbortHandle) {
        self.with(|open| open.task = Some(task));
    }

    /// The request is there.
    pub(super) fn asks(&self) {
        self.with(|open| open.asked = Some(Instant::now()));
    }

    pub(super) fn asked_at(&self) -> Option<Instant> {
        self.with(|open| open.asked).flatten()
    }

    /// This text is the answer. Others may be cut off for it.
    pub(super) fn takes(&self, text: TextId, counts: &Counts) {
        self.with(|open| open.text = Some(text));
        for _ in 0..self.table.drop_old_texts() {
            counts.refused(Reason::OldText);
        }
    }

    fn moved(&self, written: &Poll<io::Result<usize>>) {
        let is_stalled = written.is_pending();
        self.with(|open| match is_stalled {
            true => open.stalled = open.stalled.or_else(|| Some(Instant::now())),
            false => open.stalled = None,
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.open().remove(&self.number);
        self.table.freed.notify_one();
    }
}

/// A connection of which is known whether its client takes what it is sent.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) stream: TcpStream,
    pub(super) place: Arc<Place>,
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
        self.place.moved(&written);
        written
    }

    // without these two a text would be copied once more
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.place.moved(&written);
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
