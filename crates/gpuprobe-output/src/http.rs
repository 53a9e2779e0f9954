//! The HTTP endpoint of the daemon. A scrape reads the last snapshot and nothing else: it cannot slow the capture down.

mod auth;
mod conn_slots;
mod connections;
mod counts;
pub mod fuzz;
mod latest;
mod password_queue;
mod routes;
mod tls;
mod web_config;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use auth::Doorkeeper;
use conn_slots::{LIMITS, Limits};
use connections::accept;
pub use latest::Latest;
use latest::Serving;
use routes::{Shown, Site, router};
use web_config::WebConfig;

/// Why the endpoint could not be started.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The web config, or a file that it names, cannot be used.
    #[error("{0}")]
    WebConfig(String),
    /// No runtime.
    #[error("cannot start the runtime of the HTTP server: {0}")]
    Runtime(#[source] io::Error),
    /// No thread.
    #[error("cannot start the thread of the HTTP server: {0}")]
    Thread(#[source] io::Error),
    /// No random numbers.
    #[error("the system gives no random numbers for the HTTP server")]
    Random,
}

/// What an endpoint is told.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Where it listens.
    pub address: SocketAddr,
    /// The file that says who may ask, in the form of Prometheus's exporters.
    pub web_config: Option<PathBuf>,
    /// Told in one line what goes wrong later, as with a changed web config.
    pub complain: fn(&str),
}

/// Connections that the system keeps until they are taken: a crowd that comes at once must not have to try again.
const BACKLOG: u32 = 1024;
/// What the system takes of an answer for a client that has not read it; Linux takes twice that. So much is handed over at a
/// time, too: others wait no longer than that takes.
const SEND_BUFFER_BYTES: u32 = 128 << 10;
/// However often snapshots come, a machine may be busy for so long.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// An endpoint that listens and does not answer yet.
#[derive(Debug)]
pub struct Endpoint {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    web_config: WebConfig,
    fresh_for: Duration,
    limits: Limits,
}

impl Endpoint {
    /// Reads the web config and takes the address.
    pub fn open(settings: HttpSettings) -> Result<Self, HttpError> {
        let HttpSettings { address, web_config, complain } = settings;
        let web_config = WebConfig::open(web_config, complain).map_err(HttpError::WebConfig)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(HttpError::Runtime)?;
        let listening = {
            let _inside = runtime.enter();
            listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)))
        };
        let (address, listener) = listening.map_err(|source| HttpError::Listen { address, source })?;
        Ok(Self { runtime, listener, address, web_config, fresh_for: FRESH_FOR, limits: LIMITS })
    }

    /// Where it is, without a path.
    pub fn url(&self) -> String {
        let scheme = if self.web_config.access().tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Answers on a thread of its own from now on.
    pub fn serve(self, latest: Latest) -> Result<ServerHandle, HttpError> {
        let Self { runtime, listener, web_config, fresh_for, limits, .. } = self;
        let serving = Arc::new(Serving::new(latest));
        let site = Arc::new(Site {
            serving: Arc::clone(&serving),
            web_config,
            door: Doorkeeper::new().ok_or(HttpError::Random)?,
            router: router(Shown { serving: Arc::clone(&serving), fresh_for }),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || {
            runtime.spawn(async move { serving.follow().await });
            runtime.spawn(accept(limits, listener, site));
            // an error means that the sender is gone, which is the sign to stop
            let _sign: Result<(), _> = runtime.block_on(stopped);
            // open connections are cut: an idle client must not hold up the end of the daemon
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(work);
        let thread = thread.map_err(HttpError::Thread)?;
        Ok(ServerHandle { stop: Some(stop), thread: Some(thread) })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // those that are accepted have it too
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod tests;
