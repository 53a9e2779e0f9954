//! Pushes to a receiver on the loopback address that answers as each test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use gpuprobe_analysis::Snapshot;
use gpuprobe_event::{OutOfMemoryEvent, Tgid, XidEvent};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message;

use super::lane::{Lane, MOST_REQUESTS};
use super::payload::{Payload, Signal};
use super::points::tests::process;
use super::push_counts::Counts;
use super::received::{logs_of, metrics_of};
use super::*;
use crate::http::Latest;

/// A request that arrived.
struct Arrived {
    path: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

/// The requests that arrived. Those of another path wait until they are asked for.
struct Queue {
    arriving: mpsc::Receiver<Arrived>,
    others: Vec<Arrived>,
}

impl Queue {
    fn next(&mut self, path: &str) -> Arrived {
        loop {
            if let Some(at) = self.others.iter().position(|arrived| arrived.path == path) {
                return self.others.remove(at);
            }
            self.others.push(self.arriving.recv_timeout(PATIENCE).unwrap());
        }
    }
}

/// An answer: its status line with headers, and its body. `None` is no answer.
type Reply = Option<(&'static str, Vec<u8>)>;

const FINE: Reply = Some(("200 OK", Vec::new()));
const PATIENCE: Duration = Duration::from_secs(30);

/// A receiver that answers the n-th request of a signal by `reply`.
fn receiver(reply: impl Fn(&str, usize) -> Reply + Send + 'static) -> (SocketAddr, Queue) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (address, serve(listener, reply))
}

fn serve(listener: TcpListener, reply: impl Fn(&str, usize) -> Reply + Send + 'static) -> Queue {
    let (arrived, arriving) = channel();
    thread::spawn(move || {
        let mut paths: Vec<String> = Vec::new();
        let mut unanswered = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some(request) = read_request(&stream) else { continue };
            let number = paths.iter().filter(|path| **path == request.path).count();
            paths.push(request.path.clone());
            match reply(&request.path, number) {
                Some((head, body)) => {
                    let head = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len());
                    stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
                }
                None => unanswered.push(stream),
            }
            if arrived.send(request).is_err() {
                return;
            }
        }
    });
    Queue { arriving, others: Vec::new() }
}

fn read_request(stream: &TcpStream) -> Option<Arrived> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        // what is not HTTP, such as TLS, ends the connection
        reader.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let path = lines.first()?.split(' ').nth(1)?.to_owned();
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    Some(Arrived { path, headers: lines, body })
}

fn settings(url: &str) -> PushSettings {
    let headers = Headers::parse("Authorization: Bearer x").unwrap();
    PushSettings {
        receiver: Receiver::new(url, None, headers).unwrap().with_timeout(Duration::from_millis(300)),
        resource: Resource::new([("service.name".to_owned(), "gpuprobe".to_owned())]),
        interval: Duration::from_millis(20),
        temporality: Temporality::Cumulative,
        started: UNIX_EPOCH + Duration::from_secs(50),
        report: |_| {},
    }
}

fn snapshot(at: f64, failures: u64) -> Snapshot {
    Snapshot { unix_seconds: at, processes: vec![process(7, 5, failures)], ..Snapshot::default() }
}

fn started(address: SocketAddr, snapshot: Snapshot) -> (Push, Latest) {
    let latest = Latest::default();
    latest.publish(snapshot, Duration::from_secs(1));
    (Push::start(settings(&format!("http://{address}/base")), latest.clone()).unwrap(), latest)
}

/// One count of the push: a list, a signal, and a result or cause.
fn count(push: &Push, list: &str, signal: &str, word: &str) -> u64 {
    let counts = push.counts();
    let items = match list {
        "requests" => {
            let found = counts.requests.iter().find(|row| row.signal == signal && row.result == word);
            return found.unwrap().requests;
        }
        "dropped" => &counts.dropped,
        "delivered" => &counts.delivered,
        "waiting" => &counts.waiting,
        _ => panic!("{list}"),
    };
    items.iter().find(|row| row.signal == signal && row.cause == word).unwrap().items
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn points(body: &[u8]) -> u64 {
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;
    let metrics = metrics_of(body).resource_metrics.remove(0).scope_metrics.remove(0).metrics;
    let of = |data: Data| match data {
        Data::Gauge(gauge) => gauge.data_points.len(),
        Data::Sum(sum) => sum.data_points.len(),
        Data::Histogram(histogram) => histogram.data_points.len(),
        other => panic!("{other:?}"),
    };
    metrics.into_iter().map(|metric| of(metric.data.unwrap())).sum::<usize>() as u64
}

fn records(body: &[u8]) -> Vec<LogRecord> {
    logs_of(body).resource_logs.remove(0).scope_logs.remove(0).log_records
}

fn text(record: &LogRecord) -> &str {
    match record.body.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn metrics_and_logs_arrive_and_are_counted() {
    let (address, mut queue) = receiver(|_, _| FINE);
    let (push, latest) = started(address, snapshot(100.0, 2));
    let metrics = queue.next("/base/v1/metrics");
    let has = |line: &str| assert!(metrics.headers.iter().any(|l| l == line), "{:?}", metrics.headers);
    let wanted =
        ["content-type: application/x-protobuf", "content-encoding: gzip", "authorization: Bearer x"];
    wanted.into_iter().for_each(has);
    has(&format!("host: {address}"));
    let delivered = points(&metrics.body);
    until("delivered", || count(&push, "delivered", "metrics", "") == delivered);
    assert_eq!(count(&push, "requests", "metrics", "accepted"), 1, "no snapshot is pushed twice");
    let first = records(&queue.next("/base/v1/logs").body);
    assert!(text(&first[0]).starts_with("cuMemAlloc_v2 failed 2 times with "), "{}", text(&first[0]));
    // the next failures: one record, with the number of new ones
    latest.publish(snapshot(101.0, 9), Duration::from_secs(1));
    let logs = queue.next("/base/v1/logs");
    let [record] = records(&logs.body).try_into().unwrap();
    let expected = "cuMemAlloc_v2 failed 7 times with CUDA_ERROR_OUT_OF_MEMORY in a\"b\\\\n 7";
    assert_eq!(
        (text(&record), record.severity_number, record.severity_text.as_str()),
        (expected, 13, "WARN")
    );
    assert_eq!(
        (record.time_unix_nano, record.event_name.as_str()),
        (101_000_000_000, "gpuprobe.call_errors")
    );
    let keys: Vec<&str> = record.attributes.iter().map(|pair| pair.key.as_str()).collect();
    assert_eq!(
        keys[..5],
        ["process.executable.name", "gpuprobe.function", "error.type", "gpuprobe.count", "process.pid"]
    );
    // the end pushes once more
    latest.publish(snapshot(102.0, 9), Duration::from_secs(1));
    drop(push);
    let at = |body: &[u8]| {
        use opentelemetry_proto::tonic::metrics::v1::metric::Data;
        match metrics_of(body).resource_metrics[0].scope_metrics[0].metrics[0].data.as_ref().unwrap() {
            Data::Sum(sum) => sum.data_points[0].time_unix_nano / 1_000_000_000,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([0; 2].map(|_| at(&queue.next("/base/v1/metrics").body)), [101, 102]);
}

#[test]
fn errors_of_the_host_become_records() {
    let (address, mut queue) = receiver(|_, _| FINE);
    let (push, latest) = started(address, snapshot(100.0, 0));
    queue.next("/base/v1/metrics");
    let (gpu, message) = ("0000:0f:00.0".into(), "fell\noff".into());
    let xid = XidEvent { id: 1, at_ns: 0, number: 79, gpu, message, processes: Vec::new() };
    push.events().xid(&xid, Duration::from_secs(1));
    let full =
        OutOfMemoryEvent { tgid: Tgid(7), process: "p".into(), requested_bytes: 5, ..Default::default() };
    (0..300).for_each(|_| push.events().out_of_memory(&full, Duration::ZERO));
    push.events().more(4);
    latest.publish(snapshot(101.0, 0), Duration::from_secs(1));
    let all = records(&queue.next("/base/v1/logs").body);
    assert_eq!(all.len(), 256);
    assert!(text(&all[0]).starts_with("XID 79 on GPU 0000:0f:00.0: "), "{}", text(&all[0]));
    assert!(text(&all[0]).ends_with("driver: fell\\noff"), "{}", text(&all[0]));
    assert!(all[0].observed_time_unix_nano - all[0].time_unix_nano >= 1_000_000_000);
    assert_eq!((all[0].severity_text.as_str(), all[0].event_name.as_str()), ("ERROR", "gpuprobe.xid"));
    assert!(text(&all[1]).starts_with("out of memory on a GPU: p 7 asked for 5 B"), "{}", text(&all[1]));
    until("counted", || count(&push, "delivered", "logs", "") == 256);
    assert_eq!(count(&push, "dropped", "logs", "burst"), 45 + 4);
}

#[test]
fn a_request_is_sent_again_unchanged_after_the_time_that_the_receiver_names() {
    let busy: Reply = Some(("429 Too Many Requests\r\nRetry-After: 1", Vec::new()));
    let (address, mut queue) = receiver(move |_, number| if number == 0 { busy.clone() } else { FINE });
    let begun = Instant::now();
    let (push, _latest) = started(address, snapshot(100.0, 0));
    let (first, second) = (queue.next("/base/v1/metrics"), queue.next("/base/v1/metrics"));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(first.body, second.body);
    until("delivered", || count(&push, "delivered", "metrics", "") == points(&first.body));
    let requests = ["accepted", "busy", "refused", "unreachable"];
    assert_eq!(requests.map(|result| count(&push, "requests", "metrics", result)), [1, 1, 0, 0]);
    assert_eq!(count(&push, "waiting", "metrics", ""), 0);
}

#[test]
fn what_is_refused_or_rejected_is_dropped_and_counted() {
    let partial = ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "old".to_owned() };
    let partial = ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let (address, mut queue) = receiver(move |path, _| match path {
        "/base/v1/logs" => Some(("500 Internal Server Error", b"no".to_vec())),
        _ => Some(("200 OK", partial.clone())),
    });
    let (push, _latest) = started(address, snapshot(100.0, 3));
    let all = points(&queue.next("/base/v1/metrics").body);
    until("rejected", || count(&push, "delivered", "metrics", "") == all - 2);
    assert_eq!(count(&push, "dropped", "metrics", "rejected"), 2);
    until("refused", || count(&push, "dropped", "logs", "refused") == 1);
    assert_eq!(count(&push, "requests", "logs", "refused"), 1, "500 is not sent again");
}

#[test]
fn a_receiver_that_is_down_slow_or_not_trusted_delays_nothing_and_loses_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (push, latest) = started(address, snapshot(100.0, 0));
    until("down", || count(&push, "requests", "metrics", "unreachable") > 0);
    let waiting = count(&push, "waiting", "metrics", "");
    assert!(waiting > 0);
    // it is started, and does not answer the first request
    let mut again =
        serve(TcpListener::bind(address).unwrap(), |_, number| if number == 0 { None } else { FINE });
    latest.publish(snapshot(101.0, 0), Duration::from_secs(1));
    let bodies = [0; 3].map(|_| again.next("/base/v1/metrics").body);
    assert_eq!(bodies[0], bodies[1], "the oldest is first");
    assert_ne!(bodies[1], bodies[2]);
    until("delivered", || count(&push, "delivered", "metrics", "") == 2 * waiting);
    let unreachable = count(&push, "requests", "metrics", "unreachable");
    assert!((2..10).contains(&unreachable), "{unreachable}");
    assert_eq!(count(&push, "waiting", "metrics", ""), 0);
    drop(push);

    // it answers without TLS
    let (address, _queue) = receiver(|_, _| FINE);
    let push = Push::start(settings(&format!("https://{address}")), latest).unwrap();
    until("TLS", || count(&push, "requests", "metrics", "unreachable") > 0);
    let begun = Instant::now();
    drop(push);
    assert!(begun.elapsed() < Duration::from_secs(5), "the end does not wait for it");
}

#[test]
fn the_queue_drops_its_oldest_requests_and_counts_their_items() {
    let counts = Arc::<Counts>::default();
    let receiver = Receiver::new("http://127.0.0.1:9", None, Headers::default()).unwrap();
    let lane = Lane::new(Signal::Logs, Arc::new(receiver), Arc::clone(&counts), |_| {});
    let most = MOST_REQUESTS as u64;
    (1..=most + 3).for_each(|items| lane.push(Payload::new(Signal::Logs, b"", items)));
    assert_eq!(counts.read().dropped.iter().map(|row| row.items).sum::<u64>(), 1 + 2 + 3);
    assert_eq!(lane.waiting(), (4..=most + 3).sum::<u64>());
    let large = || Payload { signal: Signal::Logs, body: vec![0; 9 << 20].into(), items: 1 };
    (0..3).for_each(|_| lane.push(large()));
    // two of them are larger than the queue
    assert_eq!(lane.waiting(), 1);
}

#[test]
fn a_note_tells_each_change_of_the_receiver_once() {
    static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let (address, mut queue) = receiver(|_, number| match number {
        0 | 1 => Some(("503 Service Unavailable\r\nRetry-After: 0", Vec::new())),
        2 => FINE,
        _ => Some(("401 Unauthorized", Vec::new())),
    });
    let latest = Latest::default();
    let report = |text: &str| NOTES.lock().unwrap().push(text.to_owned());
    let push = Push::start(PushSettings { report, ..settings(&format!("http://{address}")) }, latest.clone());
    let push = push.unwrap();
    for (at, requests) in [(1.0, 3), (2.0, 1), (3.0, 1)] {
        latest.publish(snapshot(at, 0), Duration::from_secs(1));
        (0..requests).for_each(|_| drop(queue.next("/v1/metrics")));
    }
    until("refused", || count(&push, "requests", "metrics", "refused") == 2);
    drop(push);
    let says = |rest: &str| format!("the OTLP receiver {address} {rest}");
    let expected = [
        says("does not take metrics: it answers 503 Service Unavailable: they are sent again"),
        says("takes metrics"),
        says("refuses metrics: it answers 401 Unauthorized: they are dropped"),
    ];
    assert_eq!(*NOTES.lock().unwrap(), expected);
}
