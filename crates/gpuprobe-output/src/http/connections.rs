//! Accepts connections and answers one request on each.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::conn_slots::{ConnSlot, ConnTable, Limits, Watched};
use super::counts::Reason;
use super::latest::TextId;
use super::password_queue::Client;
use super::routes::Site;
use super::web_config::Access;

/// The pause after a connection could not be accepted, for example because there are no file descriptors left.
const RETRY: Duration = Duration::from_millis(50);
/// The first byte that a TLS client sends.
const TLS_HANDSHAKE: u8 = 0x16;
const NOT_TLS: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nthis port requires TLS: use https://\n";

/// Accepts and answers connections, forever.
pub(super) async fn accept(limits: Limits, listener: TcpListener, site: Arc<Site>) {
    let table = ConnTable::new(limits);
    for number in 0.. {
        let (stream, client) = match listener.accept().await {
            Ok((stream, address)) => (stream, Client::from(address.ip())),
            Err(_) => {
                sleep(RETRY).await;
                continue;
            }
        };
        let slot = table.take_slot(number, client, site.counts()).await;
        let answered = tokio::spawn(answer(limits, stream, Arc::clone(&site), Arc::clone(&slot)));
        slot.set_task(answered.abort_handle());
    }
}

/// Answers one request. The connection of a client that is too slow is closed.
async fn answer(limits: Limits, stream: TcpStream, site: Arc<Site>, slot: Arc<ConnSlot>) {
    let mut serving = pin!(serve(limits, stream, &site, &slot));
    let mut deadline = Instant::now() + limits.request;
    let result = loop {
        match (timeout_at(deadline, &mut serving).await, slot.requested_at()) {
            (Ok(result), _) => break result,
            (Err(_), None) => break Err(Reason::SlowRequest),
            (Err(_), Some(requested)) if requested + limits.answer <= deadline => {
                break Err(Reason::SlowAnswer);
            }
            (Err(_), Some(requested)) => deadline = requested + limits.answer,
        }
    };
    if let Err(reason) = result {
        site.counts().refused(reason);
    }
}

async fn serve(
    limits: Limits,
    mut stream: TcpStream,
    site: &Arc<Site>,
    slot: &Arc<ConnSlot>,
) -> Result<(), Reason> {
    let access = site.access();
    let watched = |stream| Watched { stream, slot: Arc::clone(slot) };
    let Some(tls) = access.tls.clone() else {
        return http(limits, watched(stream), site, &access, slot).await;
    };
    match first_byte(&stream).await {
        // the client disconnected
        None => Ok(()),
        Some(TLS_HANDSHAKE) => {
            let stream = tls.accept(watched(stream)).await.map_err(handshake)?;
            http(limits, stream, site, &access, slot).await
        }
        Some(_) => {
            // a failure means that the client disconnected
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

pub(super) async fn http(
    limits: Limits,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    site: &Arc<Site>,
    access: &Arc<Access>,
    slot: &Arc<ConnSlot>,
) -> Result<(), Reason> {
    let service = service_fn(|request: Request<Incoming>| {
        slot.request_arrived();
        let (site, access, slot) = (Arc::clone(site), Arc::clone(access), Arc::clone(slot));
        async move {
            let response = site.answer(&access, request.map(Body::new), slot.client()).await;
            if let Some(text) = response.extensions().get::<TextId>() {
                slot.sends(*text, site.counts());
            }
            Ok::<_, Infallible>(response)
        }
    });
    let result = http1::Builder::new()
        // with keep-alive the deadlines would end a later request in the middle
        .keep_alive(false)
        // the caller limits the time of the whole request
        .header_read_timeout(None)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    match result {
        Err(error) if error.is_parse_too_large() => Err(Reason::TooLarge),
        Err(error) if error.is_parse() => Err(Reason::Malformed),
        // the client closed first, after it had received all of its answer
        Err(error) if error.is_shutdown() => Ok(()),
        Err(_) => Err(Reason::Aborted),
        Ok(()) => Ok(()),
    }
}
