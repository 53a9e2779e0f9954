//! Connections, each with one request, and what clients may take up with them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::counts::Reason;
use super::routes::Site;
use super::web_config::Access;

/// What clients may take up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at once. When there are as many, the oldest that has not sent its request is cut for a new one.
    pub(super) connections: usize,
    /// How long a request may take to arrive, with the handshake before it.
    pub(super) request: Duration,
    /// How long an answer may take, until the client has all of it.
    pub(super) answer: Duration,
    /// Of connections that are being answered, those older than this are cut for a new one where all are.
    pub(super) patience: Duration,
    /// The longest head of a request.
    pub(super) head_bytes: usize,
}

pub(super) const LIMITS: Limits = Limits {
    connections: 256,
    request: Duration::from_secs(5),
    answer: Duration::from_secs(10),
    patience: Duration::from_secs(2),
    head_bytes: 16 << 10,
};

/// After a connection could not be accepted, as where there are no descriptors left; and between looks for a place.
const AGAIN: Duration = Duration::from_millis(50);
/// The first byte of a client that speaks TLS.
const TLS_HANDSHAKE: u8 = 0x16;
const NOT_TLS: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nthis port speaks TLS: ask with https://\n";

/// Connections that are open, by number: the lowest is the oldest.
#[derive(Debug)]
struct Table {
    limits: Limits,
    open: Mutex<BTreeMap<u64, Open>>,
    freed: Notify,
}

#[derive(Debug)]
struct Open {
    begun: Instant,
    asked: Option<Instant>,
    task: Option<AbortHandle>,
}

impl Table {
    fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default(), freed: Notify::new() })
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, for which somebody else may lose theirs.
    async fn place(self: &Arc<Self>, number: u64, site: &Site) -> Place {
        while self.open().len() >= self.limits.connections {
            if self.crowd_out() {
                site.counts().refused(Reason::CrowdedOut);
            } else {
                timeout(AGAIN, self.freed.notified()).await.ok();
            }
        }
        self.open().insert(number, Open { begun: Instant::now(), asked: None, task: None });
        Place { table: Arc::clone(self), number }
    }

    /// Cuts one off that does not deserve its place; `false` where all do.
    fn crowd_out(&self) -> bool {
        let mut open = self.open();
        let slow = |(_, open): &(&u64, &Open)| open.begun.elapsed() > self.limits.patience;
        let silent = open.iter().find(|(_, open)| open.asked.is_none());
        let victim = silent.or_else(|| open.iter().find(slow)).map(|(number, _)| *number);
        let Some(victim) = victim.and_then(|number| open.remove(&number)) else { return false };
        if let Some(task) = victim.task {
            task.abort();
        }
        true
    }
}

/// A place among the connections, given back when this goes.
#[derive(Debug)]
struct Place {
    table: Arc<Table>,
    number: u64,
}

impl Place {
    fn with<T>(&self, then: impl FnOnce(&mut Open) -> T) -> Option<T> {
        // one that was crowded out is not there any more
        self.table.open().get_mut(&self.number).map(then)
    }

    fn asked_at(&self) -> Option<Instant> {
        self.with(|open| open.asked).flatten()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.open().remove(&self.number);
        self.table.freed.notify_one();
    }
}

/// Answers whoever comes, for ever.
pub(super) async fn accept(limits: Limits, listener: TcpListener, site: Arc<Site>) {
    let table = Table::new(limits);
    for number in 0.. {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                sleep(AGAIN).await;
                continue;
            }
        };
        let place = Arc::new(table.place(number, &site).await);
        let answered = tokio::spawn(answer(limits, stream, Arc::clone(&site), Arc::clone(&place)));
        place.with(|open| open.task = Some(answered.abort_handle()));
    }
}

/// Answers one request. A client that is too slow, or goes away, has itself to blame.
async fn answer(limits: Limits, stream: TcpStream, site: Arc<Site>, place: Arc<Place>) {
    let mut conversation = pin!(converse(limits, stream, &site, &place));
    let mut deadline = Instant::now() + limits.request;
    let ended = loop {
        match (timeout_at(deadline, &mut conversation).await, place.asked_at()) {
            (Ok(ended), _) => break ended,
            (Err(_), None) => break Err(Reason::SlowRequest),
            (Err(_), Some(asked)) if asked + limits.answer <= deadline => break Err(Reason::SlowAnswer),
            (Err(_), Some(asked)) => deadline = asked + limits.answer,
        }
    };
    if let Err(reason) = ended {
        site.counts().refused(reason);
    }
}

async fn converse(
    limits: Limits,
    mut stream: TcpStream,
    site: &Arc<Site>,
    place: &Arc<Place>,
) -> Result<(), Reason> {
    let access = site.access();
    let Some(tls) = access.tls.clone() else { return http(limits, stream, site, &access, place).await };
    match first_byte(&stream).await {
        // it went away
        None => Ok(()),
        Some(TLS_HANDSHAKE) => {
            let stream = tls.accept(stream).await.map_err(handshake)?;
            http(limits, stream, site, &access, place).await
        }
        Some(_) => {
            // who does not take it has gone
            stream.write_all(NOT_TLS).await.ok();
            stream.shutdown().await.ok();
            Err(Reason::NotTls)
        }
    }
}

async fn first_byte(stream: &TcpStream) -> Option<u8> {
    let mut byte = [0];
    let read = stream.peek(&mut byte).await.ok()?;
    byte.first().copied().filter(|_| read > 0)
}

fn handshake(_: io::Error) -> Reason {
    Reason::Handshake
}

async fn http(
    limits: Limits,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    site: &Arc<Site>,
    access: &Arc<Access>,
    place: &Arc<Place>,
) -> Result<(), Reason> {
    let service = service_fn(|request: Request<Incoming>| {
        place.with(|open| open.asked = Some(Instant::now()));
        let (site, access) = (Arc::clone(site), Arc::clone(access));
        async move { Ok::<_, Infallible>(site.answer(&access, request.map(Body::new)).await) }
    });
    let ended = http1::Builder::new()
        // a client that keeps it open would be cut in the middle of a later request
        .keep_alive(false)
        // the time of everything that a client does is limited by the caller
        .header_read_timeout(None)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    match ended {
        Err(error) if error.is_parse_too_large() => Err(Reason::TooLarge),
        Err(error) if error.is_parse() => Err(Reason::Malformed),
        // it went away
        Err(_) | Ok(()) => Ok(()),
    }
}
