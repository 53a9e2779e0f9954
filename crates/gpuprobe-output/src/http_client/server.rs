//! A server and how to reach it.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use hyper::header::{HOST, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore};

const SYSTEM_CERTIFICATES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Why there is no answer, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ClientError(pub(super) String);

impl ClientError {
    pub(crate) fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// The certificates that a server's certificate may be signed by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Certificates<'a> {
    /// Those of the system if there is no file.
    pub(crate) file: Option<&'a Path>,
    /// The option that names a file.
    pub(crate) option: &'static str,
}

/// An answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// An error if it is too long or ended early.
    pub(crate) body: Result<Bytes, ClientError>,
}

/// A server and how to reach it.
pub(crate) struct Server {
    host: String,
    port: u16,
    path: String,
    tls: Option<Tls>,
}

struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    /// The option that names a file of certificates.
    option: &'static str,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Server {
    /// The server of a URL, and the user that the URL names.
    pub(crate) fn new(
        url: &str,
        example: &str,
        certificates: Certificates<'_>,
    ) -> Result<(Self, Option<String>), ClientError> {
        let wrong = |why: &str| ClientError(format!("{url}: {why}: use a URL such as {example}"));
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it is neither http nor https")),
        };
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
            return Err(wrong("it has no host"));
        };
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| user.to_owned());
        // a port that is no port would otherwise be the usual one
        let after_host = authority.as_str().rsplit(['@', ']']).next().unwrap_or_default();
        let has_port = after_host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty());
        if has_port && uri.port_u16().is_none_or(|port| port == 0) {
            return Err(wrong("its port is not a number from 1 to 65535"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = if is_tls { Some(connector(&host, certificates)?) } else { None };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok((Self { host, port, path, tls }, user))
    }

    /// The host and the port.
    pub(crate) fn name(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The path of the URL, without a slash at its end.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The answer to a request, on a connection of its own. The answer's body is read up to a limit.
    pub(crate) async fn answer(
        &self,
        request: Request<Body>,
        most_bytes: usize,
    ) -> Result<Answer, ClientError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => ClientError::new("connection refused: nothing listens there"),
            _ => ClientError::new(error),
        })?;
        match &self.tls {
            None => self.exchange(stream, request, most_bytes).await,
            Some(tls) => {
                let stream = tls.connector.connect(tls.name.clone(), stream).await;
                let stream = stream.map_err(|error| tls_error(&error, tls.option))?;
                self.exchange(stream, request, most_bytes).await
            }
        }
    }

    async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        mut request: Request<Body>,
        most_bytes: usize,
    ) -> Result<Answer, ClientError> {
        let host = HeaderValue::try_from(self.name()).map_err(ClientError::new)?;
        request.headers_mut().insert(HOST, host);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::new)?;
        let answered = async {
            let (head, body) = sender.send_request(request).await.map_err(ClientError::new)?.into_parts();
            let body = to_bytes(Body::new(body), most_bytes).await.map_err(ClientError::new);
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        // the connection is driven until the answer is there
        tokio::pin!(answered);
        tokio::pin!(connection);
        tokio::select! {
            answer = &mut answered => answer,
            ended = &mut connection => match ended {
                Ok(()) => answered.await,
                Err(error) => Err(ClientError::new(error)),
            },
        }
    }
}

/// Why there is no connection with TLS, and what to do.
fn tls_error(error: &io::Error, option: &str) -> ClientError {
    let Some(cause) = error.get_ref().and_then(|cause| cause.downcast_ref::<TlsError>()) else {
        return ClientError::new(error);
    };
    match cause {
        TlsError::InvalidMessage(_) => ClientError::new("it does not speak TLS: use http://"),
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => ClientError(format!(
            "its certificate is signed by none that is known: give its authority's with {option}"
        )),
        // webpki knows no other way to say it
        TlsError::InvalidCertificate(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            ClientError::new(
                "its certificate is that of an authority: make one for a server, with basicConstraints=CA:FALSE",
            )
        }
        _ => ClientError::new(cause),
    }
}

fn connector(host: &str, certificates: Certificates<'_>) -> Result<Tls, ClientError> {
    let Certificates { file: given, option } = certificates;
    let file = given.or_else(|| SYSTEM_CERTIFICATES.iter().map(Path::new).find(|path| path.exists()));
    let Some(file) = file else {
        let why = format!("this machine has no list of certificates: give one with {option}");
        return Err(ClientError(why));
    };
    let wrong = |error: &dyn fmt::Display| ClientError(format!("{}: {error}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))? {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        // lists of systems have certificates that are not supported
        if roots.add(certificate).is_err() && given.is_some() {
            return Err(wrong(&"it has a certificate that cannot be used"));
        }
    }
    if roots.is_empty() {
        return Err(wrong(&"it has no certificate"));
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ClientError::new)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(ClientError::new)?;
    Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name, option })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(url: &str) -> Result<u16, String> {
        let certificates = Certificates { file: None, option: "--ca-file" };
        let server = Server::new(url, "http://host:9000", certificates);
        server.map(|(server, _)| server.port).map_err(|error| error.to_string())
    }

    #[test]
    fn a_query_is_refused_because_it_would_not_be_sent() {
        assert!(port("http://host:4318?x=1").is_err_and(|error| error.contains("query")));
    }

    #[test]
    fn a_port_out_of_range_is_refused() {
        for url in
            ["http://127.0.0.1:99999", "http://user@host:99999/prefix", "http://[::1]:65536", "http://h:0"]
        {
            assert!(port(url).is_err_and(|error| error.contains("port")), "{url}");
        }
        let good = ["http://host", "http://host:", "http://[::1]", "http://[::1]:9000", "http://u@h:65535/p"];
        assert_eq!(good.map(|url| port(url).unwrap()), [80, 80, 80, 9000, 65535]);
    }
}
