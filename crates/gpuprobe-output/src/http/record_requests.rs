//! Requests to record a process. They are the only ones that change something, so they need a password, and must not
//! come from a page of another site in the browser of a user who has one.

use std::fmt::Debug;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::header::{ALLOW, CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

/// A request is far shorter.
const MOST_BODY_BYTES: usize = 16 << 10;
const JSON: &str = "application/json";
/// Browsers say here which site a request comes from.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What to record.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordRequest {
    /// Without one, the process that calls CUDA most.
    pub pid: Option<u32>,
    /// Without them, the daemon's default.
    pub seconds: Option<f64>,
    /// Globs of functions; without any, those that `gpuprobe record` records.
    pub functions: Vec<String>,
}

/// A recording that runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordingInfo {
    /// The file name.
    pub file: String,
    /// Its path on the host of the daemon.
    pub path: String,
    pub pid: u32,
    pub process: String,
    pub seconds: f64,
    /// Whether calls are recorded already: probes may still be being attached.
    pub has_begun: bool,
}

/// Why nothing is recorded.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordRefusal {
    /// The request is wrong.
    Invalid(String),
    /// There is no such process.
    Unknown(String),
    /// This recording runs.
    Busy(RecordingInfo),
    /// It could not be done.
    Failed(String),
}

/// A file in the directory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredInfo {
    pub file: String,
    pub bytes: u64,
}

/// The directory of recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredRecordings {
    pub directory: String,
    pub limit_bytes: u64,
    /// The one that runs.
    pub current: Option<RecordingInfo>,
    /// Complete ones, the oldest first.
    pub recordings: Vec<StoredInfo>,
}

/// Records processes. Both functions may take some seconds.
pub trait RecordOnDemand: Debug + Send + Sync {
    /// Starts a recording, and waits for some seconds until it has begun.
    fn record(&self, request: &RecordRequest) -> Result<RecordingInfo, RecordRefusal>;
    /// What is in the directory, or why it cannot be read.
    fn list(&self) -> Result<StoredRecordings, String>;
}

/// Whether clients need a password for the endpoint. A request that gets here has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasPasswords(pub(super) bool);

pub(super) async fn record(
    recordings: Option<Arc<dyn RecordOnDemand>>,
    passwords: HasPasswords,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let recordings = match allowed(recordings, passwords) {
        Ok(recordings) => recordings,
        Err((status, why)) => return line(status, why),
    };
    if let Some(refusal) = foreign(headers) {
        return refusal;
    }
    let Ok(body) = to_bytes(body, MOST_BODY_BYTES).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the request is incomplete or too long\n").into_response();
    };
    let request = match parse(&body) {
        Ok(request) => request,
        Err(why) => return line(StatusCode::BAD_REQUEST, &why),
    };
    match spawn_blocking(move || recordings.record(&request)).await {
        Ok(Ok(begun)) => (StatusCode::ACCEPTED, [(CONTENT_TYPE, JSON)], text(&begun)).into_response(),
        Ok(Err(RecordRefusal::Busy(current))) => {
            let busy = json!({ "error": "another recording is being made", "current": current });
            (StatusCode::CONFLICT, [(CONTENT_TYPE, JSON)], text(&busy)).into_response()
        }
        Ok(Err(RecordRefusal::Invalid(why))) => line(StatusCode::BAD_REQUEST, &why),
        Ok(Err(RecordRefusal::Unknown(why))) => line(StatusCode::NOT_FOUND, &why),
        Ok(Err(RecordRefusal::Failed(why))) => line(StatusCode::SERVICE_UNAVAILABLE, &why),
        Err(_) => line(StatusCode::SERVICE_UNAVAILABLE, "the recording could not be started"),
    }
}

/// The list of recordings.
pub(super) async fn list(recordings: Option<Arc<dyn RecordOnDemand>>, passwords: HasPasswords) -> Response {
    let recordings = match allowed(recordings, passwords) {
        Ok(recordings) => recordings,
        Err((status, why)) => return line(status, why),
    };
    match spawn_blocking(move || recordings.list()).await {
        Ok(Ok(stored)) => ([(CONTENT_TYPE, JSON)], text(&stored)).into_response(),
        Ok(Err(why)) => line(StatusCode::SERVICE_UNAVAILABLE, &why),
        Err(_) => line(StatusCode::SERVICE_UNAVAILABLE, "the directory could not be read"),
    }
}

/// The answer to another method than POST.
pub(super) async fn only_post() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST")], "only POST is supported here\n").into_response()
}

/// Refuses everything if recordings are off, or if everybody could ask for them.
fn allowed(
    recordings: Option<Arc<dyn RecordOnDemand>>,
    HasPasswords(has_passwords): HasPasswords,
) -> Result<Arc<dyn RecordOnDemand>, (StatusCode, &'static str)> {
    let Some(recordings) = recordings else {
        let text = "not found: start the daemon with --record-dir DIR to record processes on request";
        return Err((StatusCode::NOT_FOUND, text));
    };
    if !has_passwords {
        let text = "recordings are refused to clients without a password: start the daemon with --web-config FILE, \
                    and basic_auth_users in it";
        return Err((StatusCode::FORBIDDEN, text));
    }
    Ok(recordings)
}

/// The refusal of a request that a page of another site may have sent: a browser adds the password by itself. Such a
/// page can send this content type only after it has asked, and this endpoint does not answer that.
fn foreign(headers: &HeaderMap) -> Option<Response> {
    let value = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let content_type = value(CONTENT_TYPE).unwrap_or_default();
    let media = content_type.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case(JSON) {
        let text = "send a JSON object, with `Content-Type: application/json`";
        return Some(line(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let is_own_site = value(SEC_FETCH_SITE).is_none_or(|site| ["same-origin", "none"].contains(&site));
    let authority = |origin: &str| origin.split_once("://").map(|(_, authority)| authority.to_owned());
    let host = value(HOST).unwrap_or_default();
    let is_own_origin = value(ORIGIN)
        .is_none_or(|origin| authority(origin).is_some_and(|authority| authority.eq_ignore_ascii_case(host)));
    (!is_own_site || !is_own_origin)
        .then(|| line(StatusCode::FORBIDDEN, "requests from pages of other sites are refused"))
}

/// An empty body asks for nothing special.
fn parse(body: &[u8]) -> Result<RecordRequest, String> {
    if body.trim_ascii().is_empty() {
        return Ok(RecordRequest::default());
    }
    // from an array, serde would fill the fields by their order
    serde_json::from_slice::<Map<String, Value>>(body)
        .and_then(|object| serde_json::from_value(Value::Object(object)))
        .map_err(|error| format!("not a request such as {{\"pid\": 1234, \"seconds\": 5}}: {error}"))
}

fn text(json: &impl Serialize) -> String {
    // these types always have a text
    serde_json::to_string(json).unwrap_or_default() + "\n"
}

fn line(status: StatusCode, text: &str) -> Response {
    // names of processes and what the client sent may contain anything
    (status, format!("{}\n", crate::units::printable(text))).into_response()
}

#[cfg(test)]
mod tests;
