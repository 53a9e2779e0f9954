use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::*;
use crate::http::{Endpoint, HttpSettings, Latest, OnRequest, ServerHandle};

/// The hash of `secret`.
const HASH: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";

/// Records nothing, and gives each answer according to the pid of the request.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<RecordRequest>>);

fn info(pid: u32) -> RecordingInfo {
    RecordingInfo {
        file: "f".to_owned(),
        path: "/d/f".to_owned(),
        pid,
        process: "a \"b\"".to_owned(),
        seconds: 2.5,
        has_begun: true,
    }
}

impl RecordOnDemand for Recorder {
    fn record(&self, request: &RecordRequest) -> Result<RecordingInfo, RecordRefusal> {
        self.0.lock().unwrap().push(request.clone());
        match request.pid {
            Some(400) => Err(RecordRefusal::Invalid("wrong \u{1b}[2J".to_owned())),
            Some(404) => Err(RecordRefusal::Unknown("there is no process 404".to_owned())),
            Some(409) => Err(RecordRefusal::Busy(info(409))),
            Some(503) => Err(RecordRefusal::Failed("no".to_owned())),
            pid => Ok(info(pid.unwrap_or(1))),
        }
    }

    fn list(&self) -> Result<StoredRecordings, String> {
        Ok(StoredRecordings {
            directory: "/d".to_owned(),
            limit_bytes: 7,
            current: None,
            recordings: vec![StoredInfo { file: "f".to_owned(), bytes: 3 }],
        })
    }
}

struct Served {
    _server: ServerHandle,
    address: SocketAddr,
    recorder: Arc<Recorder>,
}

fn serve(web_config: &str, is_on: bool) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    fs::write(&file, web_config).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint =
        Endpoint::open(HttpSettings { address, web_config: Some(file), report_problem: |_| {} }).unwrap();
    let (address, recorder) = (endpoint.address, Arc::new(Recorder::default()));
    let recordings = is_on.then(|| Arc::<Recorder>::clone(&recorder) as Arc<dyn RecordOnDemand>);
    let on_request = OnRequest { recordings, ..OnRequest::default() };
    Served { _server: endpoint.serve(Latest::default(), on_request).unwrap(), address, recorder }
}

fn with_password() -> Served {
    serve(&format!("basic_auth_users:\n  ann: {HASH}\n"), true)
}

/// Status and body of the answer.
fn ask(served: &Served, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!("{method} {path} HTTP/1.1\r\nHost: h:9000\r\n{headers}{length}\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn password(password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("ann:{password}")))
}

/// What a right request has besides its body.
fn right() -> String {
    password("secret") + "Content-Type: application/json\r\n"
}

fn post(served: &Served, headers: &str, body: &str) -> (u16, String) {
    ask(served, "POST", "/api/record", headers, body)
}

#[test]
fn a_request_with_a_password_records() {
    let served = with_password();
    let body = "{\"pid\": 7, \"seconds\": 2.5, \"functions\": [\"cuMem*\"]}";
    let (status, text) = post(&served, &right(), body);
    assert_eq!((status, text.lines().count()), (202, 1), "{text}");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["file"], &json["pid"], &json["process"]), (&"f".into(), &7.into(), &"a \"b\"".into()));
    assert_eq!(post(&served, &right(), "").0, 202, "no body");
    assert_eq!(post(&served, &right(), " {} ").0, 202);
    let functions = vec!["cuMem*".to_owned()];
    let expected = RecordRequest { pid: Some(7), seconds: Some(2.5), functions };
    let asked = served.recorder.0.lock().unwrap().clone();
    assert_eq!(asked, [expected, RecordRequest::default(), RecordRequest::default()]);
    let (status, list) = ask(&served, "GET", "/api/recordings", &password("secret"), "");
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((status, &list["recordings"][0]["file"], &list["current"]), (200, &"f".into(), &Value::Null));
}

#[test]
fn nothing_is_recorded_without_a_password() {
    let open = serve("", true);
    let (status, text) = post(&open, &right(), "{}");
    assert_eq!((status, text.lines().count()), (403, 1));
    assert!(text.contains("--web-config"), "{text}");
    assert_eq!(ask(&open, "GET", "/api/recordings", "", "").0, 403);
    let served = with_password();
    for headers in
        ["Content-Type: application/json\r\n".to_owned(), password("wrong") + "Content-Type: x\r\n"]
    {
        assert_eq!(post(&served, &headers, "{}").0, 401, "{headers}");
        assert_eq!(ask(&served, "GET", "/api/recordings", &headers, "").0, 401, "{headers}");
    }
    for refused in [open, served] {
        assert_eq!(*refused.recorder.0.lock().unwrap(), []);
    }
    let off = serve(&format!("basic_auth_users:\n  ann: {HASH}\n"), false);
    let (status, text) = post(&off, &right(), "{}");
    assert!(status == 404 && text.contains("--record-dir"), "{text}");
}

#[test]
fn pages_of_other_sites_cannot_ask() {
    let served = with_password();
    for (more, expected) in [
        ("Origin: http://h:9000\r\nSec-Fetch-Site: same-origin\r\n", 202),
        ("Origin: https://H:9000\r\n", 202),
        ("Sec-Fetch-Site: none\r\n", 202),
        ("Origin: http://evil.example\r\n", 403),
        ("Origin: http://h:9001\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: \r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Origin: http://h:9000\r\nSec-Fetch-Site: cross-site\r\n", 403),
    ] {
        assert_eq!(post(&served, &(right() + more), "{}").0, expected, "{more}");
    }
    // what a form can send
    for form in ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"] {
        let headers = format!("{}Content-Type: {form}\r\n", password("secret"));
        assert_eq!(post(&served, &headers, "{}").0, 415, "{form}");
    }
    assert_eq!(post(&served, &password("secret"), "{}").0, 415);
    let charset = password("secret") + "Content-Type: Application/JSON; charset=utf-8\r\n";
    assert_eq!(post(&served, &charset, "{}").0, 202);
    // what a browser asks before it sends JSON to another site
    let preflight = "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n";
    assert_eq!(ask(&served, "OPTIONS", "/api/record", preflight, "").0, 401);
    assert_eq!(served.recorder.0.lock().unwrap().len(), 4);
}

#[test]
fn wrong_requests_get_one_line() {
    let served = with_password();
    let named = |body: &str| post(&served, &right(), body);
    for wrong in [
        "[",
        "7",
        "{\"pid\": -1}",
        "{\"pid\": \"7\"}",
        "{\"pids\": 7}",
        "{\"seconds\": \"x\"}",
        "{\"functions\": 1}",
    ] {
        let (status, text) = named(wrong);
        assert_eq!((status, text.lines().count()), (400, 1), "{wrong}: {text}");
        assert!(text.starts_with("not a request such as {\"pid\": 1234, \"seconds\": 5}: "), "{text}");
    }
    assert_eq!(named("{\"pid\": 400}"), (400, "wrong \\u{1b}[2J\n".to_owned()));
    assert_eq!(named("{\"pid\": 404}"), (404, "there is no process 404\n".to_owned()));
    assert_eq!(named("{\"pid\": 503}").0, 503);
    let (status, busy) = named("{\"pid\": 409}");
    let busy: Value = serde_json::from_str(&busy).unwrap();
    assert_eq!((status, &busy["current"]["file"]), (409, &"f".into()));
    assert_eq!(named(&" ".repeat(MOST_BODY_BYTES + 1)).0, 413);
    for method in ["GET", "PUT", "DELETE"] {
        let (status, text) = ask(&served, method, "/api/record", &right(), "");
        assert_eq!((status, text.as_str()), (405, "only POST is supported here\n"), "{method}");
    }
    assert_eq!(ask(&served, "POST", "/api/recordings", &right(), "").0, 405);
    assert_eq!(ask(&served, "POST", "/metrics", &right(), "{}").0, 413, "other paths take no body");
    assert_eq!(ask(&served, "PUT", "/api/record", &right(), "{}").0, 413);
    let chunked = right() + "Transfer-Encoding: chunked\r\n";
    let mut stream = TcpStream::connect(served.address).unwrap();
    let request =
        format!("POST /api/record HTTP/1.1\r\nHost: h:9000\r\n{chunked}\r\n9\r\n{{\"pid\":5}}\r\n0\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 ") && answer.contains("\"pid\":5"), "{answer}");
}
