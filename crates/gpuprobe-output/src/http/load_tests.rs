//! Clients that request pages and do not read the answers, and the cost of a large answer.

#[path = "../../examples/scrape_cost/many_processes.rs"]
mod many_processes;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::http::Request;
use bytes::Bytes;
use gpuprobe_analysis::{LibraryProbes, Snapshot};

use super::latest::{Coding, Page, Text};
use super::tests::{REFRESH, Started, ask, connect, refused, started_with, status, until};
use super::*;
use crate::metrics::Format;

const METRICS: Page = Page { text: Text::Metrics(Format::Prometheus), coding: Coding::Plain };
const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
/// More than the operating system buffers for a client that does not read.
const LONG: usize = 4 << 20;

fn snapshot_of_length(bytes: usize) -> Snapshot {
    let library = LibraryProbes { path: "x".repeat(bytes), ..Default::default() };
    Snapshot { libraries: vec![library], ..Snapshot::default() }
}

/// The text of the last snapshot: the same memory that is served.
fn text(latest: &Latest) -> Bytes {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Serving::new(latest.clone()).page(METRICS)).unwrap().text
}

/// Publishes a text that is a little longer than the previous ones, and waits until it is served.
fn publish(started: &Started, longer: usize) -> Bytes {
    started.latest.publish(snapshot_of_length(LONG + longer), REFRESH);
    let text = text(&started.latest);
    let length = format!("content-length: {}", text.len());
    until("the new text is served", || {
        let mut stream = connect(started.address);
        stream.write_all(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut head = String::new();
        stream.read_to_string(&mut head).unwrap();
        head.contains(&length)
    });
    text
}

/// A client that sends a request and does not read the answer.
fn unread_request(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(REQUEST).unwrap();
    stream
}

fn answered(stream: &TcpStream) {
    assert_eq!(stream.peek(&mut [0; 1]).unwrap(), 1);
}

#[test]
fn clients_that_do_not_read_are_closed_at_once_for_clients_that_do() {
    // so that no slot is released because of a timeout
    let limits = Limits { patience: LIMITS.answer, ..LIMITS };
    let started = started_with(|endpoint| endpoint.limits = limits);
    publish(&started, 0);
    let _unread: Vec<_> = (0..300).map(|_| unread_request(started.address)).collect();
    let scrape = || {
        let begun = Instant::now();
        assert!(ask(started.address, "/metrics").1.len() > LONG);
        begun.elapsed()
    };
    let mut times: Vec<_> = (0..20).map(|_| scrape()).collect();
    times.sort_unstable();
    println!("with 300 clients that do not read: median {:?}, slowest {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
    // the first request competes with those 300, and the machine may be busy
    assert!(times[19] < limits.answer / 4, "{times:?}");
    assert!(refused(&started.latest, "crowded_out") >= 300 - LIMITS.connections as u64);
}

#[test]
fn no_more_texts_are_kept_for_slow_readers_than_allowed() {
    let limits = Limits { texts: 3, ..LIMITS };
    let started = started_with(|endpoint| endpoint.limits = limits);
    let mut clients: Vec<(Bytes, TcpStream)> = Vec::new();
    for longer in 0..8 {
        let text = publish(&started, longer);
        let client = unread_request(started.address);
        answered(&client);
        clients.push((text, client));
    }
    until("the oldest readers are closed", || refused(&started.latest, "old_text") == 5);
    until("their texts are freed", || clients.iter().take(5).all(|(text, _)| text.is_unique()));
    assert!(clients.iter().skip(5).all(|(text, _)| !text.is_unique()), "the newest ones stay");
    let (text, mut last) = clients.pop().unwrap();
    let mut answer = Vec::new();
    last.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(&text));

    let limits = Limits { text_bytes: LONG, ..LIMITS };
    let started = started_with(|endpoint| endpoint.limits = limits);
    let (first, one) = (publish(&started, 0), unread_request(started.address));
    answered(&one);
    assert_eq!(refused(&started.latest, "old_text"), 0, "a single text may have any length");
    publish(&started, 1);
    answered(&unread_request(started.address));
    until("two texts are too long together", || first.is_unique());
    assert_eq!(refused(&started.latest, "old_text"), 1);
}

#[test]
fn a_client_that_disconnects_early_is_counted_and_its_slot_is_released() {
    const EACH: usize = 40;
    // as many clients as slots
    let limits = Limits { connections: 2 * EACH, ..LIMITS };
    let started = started_with(|endpoint| endpoint.limits = limits);
    let text = publish(&started, 0);
    let half_request = |_| {
        let mut stream = connect(started.address);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHos").unwrap();
        stream
    };
    let mut disconnecting: Vec<_> = (0..EACH).map(half_request).collect();
    disconnecting.extend((0..EACH).map(|_| unread_request(started.address)));
    disconnecting.iter().skip(EACH).for_each(answered);
    drop(disconnecting);
    until("all are counted", || refused(&started.latest, "aborted") == 2 * EACH as u64);
    // a client that sends nothing does not count as aborted
    drop(connect(started.address));
    started.latest.publish(Snapshot::default(), REFRESH);
    until("the text is freed", || text.is_unique());
    for _ in 0..3 * EACH {
        assert_eq!(status(started.address, "/healthz"), 200);
    }
    assert_eq!(refused(&started.latest, "aborted"), 2 * EACH as u64);
    assert_eq!(refused(&started.latest, "crowded_out"), 0, "no slot was lost");
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    // the kernel updates it when the thread is scheduled out
    std::thread::sleep(Duration::from_micros(1));
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn handling_a_scrape_of_a_thousand_processes_takes_less_than_five_milliseconds() {
    let latest = Latest::default();
    latest.publish(many_processes::many_processes(), REFRESH);
    let serving = Arc::new(Serving::new(latest));
    let site = Site {
        serving: Arc::clone(&serving),
        web_config: WebConfig::open(None, |_| {}).unwrap(),
        auth: Authenticator::new().unwrap(),
        router: router(Shown { serving, fresh_for: FRESH_FOR, on_request: OnRequest::default() }),
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let answer = || {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        runtime.block_on(site.answer(&site.access(), request, IpAddr::from([127, 0, 0, 1]).into()))
    };
    let bytes = answer().body().size_hint().exact().unwrap();
    assert!(bytes > 8 << 20, "{bytes}");
    let mut costs: Vec<_> = (0..21)
        .map(|_| {
            let (cpu, wall) = (cpu_time(), Instant::now());
            assert_eq!(answer().body().size_hint().exact(), Some(bytes));
            let wall = wall.elapsed();
            (cpu_time() - cpu, wall)
        })
        .collect();
    costs.sort_unstable();
    println!("{bytes} bytes: median {:?}, most {:?} (CPU, wall)", costs[10], costs[20]);
    assert!(costs[10].0 < Duration::from_millis(5), "{costs:?}");
}
