//! What there is to ask for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::auth::{Doorkeeper, Verdict};
use super::counts::Counts;
use super::latest::{Page, Serving};
use super::web_config::{Access, WebConfig};
use crate::metrics::Format;

const INDEX: &str = concat!(
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>gpuprobe</title></head><body>\n",
    "<h1>gpuprobe ",
    env!("CARGO_PKG_VERSION"),
    "</h1>\n<ul>\n",
    "<li><a href=\"/metrics\">/metrics</a>: for Prometheus, and as OpenMetrics for who asks for that</li>\n",
    "<li><a href=\"/api/snapshot\">/api/snapshot</a>: the same numbers and more as JSON</li>\n",
    "<li><a href=\"/healthz\">/healthz</a>: ok while this runs</li>\n",
    "<li><a href=\"/readyz\">/readyz</a>: ok while the numbers are fresh</li>\n",
    "</ul>\n</body></html>\n"
);
const NOT_YET: &str = "not ready: probes are being put in, and nothing has been counted yet\n";

/// Everything that an answer is made of.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) serving: Arc<Serving>,
    pub(super) web_config: WebConfig,
    pub(super) door: Doorkeeper,
    pub(super) router: Router,
}

/// What routes share.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) serving: Arc<Serving>,
    /// A snapshot is fresh for so long at least.
    pub(super) fresh_for: Duration,
}

impl Site {
    pub(super) fn counts(&self) -> &Counts {
        self.serving.counts()
    }

    pub(super) fn access(&self) -> Arc<Access> {
        self.web_config.access()
    }

    /// The answer to whatever it is.
    pub(super) async fn answer(&self, access: &Access, request: Request<Body>) -> Response {
        let mut response = match self.refusal(access, request.headers()).await {
            Some(refusal) => refusal,
            None => match TowerToHyperService::new(self.router.clone()).call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        };
        self.counts().answered(response.status().as_u16());
        let headers = response.headers_mut();
        for (name, value) in &access.headers {
            headers.insert(name, value.clone());
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Why it is not answered, if so.
    async fn refusal(&self, access: &Access, headers: &HeaderMap) -> Option<Response> {
        if has_body(headers) {
            let text = "a request here has no body: leave it out\n";
            return Some((StatusCode::PAYLOAD_TOO_LARGE, text).into_response());
        }
        if access.users.is_empty() {
            return None;
        }
        let authorization = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        match self.door.judge(&access.users, authorization).await {
            Verdict::Welcome => None,
            Verdict::Unknown => {
                let ask = [(WWW_AUTHENTICATE, "Basic realm=\"gpuprobe\"")];
                Some((StatusCode::UNAUTHORIZED, ask, "give a name and its password\n").into_response())
            }
            Verdict::Busy => {
                let later = [(RETRY_AFTER, "1")];
                let text = "too many passwords at once: ask again\n";
                Some((StatusCode::SERVICE_UNAVAILABLE, later, text).into_response())
            }
        }
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

pub(super) fn router(shown: Shown) -> Router {
    Router::new()
        .route("/", get(|| async { Html(INDEX) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/snapshot", get(snapshot))
        .fallback(|| async { (StatusCode::NOT_FOUND, "not found: / has a list of what there is\n") })
        .method_not_allowed_fallback(|| async {
            (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n")
        })
        .with_state(shown)
}

async fn ready(State(shown): State<Shown>) -> Response {
    let Some(published) = shown.serving.ready() else { return not_yet() };
    let (age, limit) = (published.age(), published.fresh_for(shown.fresh_for));
    if age > limit {
        let text = format!(
            "not ready: the last snapshot is {} s old, and {} s are the most\n",
            age.as_secs(),
            limit.as_secs()
        );
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    "ok\n".into_response()
}

fn not_yet() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, NOT_YET).into_response()
}

async fn metrics(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    let format = negotiate(&accept.join(","));
    page(&shown.serving, Page::Metrics(format), format.content_type()).await
}

async fn snapshot(State(shown): State<Shown>) -> Response {
    page(&shown.serving, Page::Json, "application/json").await
}

async fn page(serving: &Serving, page: Page, content_type: &'static str) -> Response {
    match serving.page(page).await {
        Some((text, id)) => ([(CONTENT_TYPE, content_type)], Extension(id), text).into_response(),
        None => not_yet(),
    }
}

/// The format that an `Accept` header asks for. OpenMetrics must be asked for by name, and no less than plain text.
pub(super) fn negotiate(accept: &str) -> Format {
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
