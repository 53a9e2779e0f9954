use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use gpuprobe_analysis::LibraryProbes;

use super::*;

fn started() -> (ServerHandle, SocketAddr, Latest) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let latest = Latest::default();
    (serve(listener, latest.clone()).unwrap(), address, latest)
}

/// Head and body of the answer to one request.
fn ask(address: SocketAddr, path: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{accept}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn a_scrape_sees_the_last_snapshot() {
    let (_server, address, latest) = started();
    let (head, body) = ask(address, "/metrics", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_eq!(body, encode(&Snapshot::default(), Format::Prometheus));

    let library = LibraryProbes { path: "/lib/libcuda.so.1".to_owned(), attached: 7, ..Default::default() };
    latest.publish(Snapshot { libraries: vec![library], ..Snapshot::default() });
    let (_, body) = ask(address, "/metrics", "");
    let line = "gpuprobe_probes{library=\"/lib/libcuda.so.1\",state=\"attached\"} 7\n";
    assert!(body.contains(line), "{body}");
}

#[test]
fn open_metrics_is_served_when_asked_for() {
    let (_server, address, _latest) = started();
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3\r\n";
    let (head, body) = ask(address, "/metrics", accept);
    let expected = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(expected), "{head}");
    assert_eq!(body, encode(&Snapshot::default(), Format::OpenMetrics));
}

#[test]
fn health_index_and_nothing_else() {
    let (_server, address, _latest) = started();
    assert_eq!(ask(address, "/healthz", "").1, "ok\n");
    assert!(ask(address, "/", "").1.contains("/metrics"));
    assert!(ask(address, "/etc/passwd", "").0.starts_with("HTTP/1.1 404"));
}

#[test]
fn dropping_the_handle_stops_it_even_with_a_client_that_waits() {
    let (server, address, _latest) = started();
    assert_eq!(ask(address, "/healthz", "").1, "ok\n");
    let mut idle = TcpStream::connect(address).unwrap();
    idle.write_all(b"GET /metrics HTTP/1.1\r\nHos").unwrap();
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn slow_clients_are_cut_off_and_do_not_keep_others_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { connections: 4, request: Duration::from_millis(300), ..LIMITS };
    let _server = serve_within(limits, listener, Latest::default()).unwrap();
    let slow = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHos").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let begun = Instant::now();
    let streams: Vec<_> = (0..4).map(|_| slow()).collect();
    assert_eq!(ask(address, "/healthz", "").1, "ok\n");
    assert!(begun.elapsed() >= limits.request, "there was no place before");
    for mut stream in streams {
        let mut rest = Vec::new();
        // closed, or reset because of what was sent
        assert!(
            stream.read_to_end(&mut rest).is_ok_and(|_| !rest.starts_with(b"HTTP/1.1 200"))
                || rest.is_empty()
        );
    }
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
        assert_eq!(negotiate(accept), format, "{accept}");
    }
}
