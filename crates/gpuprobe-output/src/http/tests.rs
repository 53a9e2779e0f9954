use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use axum::http::StatusCode;
use gpuprobe_analysis::snapshot::GpuMemory;
use gpuprobe_analysis::{LibraryProbes, ProcessSnapshot, Snapshot};
use gpuprobe_event::{MemoryAmount, Space};

use super::*;
use crate::metrics::{Format, encode};
use crate::test_processes::process;

const JSON: latest::Page = latest::Page { text: latest::Text::Json, coding: latest::Coding::Plain };
pub(super) const REFRESH: Duration = Duration::from_millis(50);

fn settings() -> HttpSettings {
    HttpSettings { address: SocketAddr::from(([127, 0, 0, 1], 0)), web_config: None, report_problem: |_| {} }
}

pub(super) struct Started {
    // declared first, so that it is dropped first
    _server: ServerHandle,
    pub(super) address: SocketAddr,
    pub(super) latest: Latest,
}

pub(super) fn started_with(change: impl FnOnce(&mut Endpoint)) -> Started {
    let mut endpoint = Endpoint::open(settings()).unwrap();
    change(&mut endpoint);
    let (address, latest) = (endpoint.address, Latest::default());
    Started { _server: endpoint.serve(latest.clone(), OnRequest::default()).unwrap(), address, latest }
}

fn started() -> Started {
    let started = started_with(|_| {});
    started.latest.publish(Snapshot::default(), REFRESH);
    started
}

pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The status and the whole answer to these bytes.
fn answer_to(address: SocketAddr, request: &[u8]) -> (u16, String) {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    // a closed connection may end with a reset
    stream.read_to_end(&mut answer).ok();
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, answer)
}

/// Head and body of the answer to one request.
fn ask_with(address: SocketAddr, method: &str, path: &str, headers: &str) -> (String, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    let (_, answer) = answer_to(address, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

pub(super) fn ask(address: SocketAddr, path: &str) -> (String, String) {
    ask_with(address, "GET", path, "")
}

pub(super) fn status(address: SocketAddr, path: &str) -> u16 {
    answer_to(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).0
}

/// Waits until a condition is true.
pub(super) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connections that the endpoint has counted as refused for this reason.
pub(super) fn refused(latest: &Latest, reason: &str) -> u64 {
    let refused = latest.counts().read().refused;
    refused.iter().find(|refused| refused.reason == reason).unwrap().connections
}

#[test]
fn a_scrape_returns_the_last_snapshot() {
    let &Started { address, ref latest, .. } = &started();
    let (head, body) = ask(address, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_eq!(body, encode(&latest.get(), Format::Prometheus));

    let library = LibraryProbes { path: "/lib/libcuda.so.1".to_owned(), attached: 7, ..Default::default() };
    latest.publish(Snapshot { libraries: vec![library], ..Snapshot::default() }, REFRESH);
    let line = "gpuprobe_probes{library=\"/lib/libcuda.so.1\",state=\"attached\"} 7\n";
    until("the next snapshot is served", || ask(address, "/metrics").1.contains(line));
    assert!(ask(address, "/metrics").1.contains("gpuprobe_http_requests_total{code=\"200\"} "));
}

#[test]
fn open_metrics_is_served_when_requested() {
    let &Started { address, ref latest, .. } = &started();
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3\r\n";
    let (head, body) = ask_with(address, "GET", "/metrics", accept);
    let expected = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(expected), "{head}");
    assert_eq!(body, encode(&latest.get(), Format::OpenMetrics));
}

#[test]
fn the_snapshot_is_served_as_json_with_its_time() {
    let &Started { address, ref latest, .. } = &started_with(|_| {});
    latest.publish(Snapshot { unix_seconds: 1_733_143_016.5, ..Snapshot::default() }, REFRESH);
    let (head, body) = ask(address, "/api/snapshot");
    assert!(head.contains("content-type: application/json"), "{head}");
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(json["time"], "2024-12-02T12:36:56Z");
    assert_eq!(json["snapshot"]["unix_seconds"], 1_733_143_016.5);
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn it_is_alive_before_it_is_ready_and_says_why_it_is_not_ready() {
    let &Started { address, ref latest, .. } = &started_with(|_| {});
    assert_eq!(ask(address, "/healthz").1, "ok\n");
    for path in ["/readyz", "/metrics", "/api/snapshot"] {
        let (head, body) = ask(address, path);
        assert!(
            head.starts_with("HTTP/1.1 503 ") && body.contains("probes are being attached"),
            "{head} {body}"
        );
    }
    latest.publish(Snapshot::default(), REFRESH);
    assert_eq!(ask(address, "/readyz").1, "ok\n");
}

#[test]
fn a_snapshot_that_is_too_old_makes_it_unready() {
    let &Started { address, ref latest, .. } =
        &started_with(|endpoint| endpoint.fresh_for = Duration::from_millis(200));
    latest.publish(Snapshot::default(), REFRESH);
    until("the snapshot is too old", || status(address, "/readyz") == 503);
    assert!(ask(address, "/readyz").1.contains("the last snapshot is "));
    assert_eq!(status(address, "/healthz"), 200);
    assert_eq!(status(address, "/metrics"), 200, "metrics are served all the same");
    latest.publish(Snapshot::default(), Duration::from_secs(20));
    until("an older snapshot is fresh with a longer refresh interval", || status(address, "/readyz") == 200);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(status(address, "/readyz"), 200);
}

#[test]
fn the_page_loads_only_its_own_files_and_other_paths_are_not_found() {
    let &Started { address, ref latest, .. } = &started();
    latest.publish(Snapshot::default(), REFRESH);
    let (head, body) = ask(address, "/");
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{head}");
    let linked: Vec<_> = ["href=\"", "src=\""]
        .iter()
        .flat_map(|attribute| body.split(attribute).skip(1))
        .map(|link| link.split('"').next().unwrap())
        .filter(|link| !link.starts_with('#'))
        .collect();
    for path in &linked {
        // relative, so that a proxy can serve it under a prefix
        assert!(!path.starts_with('/') && !path.contains(':'), "{path}");
        assert_eq!(status(address, &format!("/{path}")), 200, "{path}");
    }
    assert!(
        ["live_page.css", "live_page.js", "icon.svg", "metrics"].iter().all(|path| linked.contains(path)),
        "{linked:?}"
    );
    assert_eq!(body.matches("<script").count(), body.matches("<script src=").count(), "no inline scripts");
    assert!(!body.contains("style="), "no inline styles");
    assert_eq!(status(address, "/etc/passwd"), 404);
    assert_eq!(status(address, "//metrics"), 404);
}

#[test]
fn the_view_has_rates_and_a_history_and_a_process_has_details() {
    let &Started { address, ref latest, .. } = &started();
    for (at, bytes) in [(11.0, 100), (13.0, 100), (17.0, 700)] {
        let mut process = ProcessSnapshot { instance: u64::MAX, ..process(12, "app") };
        let amount = MemoryAmount { kind: Space::Device, allocations: 1, bytes };
        process.memory.live = vec![GpuMemory { gpu: None, amount }];
        let processes = vec![Arc::new(process)];
        latest.publish(Snapshot { unix_seconds: at, processes, ..Snapshot::default() }, REFRESH);
    }
    let mut json = serde_json::Value::Null;
    // an earlier view is served until the new one has been written
    until("the last snapshot is served", || {
        json = serde_json::from_str(&ask(address, "/api/view").1).unwrap();
        json["history"]["times"].as_array().is_some_and(|times| times.len() == 3)
    });
    let row = &json["view"]["processes"][0];
    assert_eq!((&row["id"]["pid"], &row["launches_per_second"]), (&12.into(), &0.0.into()));
    assert_eq!(row["growth_per_second"], 100.0, "over the last minute, as top shows it");
    assert_eq!(row["id"]["instance"], u64::MAX.to_string(), "JavaScript has no such numbers");
    assert_eq!(json["history"]["times"], serde_json::json!([0.0, 11.0, 17.0]));
    let (head, body) = ask(address, &format!("/api/process/12/{}", u64::MAX));
    assert!(head.contains(" 200 ") && body.contains("\"kernels\":["), "{head} {body}");
    for path in ["/api/process/13/1", "/api/process/12/1"] {
        assert_eq!(status(address, path), 404, "{path}");
    }
    assert_eq!(status(address, "/api/process/x/1"), 400);
}

#[test]
fn head_is_answered_without_a_body_and_other_methods_with_the_allowed_ones() {
    let &Started { address, .. } = &started();
    let (_, body) = ask(address, "/metrics");
    let (head, nothing) = ask_with(address, "HEAD", "/metrics", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && nothing.is_empty(), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    for method in ["POST", "DELETE", "OPTIONS", "NONSENSE"] {
        let (head, _) = ask_with(address, method, "/metrics", "");
        assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("allow: GET,HEAD"), "{method}: {head}");
    }
}

#[test]
fn invalid_requests_are_refused_and_counted() {
    let &Started { address, ref latest, .. } = &started();
    let with = |headers: &str| format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    let body = StatusCode::PAYLOAD_TOO_LARGE.as_u16();
    assert_eq!(answer_to(address, with("Content-Length: 1\r\n").as_bytes()).0, body);
    assert_eq!(answer_to(address, with("Transfer-Encoding: chunked\r\n").as_bytes()).0, body);
    assert_eq!(answer_to(address, with("Content-Length: 0\r\n").as_bytes()).0, 200);
    let long = with(&format!("X: {}\r\n", "a".repeat(LIMITS.head_bytes)));
    assert_eq!(answer_to(address, long.as_bytes()).0, 431);
    assert_eq!(answer_to(address, with(&"X: a\r\n".repeat(200)).as_bytes()).0, 431);
    assert_eq!(answer_to(address, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").0, 400);
    assert_eq!(answer_to(address, b"GET /metrics SMTP\r\n\r\n").0, 400);
    until("all are counted", || refused(latest, "too_large") == 2 && refused(latest, "malformed") == 2);
    let requests = latest.counts().read().requests;
    let count = |code| requests.iter().find(|a| a.code == code).map(|a| a.requests);
    assert_eq!((count(200), count(body), count(431)), (Some(1), Some(2), None));
}

#[test]
fn dropping_the_handle_stops_the_server_even_with_a_waiting_client() {
    let Started { _server: server, address, .. } = started();
    assert_eq!(ask(address, "/healthz").1, "ok\n");
    let mut idle = TcpStream::connect(address).unwrap();
    idle.write_all(b"GET /metrics HTTP/1.1\r\nHos").unwrap();
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(TcpStream::connect(address).is_err());
}

/// A client that has sent part of its request.
fn slow(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHos").unwrap();
    stream
}

fn assert_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // closed, or reset because of unread data
    stream.read_to_end(&mut rest).ok();
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
}

#[test]
fn connections_with_slow_requests_are_closed() {
    let limits = Limits { request: Duration::from_millis(300), ..LIMITS };
    let &Started { address, ref latest, .. } = &started_with(|endpoint| endpoint.limits = limits);
    let begun = Instant::now();
    let streams = [slow(address), connect(address)];
    streams.into_iter().for_each(assert_closed);
    assert!(begun.elapsed() >= limits.request);
    until("both are counted", || refused(latest, "slow_request") == 2);
}

#[test]
fn connections_that_do_not_read_the_answer_are_closed() {
    let limits = Limits { answer: Duration::from_millis(300), ..LIMITS };
    let &Started { address, ref latest, .. } = &started_with(|endpoint| endpoint.limits = limits);
    // more than the buffers of both sockets hold
    let library = LibraryProbes { path: "x".repeat(64 << 20), ..Default::default() };
    latest.publish(Snapshot { libraries: vec![library], ..Snapshot::default() }, REFRESH);
    let mut stream = connect(address);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    until("it is counted", || refused(latest, "slow_answer") == 1);
}

#[test]
fn when_all_slots_are_taken_the_oldest_connection_without_a_request_is_closed() {
    let limits = Limits { connections: 4, ..LIMITS };
    let &Started { address, ref latest, .. } = &started_with(|endpoint| endpoint.limits = limits);
    let mut streams: Vec<_> = (0..4).map(|_| slow(address)).collect();
    let begun = Instant::now();
    for _ in 0..2 {
        assert_eq!(ask(address, "/healthz").1, "ok\n");
    }
    assert!(begun.elapsed() < limits.request, "no client waits for slow ones");
    // the second client used the slot that the first had released
    until("it is counted", || refused(latest, "crowded_out") == 1);
    assert_closed(streams.remove(0));
    for mut stream in streams {
        stream.write_all(b"t: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "the others stay open: {answer}");
    }
}

#[test]
fn simultaneous_requests_share_one_text() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let latest = Latest::default();
    latest.publish(Snapshot { unix_seconds: 5.0, ..Snapshot::default() }, REFRESH);
    let serving = Arc::new(Serving::new(latest));
    let texts: Vec<_> = runtime.block_on(async {
        let one = || {
            let serving = Arc::clone(&serving);
            tokio::spawn(async move { serving.page(JSON).await.unwrap().text })
        };
        let all: Vec<_> = (0..200).map(|_| one()).collect();
        let mut texts = Vec::new();
        for text in all {
            texts.push(text.await.unwrap());
        }
        texts
    });
    assert!(texts.iter().all(|text| text.as_ptr() == texts[0].as_ptr() && !text.is_empty()));
}

#[test]
fn the_accept_header_decides_the_format() {
    use Format::{OpenMetrics, Prometheus};
    let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                      application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    let cases = [
        (prometheus, OpenMetrics),
        ("", Prometheus),
        ("*/*", Prometheus),
        ("Application/OpenMetrics-Text", OpenMetrics),
        ("application/openmetrics-text; version=0.0.1", Prometheus),
        ("application/openmetrics-text;q=0", Prometheus),
        ("application/openmetrics-text;q=nan", Prometheus),
        ("application/openmetrics-text;q=0.2, text/plain", Prometheus),
        ("text/html,;;q==,=", Prometheus),
    ];
    for (accept, format) in cases {
        assert_eq!(routes::negotiate(accept), format, "{accept}");
    }
}

#[test]
fn a_client_that_accepts_gzip_gets_the_same_text_compressed() {
    for (accept, coding) in [
        ("", latest::Coding::Plain),
        ("gzip", latest::Coding::Gzip),
        ("deflate, GZIP;q=0.5", latest::Coding::Gzip),
        ("gzip;q=0, *", latest::Coding::Plain),
        ("gzip;q=x", latest::Coding::Plain),
        ("br, zstd", latest::Coding::Plain),
    ] {
        assert_eq!(routes::coding(accept), coding, "{accept}");
    }
    let started = started();
    for path in ["/metrics", "/api/snapshot"] {
        let (head, plain) = ask(started.address, path);
        assert!(
            !head.contains("content-encoding") && head.contains("vary: accept, accept-encoding"),
            "{head}"
        );
        let mut stream = connect(started.address);
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let head_bytes = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8_lossy(&answer[..head_bytes]);
        assert!(head.contains("content-encoding: gzip\r\n"), "{head}");
        let mut decompressed = String::new();
        flate2::read::GzDecoder::new(&answer[head_bytes..]).read_to_string(&mut decompressed).unwrap();
        assert_eq!(decompressed, plain);
        assert!(answer.len() - head_bytes < plain.len(), "{} of {}", answer.len(), plain.len());
    }
}

#[test]
fn very_long_texts_are_not_compressed() {
    let started = started_with(|_| {});
    let library = LibraryProbes { path: "x".repeat(5 << 20), ..Default::default() };
    started.latest.publish(Snapshot { libraries: vec![library], ..Snapshot::default() }, REFRESH);
    let (head, text) = ask_with(started.address, "GET", "/metrics", "Accept-Encoding: gzip\r\n");
    assert!(!head.contains("content-encoding") && text.len() > 5 << 20, "{head}");
}
