//! The HTTP endpoint of the daemon. A scrape reads only the last snapshot, so it cannot slow down the capture.

mod auth;
mod conn_slots;
mod connections;
mod counts;
pub mod fuzz;
mod latest;
mod page_views;
mod password_queue;
mod record_requests;
mod routes;
mod stacks_requests;
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

use auth::Authenticator;
use conn_slots::{LIMITS, Limits};
use connections::accept;
pub use latest::Latest;
use latest::Serving;
pub(crate) use latest::gzip;
pub use record_requests::{
    RecordOnDemand, RecordRefusal, RecordRequest, RecordingInfo, StoredInfo, StoredRecordings,
};
use routes::{Shown, Site, router};
pub use stacks_requests::{StacksRequests, StacksSource, WaitingClients, stacks_requests};
use web_config::WebConfig;

/// Why the endpoint could not be started.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The web config, or a file that it names, is unusable.
    #[error("{0}")]
    WebConfig(String),
    /// The async runtime cannot be created.
    #[error("cannot start the runtime of the HTTP server: {0}")]
    Runtime(#[source] io::Error),
    /// The server thread cannot be created.
    #[error("cannot start the thread of the HTTP server: {0}")]
    Thread(#[source] io::Error),
    /// The operating system provides no random numbers.
    #[error("the system provides no random numbers for the HTTP server")]
    Random,
}

/// The settings of an endpoint.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The address it listens on.
    pub address: SocketAddr,
    /// The web config file, in the format of Prometheus exporters.
    pub web_config: Option<PathBuf>,
    /// Called with one line for problems after the start, such as an invalid change of the web config.
    pub report_problem: fn(&str),
}

/// Connections that the operating system queues until they are accepted: many clients that connect at once must not
/// have to retry.
const BACKLOG: u32 = 1024;
/// The send buffer of a connection (Linux doubles it). This is also how much is written at a time, so it bounds how
/// long other clients wait for one write.
const SEND_BUFFER_BYTES: u32 = 128 << 10;
/// A snapshot counts as fresh for at least this long, however short the refresh interval: a machine may be busy.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// What is done only when a client asks for it. By default, none of it.
#[derive(Clone, Debug, Default)]
pub struct OnRequest {
    /// Samples the stacks of threads.
    pub stacks: Option<StacksSource>,
    /// Records processes.
    pub recordings: Option<Arc<dyn RecordOnDemand>>,
}

/// An endpoint that listens but does not answer yet.
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
    /// Reads the web config and binds the address.
    pub fn open(settings: HttpSettings) -> Result<Self, HttpError> {
        let HttpSettings { address, web_config, report_problem } = settings;
        let web_config = WebConfig::open(web_config, report_problem).map_err(HttpError::WebConfig)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(HttpError::Runtime)?;
        let listening = {
            let _inside = runtime.enter();
            listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)))
        };
        let (address, listener) = listening.map_err(|source| HttpError::Listen { address, source })?;
        Ok(Self { runtime, listener, address, web_config, fresh_for: FRESH_FOR, limits: LIMITS })
    }

    /// The URL of the endpoint, without a path.
    pub fn url(&self) -> String {
        let scheme = if self.web_config.access().tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Starts a thread that answers requests.
    pub fn serve(self, latest: Latest, on_request: OnRequest) -> Result<ServerHandle, HttpError> {
        let Self { runtime, listener, web_config, fresh_for, limits, .. } = self;
        let serving = Arc::new(Serving::new(latest));
        let site = Arc::new(Site {
            serving: Arc::clone(&serving),
            web_config,
            auth: Authenticator::new().ok_or(HttpError::Random)?,
            router: router(Shown { serving: Arc::clone(&serving), fresh_for, on_request }),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            runtime.spawn(async move { serving.follow().await });
            runtime.spawn(accept(limits, listener, site));
            // an error means that the sender was dropped, which is the signal to stop
            let _stop: Result<(), _> = runtime.block_on(stopped);
            // open connections are closed: an idle client must not delay the exit of the daemon
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(serve);
        let thread = thread.map_err(HttpError::Thread)?;
        Ok(ServerHandle { stop: Some(stop), thread: Some(thread) })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // accepted connections inherit it
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
        // the thread ends when the sender is dropped
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // a panic of that thread has already been reported there
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod tests;
