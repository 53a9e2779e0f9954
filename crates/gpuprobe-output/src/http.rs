//! The HTTP endpoint of the daemon. A scrape reads the last snapshot and nothing else: it cannot slow the capture down.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use gpuprobe_analysis::Snapshot;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::metrics::{Format, encode};

/// Why the endpoint could not be started.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The listener was refused by the runtime.
    #[error("cannot serve on the listening socket: {0}")]
    Listener(#[source] io::Error),
    /// No runtime.
    #[error("cannot start the runtime of the HTTP server: {0}")]
    Runtime(#[source] io::Error),
    /// No thread.
    #[error("cannot start the thread of the HTTP server: {0}")]
    Thread(#[source] io::Error),
}

/// The last snapshot, shared between who makes them and who serves them.
#[derive(Clone, Debug, Default)]
pub struct Latest(Arc<RwLock<Arc<Snapshot>>>);

impl Latest {
    /// Replaces the snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        // a poisoned lock still holds a whole snapshot: only the pointer is ever swapped under it
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// The snapshot published last; an empty one before the first.
    pub fn get(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running endpoint. It stops when this is dropped.
#[derive(Debug)]
pub struct ServerHandle {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        // the thread ends when the sender is gone
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // a panic over there was reported there, and there is nobody to hand it to here
            drop(thread.join());
        }
    }
}

/// What clients may take up.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at once; more wait for one to end.
    connections: usize,
    /// How long a request may take to arrive.
    request: Duration,
    /// How long a connection may last. Each serves one request: a client that keeps it open would be cut in the middle
    /// of a later one.
    connection: Duration,
}

const LIMITS: Limits =
    Limits { connections: 64, request: Duration::from_secs(5), connection: Duration::from_secs(60) };
/// After a connection could not be accepted, as where there are no descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves `/metrics`, `/healthz` and an index on a thread of its own.
pub fn serve(listener: TcpListener, latest: Latest) -> Result<ServerHandle, HttpError> {
    serve_within(LIMITS, listener, latest)
}

fn serve_within(limits: Limits, listener: TcpListener, latest: Latest) -> Result<ServerHandle, HttpError> {
    listener.set_nonblocking(true).map_err(HttpError::Listener)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(HttpError::Runtime)?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener).map_err(HttpError::Listener)?
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        let server = runtime.spawn(accept(limits, listener, router(latest)));
        // an error means that the sender is gone, which is the sign to stop
        let _sign: Result<(), _> = runtime.block_on(stopped);
        server.abort();
        // open connections are cut: an idle client must not hold up the end of the daemon
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("http".to_owned()).spawn(work);
    let thread = thread.map_err(HttpError::Thread)?;
    Ok(ServerHandle { stop: Some(stop), thread: Some(thread) })
}

async fn accept(limits: Limits, listener: tokio::net::TcpListener, router: Router) {
    let free = Arc::new(Semaphore::new(limits.connections));
    // the semaphore is never closed
    while let Ok(place) = Arc::clone(&free).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let answered = answer(limits, stream, router.clone());
        tokio::spawn(async move {
            answered.await;
            drop(place);
        });
    }
}

/// Answers one request. A client that is too slow, or goes away, has itself to blame.
async fn answer(limits: Limits, stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    timeout(limits.connection, connection).await.ok();
}

fn router(latest: Latest) -> Router {
    const INDEX: &str = "gpuprobe\n\n/metrics  metrics for Prometheus\n/healthz  ok while this runs\n";
    Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics))
        .with_state(latest)
}

async fn metrics(State(latest): State<Latest>, headers: HeaderMap) -> impl IntoResponse {
    let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    let format = negotiate(&accept.join(","));
    ([(CONTENT_TYPE, format.content_type())], encode(&latest.get(), format))
}

/// The format that an `Accept` header asks for. OpenMetrics must be asked for by name, and no less than plain text.
fn negotiate(accept: &str) -> Format {
    let (mut openmetrics, mut plain) = (0.0_f32, 0.0_f32);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(|p| p.trim().to_ascii_lowercase());
        let media = parts.next().unwrap_or_default();
        let (mut weight, mut version) = (1.0_f32, None);
        for (name, value) in
            parts.filter_map(|p| p.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())))
        {
            match name.as_str() {
                "q" => weight = value.parse().unwrap_or(0.0),
                "version" => version = Some(value),
                _ => {}
            }
        }
        match media.as_str() {
            "application/openmetrics-text" if version.is_none_or(|v| v == "1.0.0") => {
                openmetrics = weight.max(openmetrics);
            }
            "text/plain" => plain = weight.max(plain),
            _ => {}
        }
    }
    if openmetrics > 0.0 && openmetrics >= plain { Format::OpenMetrics } else { Format::Prometheus }
}

#[cfg(test)]
mod tests;
