//! The routes of the endpoint, and content negotiation.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, RETRY_AFTER, TRANSFER_ENCODING, VARY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::task::spawn_blocking;

use super::OnRequest;
use super::auth::{Authenticator, Verdict};
use super::counts::Counts;
use super::latest::{Coding, Page, Serving, Text};
use super::page_views;
use super::password_queue::Client;
use super::record_requests::{self, HasPasswords};
use super::stacks_requests;
use super::web_config::{Access, WebConfig};
use crate::metrics::Format;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
/// The files of the live page. They have no inline scripts or styles, and load nothing from elsewhere.
const PAGE_FILES: [(&str, &str, &str); 9] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/live_page.css", CSS, include_str!("page/live_page.css")),
    ("/live_page.js", SCRIPT, include_str!("page/live_page.js")),
    ("/overview.js", SCRIPT, include_str!("page/overview.js")),
    ("/process.js", SCRIPT, include_str!("page/process.js")),
    ("/charts.js", SCRIPT, include_str!("page/charts.js")),
    ("/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/units.js", SCRIPT, include_str!("page/units.js")),
];
/// A browser executes only the scripts above and sends requests only to this daemon.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                              connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The only path that takes a POST, and a body.
const RECORD: &str = "/api/record";
const NOT_YET: &str = "not ready: probes are being attached, and nothing has been counted yet\n";

/// Everything that is needed to answer a request.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) serving: Arc<Serving>,
    pub(super) web_config: WebConfig,
    pub(super) auth: Authenticator,
    pub(super) router: Router,
}

/// The state that routes share.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) serving: Arc<Serving>,
    /// A snapshot counts as fresh for at least this long.
    pub(super) fresh_for: Duration,
    pub(super) on_request: OnRequest,
}

impl Site {
    pub(super) fn counts(&self) -> &Counts {
        self.serving.counts()
    }

    pub(super) fn access(&self) -> Arc<Access> {
        self.web_config.access()
    }

    /// The answer to any request.
    pub(super) async fn answer(
        &self,
        access: &Access,
        mut request: Request<Body>,
        client: Client,
    ) -> Response {
        let may_have_body = request.method() == Method::POST && request.uri().path() == RECORD;
        request.extensions_mut().insert(HasPasswords(!access.users.is_empty()));
        let mut response = match self.refusal(access, request.headers(), may_have_body, client).await {
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

    /// The answer to a request that is refused; `None` if it is accepted.
    async fn refusal(
        &self,
        access: &Access,
        headers: &HeaderMap,
        may_have_body: bool,
        client: Client,
    ) -> Option<Response> {
        if has_body(headers) && !may_have_body {
            let text = "requests must not have a body\n";
            return Some((StatusCode::PAYLOAD_TOO_LARGE, text).into_response());
        }
        if access.users.is_empty() {
            return None;
        }
        let authorization = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        match self.auth.check(&access.users, authorization, client).await {
            Verdict::Welcome => None,
            Verdict::Unknown => {
                let challenge = [(WWW_AUTHENTICATE, "Basic realm=\"gpuprobe\"")];
                Some(
                    (StatusCode::UNAUTHORIZED, challenge, "a user name and a password are required\n")
                        .into_response(),
                )
            }
            Verdict::Busy => {
                let later = [(RETRY_AFTER, "1")];
                let text = "too many passwords are being checked: try again\n";
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
    let mut router = Router::new();
    for (path, content_type, text) in PAGE_FILES {
        router = router.route(path, get(move || async move { page_file(content_type, text) }));
    }
    router
        .route("/api/view", get(view))
        .route("/api/process/{pid}/{instance}", get(process))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/snapshot", get(snapshot))
        .route("/api/stacks", get(stacks))
        .route(RECORD, post(record).fallback(record_requests::only_post))
        .route("/api/recordings", get(recordings))
        .fallback(|| async { (StatusCode::NOT_FOUND, "not found: / lists all pages\n") })
        .method_not_allowed_fallback(|| async {
            (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n")
        })
        .with_state(shown)
}

fn page_file(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

async fn ready(State(shown): State<Shown>) -> Response {
    let Some(published) = shown.serving.ready() else { return not_yet() };
    let (age, limit) = (published.age(), published.fresh_for(shown.fresh_for));
    if age > limit {
        let text = format!(
            "not ready: the last snapshot is {} s old, and the limit is {} s\n",
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
    let format = negotiate(&joined(&headers, ACCEPT));
    page(&shown.serving, Text::Metrics(format), format.content_type(), &headers).await
}

async fn snapshot(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    page(&shown.serving, Text::Json, "application/json", &headers).await
}

async fn view(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    page(&shown.serving, Text::View, "application/json", &headers).await
}

/// One process in detail.
async fn process(State(shown): State<Shown>, Path((pid, instance)): Path<(u32, u64)>) -> Response {
    let Some(published) = shown.serving.ready() else { return not_yet() };
    let source = published.source().clone();
    let made = spawn_blocking(move || page_views::details_json(&source, pid, instance)).await;
    match made.ok().flatten() {
        Some(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        None => (StatusCode::NOT_FOUND, "this process is not listed\n").into_response(),
    }
}

async fn stacks(State(shown): State<Shown>) -> Response {
    stacks_requests::answer(shown.on_request.stacks.as_ref()).await
}

async fn record(
    State(shown): State<Shown>,
    Extension(passwords): Extension<HasPasswords>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    record_requests::record(shown.on_request.recordings, passwords, &headers, body).await
}

async fn recordings(State(shown): State<Shown>, Extension(passwords): Extension<HasPasswords>) -> Response {
    record_requests::list(shown.on_request.recordings, passwords).await
}

async fn page(serving: &Serving, text: Text, content_type: &'static str, request: &HeaderMap) -> Response {
    let coding = coding(&joined(request, ACCEPT_ENCODING));
    let Some(answer) = serving.page(Page { text, coding }).await else { return not_yet() };
    let headers = [(CONTENT_TYPE, content_type), (VARY, "accept, accept-encoding")];
    let mut response = (headers, Extension(answer.id), answer.text).into_response();
    if answer.coding == Coding::Gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// All lines of a header, joined by commas.
fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let lines: Vec<&str> = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect();
    lines.join(",")
}

/// The offers of a header: name, weight (`q`), and the other parameters.
fn offers(header: &str) -> impl Iterator<Item = (String, f32, Vec<(String, String)>)> {
    header.split(',').map(|offer| {
        let mut parts = offer.split(';').map(|p| p.trim().to_ascii_lowercase());
        let name = parts.next().unwrap_or_default();
        let pairs = parts.filter_map(|p| p.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())));
        let (weights, others): (Vec<_>, _) = pairs.partition(|(name, _)| name == "q");
        let weight = weights.last().map_or(1.0, |(_, weight)| weight.parse().unwrap_or(0.0));
        (name, weight, others)
    })
}

/// The encoding for an `Accept-Encoding` header: gzip only if the header names it.
pub(super) fn coding(accept: &str) -> Coding {
    let takes = |name: &str| offers(accept).any(|(offer, weight, _)| offer == name && weight > 0.0);
    if takes("gzip") { Coding::Gzip } else { Coding::Plain }
}

/// The format for an `Accept` header: OpenMetrics only if the header names it with at least the weight of plain text.
pub(super) fn negotiate(accept: &str) -> Format {
    let (mut openmetrics, mut plain) = (0.0_f32, 0.0_f32);
    for (media, weight, others) in offers(accept) {
        let version = others.into_iter().find(|(name, _)| name == "version").map(|(_, version)| version);
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
