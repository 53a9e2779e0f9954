//! Access for the fuzz targets: the endpoint's answer to the bytes of a client, without a socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use gpuprobe_analysis::Snapshot;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use super::auth::{self, Authenticator};
use super::conn_slots::{ConnTable, LIMITS};
use super::connections::http;
use super::latest::{Latest, Serving};
use super::routes::{Shown, Site, router};
use super::web_config::WebConfig;
use super::{FRESH_FOR, HttpError, OnRequest};

/// Longer than any answer.
const BUFFER_BYTES: usize = 1 << 20;
/// How often the endpoint runs between two pieces of a request.
const TURNS: usize = 16;
/// Requested once at the start, so that later answers do not wait for another thread to make them.
const PAGES: [(&str, &str); 3] =
    [("/metrics", ""), ("/metrics", "Accept: application/openmetrics-text\r\n"), ("/api/snapshot", "")];

struct Server {
    runtime: Runtime,
    site: Arc<Site>,
}

impl Server {
    fn new() -> Result<Self, HttpError> {
        let latest = Latest::default();
        latest.publish(Snapshot::default(), Duration::from_secs(3600));
        let serving = Arc::new(Serving::new(latest));
        let site = Site {
            serving: Arc::clone(&serving),
            web_config: WebConfig::open(None, |_| {}).map_err(HttpError::WebConfig)?,
            auth: Authenticator::new().ok_or(HttpError::Random)?,
            router: router(Shown { serving, fresh_for: FRESH_FOR, on_request: OnRequest::default() }),
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(HttpError::Runtime)?;
        let server = Self { runtime, site: Arc::new(site) };
        for (path, header) in PAGES {
            for coding in ["", "Accept-Encoding: gzip\r\n"] {
                let request = format!("GET {path} HTTP/1.1\r\n{header}{coding}\r\n");
                let answered = Self::answer(Arc::clone(&server.site), request.as_bytes(), 1, true);
                server.runtime.block_on(answered).map_err(HttpError::Runtime)?;
            }
        }
        Ok(server)
    }

    /// `waits`: the client does not close its side before it has received the answer.
    async fn answer(site: Arc<Site>, request: &[u8], pieces: usize, waits: bool) -> io::Result<Vec<u8>> {
        let (mut client, server) = duplex(BUFFER_BYTES.max(request.len()));
        let served = tokio::spawn(async move {
            let slot = ConnTable::new(LIMITS)
                .take_slot(0, IpAddr::from(Ipv4Addr::LOCALHOST).into(), site.counts())
                .await;
            // the reason of a refusal only matters for the counters
            http(LIMITS, server, &site, &site.access(), &slot).await.ok();
        });
        for piece in request.chunks(request.len().div_ceil(pieces.max(1)).max(1)) {
            // the endpoint may already have answered and closed
            if client.write_all(piece).await.is_err() {
                break;
            }
            for _ in 0..TURNS {
                yield_now().await;
            }
        }
        if !waits {
            client.shutdown().await.ok();
        }
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await?;
        served.await.map_err(io::Error::other)?;
        Ok(answer)
    }
}

/// The endpoint's answer to a client that sends these bytes in `pieces` pieces and nothing more.
///
/// # Panics
/// Panics if the endpoint does.
pub fn answer(request: &[u8], pieces: usize) -> Vec<u8> {
    static SERVER: LazyLock<Result<Mutex<Server>, HttpError>> =
        LazyLock::new(|| Server::new().map(Mutex::new));
    let server = SERVER.as_ref().unwrap_or_else(|error| panic!("the endpoint cannot be started: {error}"));
    let server = server.lock().unwrap_or_else(PoisonError::into_inner);
    let answered = server.runtime.block_on(Server::answer(Arc::clone(&server.site), request, pieces, false));
    answered.unwrap_or_else(|error| panic!("the endpoint failed: {error}"))
}

/// Name and password of an `Authorization` header.
pub fn credentials(header: &[u8]) -> Option<(String, Vec<u8>)> {
    auth::credentials(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_when_it_arrives_in_pieces() {
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        for pieces in [1, 3, request.len()] {
            let text = String::from_utf8(answer(request, pieces)).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\ngpuprobe_"), "{text}");
        }
        assert!(answer(b"nonsense\r\n\r\n", 2).starts_with(b"HTTP/1.1 400 "));
        assert!(answer(b"GET /metr", 1).is_empty(), "the request is incomplete");
        assert_eq!(credentials(b"Basic YTpi"), Some(("a".to_owned(), b"b".to_vec())));
    }
}
