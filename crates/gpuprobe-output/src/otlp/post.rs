//! Sends one request, and reads what the receiver answers.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Request, StatusCode};

use super::payload::{Payload, Signal};
use super::push_counts::Attempt;
use super::reply::PartialSuccess;
use crate::http_client::{Certificates, ClientError, Server, refuse_password};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const MOST_ANSWER: usize = 64 << 10;
/// The longest wait that a receiver can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
const PROTOBUF: &str = "application/x-protobuf";

/// Headers that every request has, such as one with a password.
#[derive(Clone, Default)]
pub struct Headers(Vec<(HeaderName, HeaderValue)>);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // values are secret
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Headers {
    /// Headers from lines such as `Name: value`. Empty lines, and those that begin with `#`, are skipped.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut headers = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // errors name the line and not its content, which is secret
            let wrong = || format!("line {number} is not `Name: value`");
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            let name = HeaderName::try_from(name.trim()).map_err(|_error| wrong())?;
            let mut value = HeaderValue::try_from(value.trim()).map_err(|_error| wrong())?;
            value.set_sensitive(true);
            headers.push((name, value));
        }
        Ok(Self(headers))
    }
}

/// A receiver and how to reach it.
#[derive(Debug)]
pub struct Receiver {
    server: Server,
    headers: Headers,
    timeout: Duration,
}

/// What follows the receiver's URL.
fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Metrics => "/v1/metrics",
        Signal::Logs => "/v1/logs",
    }
}

/// The result of sending a request once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All of it was taken, except for some items, for this reason.
    Accepted(PartialSuccess),
    /// It can be sent again, at the earliest after a time that the receiver has named.
    Later { attempt: Attempt, after: Option<Duration>, why: String },
    /// It must not be sent again.
    Refused(String),
}

impl Receiver {
    /// A receiver by its base URL, such as `http://host:4318`.
    pub fn new(url: &str, ca_file: Option<&Path>, headers: Headers) -> Result<Self, ClientError> {
        refuse_password(url, "--otlp-headers-file")?;
        let certificates = Certificates { file: ca_file, option: "--otlp-ca-file" };
        let (server, user) = Server::new(url, "http://host:4318", certificates)?;
        if [Signal::Metrics, Signal::Logs].iter().any(|signal| server.path().ends_with(path(*signal))) {
            let why = "give the URL without /v1/metrics or /v1/logs, which are added";
            return Err(ClientError::new(format!("{url}: {why}")));
        }
        match user {
            Some(_) => {
                let why = "a user in it is not used: give an Authorization header with --otlp-headers-file";
                Err(ClientError::new(format!("{}: {why}", server.name())))
            }
            None => Ok(Self { server, headers, timeout: TIMEOUT }),
        }
    }

    #[cfg(test)]
    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The host and the port.
    pub(super) fn name(&self) -> String {
        self.server.name()
    }

    /// Sends a request once.
    pub(super) async fn post(&self, payload: &Payload) -> Outcome {
        let unreachable = |why: String| Outcome::Later { attempt: Attempt::Unreachable, after: None, why };
        let request = match self.request(payload) {
            Ok(request) => request,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let answer = tokio::time::timeout(self.timeout, self.server.answer(request, MOST_ANSWER)).await;
        let answer = match answer {
            Err(_elapsed) => return unreachable(format!("no answer within {:?}", self.timeout)),
            Ok(Err(error)) => return unreachable(error.to_string()),
            Ok(Ok(answer)) => answer,
        };
        match answer.status {
            // an answer that cannot be read rejects nothing
            status if status.is_success() => {
                Outcome::Accepted(PartialSuccess::of(&answer.body.unwrap_or_default()))
            }
            status if is_temporary(status) => Outcome::Later {
                attempt: Attempt::Busy,
                after: retry_after(&answer.headers, SystemTime::now()),
                why: format!("it answers {status}"),
            },
            status => Outcome::Refused(format!("it answers {status}")),
        }
    }

    fn request(&self, payload: &Payload) -> Result<Request<Body>, ClientError> {
        let mut request = Request::post(format!("{}{}", self.server.path(), path(payload.signal)))
            .header(USER_AGENT, concat!("gpuprobe/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.headers.0 {
            request = request.header(name, value);
        }
        request
            .header(CONTENT_TYPE, PROTOBUF)
            .header(CONTENT_ENCODING, "gzip")
            .body(Body::from(payload.body.clone()))
            .map_err(ClientError::new)
    }
}

/// Whether OTLP says to send a request again after this answer.
fn is_temporary(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// How long the receiver asks to wait: seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_not_seconds) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_receiver_names_a_time_or_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let wait = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(wait("7"), Some(7));
        assert_eq!(wait("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:07 GMT"), Some(0), "it is over");
        assert_eq!(wait("99999999"), Some(3600));
        assert_eq!((wait("soon"), wait("-1"), wait("")), (None, None, None));
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn headers_are_lines_and_errors_do_not_show_them() {
        let headers = Headers::parse("# a token\n\nAuthorization: Bearer a:b c\nx-scope : 1 \n").unwrap();
        let pairs: Vec<_> = headers.0.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(pairs, [("authorization", b"Bearer a:b c".as_slice()), ("x-scope", b"1")]);
        assert_eq!(format!("{headers:?}"), "[\"authorization\", \"x-scope\"]");
        for wrong in ["ok: 1\nsecret", "ok: 1\nse cret: 2", "ok: 1\n: 2", "ok: 1\na: \u{7f}"] {
            assert_eq!(Headers::parse(wrong).unwrap_err(), "line 2 is not `Name: value`");
        }
    }

    #[test]
    fn a_url_names_no_user_and_no_password() {
        let error = |url: &str| Receiver::new(url, None, Headers::default()).unwrap_err().to_string();
        let password = error("http://me:secret@host:4318/x");
        assert!(password.contains("--otlp-headers-file") && !password.contains("secret"), "{password}");
        assert!(error("http://me@host").contains("a user in it is not used"));
        for wrong in ["host:4318", "ftp://host", "/x", "http://", "a b"] {
            let error = error(wrong);
            assert!(error.contains("such as http://host:4318") && error.lines().count() == 1, "{error}");
        }
        let receiver = Receiver::new("http://[::1]/a/b/", None, Headers::default()).unwrap();
        assert_eq!((receiver.name().as_str(), receiver.server.path()), ("[::1]:80", "/a/b"));
    }
}
