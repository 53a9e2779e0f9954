//! Reads the snapshot of a daemon.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::AUTHORIZATION;
use hyper::{Request, StatusCode};
use tokio::runtime::{Builder, Runtime};

use super::server::{Certificates, ClientError, Server};

/// The longest answer. A snapshot with 8,192 processes has some 100 MB.
const MOST_BYTES: usize = 512 << 20;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A daemon and how to reach it.
pub struct DaemonClient {
    server: Server,
    authorization: Option<String>,
    runtime: Runtime,
}

impl fmt::Debug for DaemonClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // without the password
        f.debug_struct("DaemonClient").field("server", &self.server).finish_non_exhaustive()
    }
}

impl DaemonClient {
    /// A client for a URL such as `https://user@host:9000/prefix`.
    pub fn new(url: &str, ca_file: Option<&Path>, password: Option<&str>) -> Result<Self, ClientError> {
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        refuse_password(&with_scheme, "--password-file")?;
        let certificates = Certificates { file: ca_file, option: "--ca-file" };
        let (server, user) = Server::new(&with_scheme, "http://host:9000", certificates)?;
        let authorization = match (user, password) {
            (Some(user), Some(password)) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.trim_end()))))
            }
            (Some(_), None) => {
                return Err(ClientError(format!("{url}: --password-file must have the password")));
            }
            (None, Some(_)) => {
                return Err(ClientError(format!("{url}: it must name the user, as in http://user@host")));
            }
            (None, None) => None,
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ClientError::new)?;
        Ok(Self { server, authorization, runtime })
    }

    /// The host and the port.
    pub fn name(&self) -> String {
        self.server.name()
    }

    /// The host, the port and the prefix, by which two URLs of one daemon are recognized.
    pub fn address(&self) -> String {
        format!("{}{}", self.server.name().to_ascii_lowercase(), self.server.path())
    }

    /// The body of `/api/snapshot`.
    pub fn snapshot(&self) -> Result<Bytes, ClientError> {
        self.get("/api/snapshot")
    }

    /// The body of `/metrics`.
    pub fn metrics(&self) -> Result<Bytes, ClientError> {
        self.get("/metrics")
    }

    fn get(&self, path: &str) -> Result<Bytes, ClientError> {
        let asked = async {
            tokio::time::timeout(TIMEOUT, self.ask(path))
                .await
                .map_err(|_elapsed| ClientError(format!("no answer within {} s", TIMEOUT.as_secs())))?
        };
        self.runtime.block_on(asked).map_err(|error| ClientError(format!("{}: {error}", self.name())))
    }

    async fn ask(&self, path: &str) -> Result<Bytes, ClientError> {
        let mut request = Request::get(format!("{}{path}", self.server.path()));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Body::empty()).map_err(ClientError::new)?;
        let answer = self.server.answer(request, MOST_BYTES).await?;
        match answer.status {
            StatusCode::OK => answer.body,
            StatusCode::UNAUTHORIZED if self.authorization.is_some() => {
                Err(ClientError::new("it does not accept this user and password"))
            }
            StatusCode::UNAUTHORIZED => Err(ClientError::new(
                "it requires a user and a password: http://user@host and --password-file",
            )),
            StatusCode::NOT_FOUND => Err(ClientError(format!(
                "it has no {}{path}: it is not a gpuprobe daemon, or the URL lacks the prefix of a proxy or has a wrong one",
                self.server.path()
            ))),
            StatusCode::BAD_REQUEST if !self.server.has_tls() => {
                Err(ClientError::new("it answers 400 Bad Request: if it serves TLS, use https://"))
            }
            status => Err(ClientError(format!("it answers {status}"))),
        }
    }
}

/// Refuses a URL with a password, and does not repeat it.
pub(crate) fn refuse_password(url: &str, instead: &str) -> Result<(), ClientError> {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => Err(ClientError(format!(
            "{host}: a password in a URL is visible to every user of this machine: use {instead}"
        ))),
        _ => Ok(()),
    }
}
