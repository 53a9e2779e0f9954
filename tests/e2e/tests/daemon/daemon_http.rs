//! The HTTP endpoint of the daemon with real clients: curl, many clients at once, slow ones, and ones without valid
//! credentials.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use gpuprobe_e2e::certificates::{Certificate, authority, signed};
use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Finished, Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// bcrypt hashes of `secret` and `changed`, made by another program.
const SECRET: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
const CHANGED: &str = "$2b$05$zyxwvutsrqponmlkjihgfez6uDSWBKnd0Z2LcFdCDUBBkVJJDkLGi";

const REFUSED: &str = "gpuprobe_http_connections_refused_total";
const LIMIT: Duration = Duration::from_millis(50);
const SLOW_CLIENTS: usize = 50;
const CLIENTS: usize = 200;
/// Groups of clients, one after the other.
const CLIENT_GROUPS: usize = 15;
const PROGRAMS: usize = 5;

/// Status and body; the status is 0 if there was no answer.
fn curl(args: &[&str], url: &str) -> (u16, String) {
    let reported = ["-sS", "--max-time", "30", "-w", "\n%{http_code}"];
    let finished = finish(Command::new("curl").args(reported).args(args).arg(url));
    let (body, status) = finished.stdout.rsplit_once('\n').unwrap_or_else(|| panic!("{}", finished.stderr));
    (status.parse().unwrap(), body.to_owned())
}

fn refused(metrics: &Metrics, reason: &str) -> u64 {
    metrics.samples(REFUSED).find(|(labels, _)| labels["reason"] == reason).unwrap().1
}

fn bare(metrics: &Metrics, name: &str) -> f64 {
    let mut values = metrics.text.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    values.next().unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// With the header that Prometheus sends, and without it.
const ENCODINGS: [(&str, &str); 2] = [("packed", "Accept-Encoding: gzip\r\n"), ("plain", "")];

/// The time of one scrape, from the connection to the last byte.
fn scrape_time(address: SocketAddr, accept: &str, clients: Option<&Barrier>) -> Duration {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    clients.map(Barrier::wait);
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    begun.elapsed()
}

/// How long the answering threads of a daemon, and this one, were runnable without a CPU.
fn without_cpu(daemon: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{daemon}/task")).unwrap().map(|thread| thread.unwrap().path());
    let waited = |thread: PathBuf| {
        // a thread that has exited meanwhile waits no more
        let stat = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
        stat.split(' ').nth(1).map_or(0, |ns| ns.parse::<u64>().unwrap())
    };
    let answers = |thread: &PathBuf| {
        let name = fs::read_to_string(thread.join("comm")).unwrap_or_default();
        ["http", "tokio-rt-worker"].contains(&name.trim_end())
    };
    let ours = waited(PathBuf::from("/proc/thread-self"));
    Duration::from_nanos(ours + threads.filter(answers).map(waited).sum::<u64>())
}

/// The time of a scrape by one client that starts right after many clients have asked at once; and the part of it
/// that the endpoint causes: the clients and other programs may occupy the CPUs meanwhile.
fn time_with_many_clients(daemon: &Daemon, accept: &str) -> (Duration, Duration) {
    let (together, address) = (Barrier::new(CLIENTS + 1), daemon.address());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| scrape_time(address, accept, Some(&together)));
        }
        together.wait();
        let before = without_cpu(daemon.talk.pid());
        let time = scrape_time(address, accept, None);
        let waited = without_cpu(daemon.talk.pid()).saturating_sub(before);
        (time.saturating_sub(waited), time)
    })
}

/// Programs that have made many kinds of calls and stay alive, so that a scrape has content.
fn busy_host(folder: &Path, daemon: &Daemon) -> Vec<Talk> {
    let start =
        |_| Talk::start(Command::new(folder.join("ledger")).args(["--calls", "500", "--pauses", "1"]));
    let mut programs: Vec<_> = (0..PROGRAMS).map(start).collect();
    let pids: Vec<u32> = programs.iter_mut().map(|program| pid_of(&program.json())).collect();
    daemon.until(PATIENCE, "all programs are seen", |m| {
        pids.iter().all(|pid| m.of("gpuprobe_calls_total", *pid) > Some(0))
    });
    programs
}

fn assert_prompt(daemon: &Daemon, form: &str, accept: &str) {
    let mut times: Vec<_> = (0..CLIENT_GROUPS).map(|_| time_with_many_clients(daemon, accept)).collect();
    times.sort_unstable();
    let mut in_all: Vec<_> = times.iter().map(|(_, in_all)| *in_all).collect();
    in_all.sort_unstable();
    println!(
        "{} bytes, {form}, with {CLIENTS} and {SLOW_CLIENTS} slow: median {:?}, slowest {:?} with a CPU; {:?} and {:?} in all",
        daemon.scrape().text.len(),
        times[CLIENT_GROUPS / 2].0,
        times[CLIENT_GROUPS - 1].0,
        in_all[CLIENT_GROUPS / 2],
        in_all[CLIENT_GROUPS - 1]
    );
    assert!(times[CLIENT_GROUPS - 1].0 < LIMIT, "{times:?}");
}

#[bpf_test(alone)]
fn a_client_is_answered_at_once_among_many_and_slow_clients() {
    let folder = fixtures::folder();
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
    let daemon = Daemon::displaying(0, &["-p", &shown(folder.path().join("libcuda.so.1"))]);
    let address = daemon.address();
    let _programs = busy_host(folder.path(), &daemon);
    let mut slow: Vec<_> = (0..SLOW_CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let request = b"GET /metrics HTTP/1.1\r\nHost: slow\r\n\r\n";
    thread::scope(|scope| {
        // one byte per second, until they are disconnected
        let loris = scope.spawn(move || {
            for byte in request.iter().take(7) {
                slow.iter_mut().for_each(|stream| drop(stream.write_all(&[*byte])));
                thread::sleep(Duration::from_secs(1));
            }
        });
        for (form, accept) in ENCODINGS {
            assert_prompt(&daemon, form, accept);
        }
        loris.join().unwrap();
    });
    let enough = |m: &Metrics| refused(m, "slow_request") == SLOW_CLIENTS as u64;
    let metrics = daemon.until(PATIENCE, "all slow ones are cut off and counted", enough);
    let answered =
        metrics.samples("gpuprobe_http_requests_total").find(|(l, _)| l["code"] == "200").unwrap().1;
    assert!(answered >= (ENCODINGS.len() * CLIENT_GROUPS * CLIENTS) as u64, "{answered}");
    assert_eq!((refused(&metrics, "crowded_out"), refused(&metrics, "aborted")), (0, 0));
}

#[bpf_test]
fn curl_can_fetch_every_file_of_the_page() {
    let daemon = Daemon::displaying(0, &[]);
    let url = |path: &str| format!("http://{}{path}", daemon.address());
    let (status, index) = curl(&[], &url("/"));
    assert!(status == 200 && index.contains("href=\"api/snapshot\""), "{index}");
    let links = ["href=\"", "src=\""].iter().flat_map(|attribute| index.split(attribute).skip(1));
    for link in links.filter_map(|link| link.split('"').next()).filter(|link| !link.starts_with('#')) {
        assert_eq!(curl(&[], &url(&format!("/{link}"))).0, 200, "{link}");
    }
    assert_eq!(curl(&[], &url("/healthz")), (200, "ok\n".to_owned()));
    assert_eq!(curl(&[], &url("/readyz")), (200, "ok\n".to_owned()));
    assert_eq!(curl(&["-X", "DELETE"], &url("/metrics")).0, 405);
    assert_eq!(curl(&["-d", "x=1"], &url("/metrics")).0, 413);
    assert_eq!(curl(&["-I"], &url("/metrics")).0, 200);
    let json: Value = serde_json::from_str(&curl(&[], &url("/api/snapshot")).1).unwrap();
    let made = json["snapshot"]["unix_seconds"].as_f64().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 60.0..=now).contains(&made), "{made} is not now, {now}");

    let metrics = daemon.scrape();
    let resident = gpuprobe_e2e::process::resident_kilobytes(daemon.talk.pid()) as f64 * 1024.0;
    let reported = bare(&metrics, "process_resident_memory_bytes");
    assert!((0.5..2.0).contains(&(reported / resident)), "{reported} is not about {resident}");
    let started = bare(&metrics, "process_start_time_seconds");
    assert!((now - 120.0..=now + 1.0).contains(&started), "{started} is not a moment before {now}");
    for name in ["process_cpu_seconds_total", "process_open_fds", "process_max_fds"] {
        assert!(bare(&metrics, name) > 0.0, "{name}");
    }
}

/// A web config with its certificates.
struct WebConfig {
    folder: tempfile::TempDir,
    ours: Certificate,
    server: Certificate,
}

impl WebConfig {
    fn new() -> Self {
        let folder = fixtures::folder();
        let ours = authority(folder.path(), "ours");
        let server = signed(folder.path(), "server", &ours);
        Self { folder, ours, server }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("web.yml")
    }

    /// Writes the file, with TLS, more TLS settings, and one user.
    fn write(&self, more_tls: &str, hash: &str) -> PathBuf {
        // file names are relative to the folder of the config
        let text = format!(
            "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n{more_tls}basic_auth_users:\n  ann: {hash}\n"
        );
        self.write_text(&text)
    }

    fn write_text(&self, text: &str) -> PathBuf {
        // by a rename, as a file in use is changed
        let new = self.folder.path().join("new.yml");
        fs::write(&new, text).unwrap();
        fs::rename(&new, self.path()).unwrap();
        self.path()
    }
}

#[bpf_test]
fn tls_passwords_and_client_certificates_work_and_can_change_while_it_runs() {
    let web_config = WebConfig::new();
    let config = shown(web_config.write("", SECRET));
    let daemon = Daemon::displaying(0, &["--web-config", &config]);
    assert!(daemon.talk.stderr().contains("metrics on https://127.0.0.1:"), "{}", daemon.talk.stderr());
    let url = format!("https://{}/metrics", daemon.address());
    let ca = shown(&web_config.ours.cert);
    let ask = |args: &[&str]| curl(&[&["--cacert", &ca], args].concat(), &url);
    let (status, text) = ask(&["-u", "ann:secret"]);
    assert!(status == 200 && text.contains("gpuprobe_build_info"), "{status} {text}");
    for wrong in [&["-u", "ann:wrong"][..], &["-u", "eve:secret"], &[]] {
        assert_eq!(ask(wrong).0, 401, "{wrong:?}");
    }
    assert_eq!(curl(&["-u", "ann:secret"], &url).0, 0, "curl does not know who signed");
    let (status, text) = curl(&[], &url.replace("https", "http"));
    assert!(status == 400 && text.contains("https://"), "{status} {text}");

    web_config.write("", CHANGED);
    assert_eq!(ask(&["-u", "ann:secret"]).0, 401);
    assert_eq!(ask(&["-u", "ann:changed"]).0, 200);
    web_config.write_text("nonsense: true\n");
    assert_eq!(ask(&["-u", "ann:changed"]).0, 200, "a wrong file changes nothing");
    let said = daemon.talk.stderr();
    assert_eq!(said.lines().filter(|l| l.contains("unknown field `nonsense`")).count(), 1, "{said}");

    web_config.write("  min_version: TLS13\n", CHANGED);
    assert_eq!(ask(&["--tls-max", "1.2", "-u", "ann:changed"]).0, 0);
    assert_eq!(ask(&["-u", "ann:changed"]).0, 200);

    assert_client_certificates(&web_config, &|args| ask(&[args, &["-u", "ann:changed"]].concat()).0);

    // a renewed certificate, by another authority
    web_config.write("", CHANGED);
    let others = authority(web_config.folder.path(), "others");
    signed(web_config.folder.path(), "server", &others);
    assert_eq!(ask(&["-u", "ann:changed"]).0, 0);
    let last = curl(&["--cacert", &shown(&others.cert), "-u", "ann:changed"], &url);
    assert_eq!(last.0, 200);
    let metrics = Metrics { text: last.1 };
    assert_eq!(refused(&metrics, "not_tls"), 1);
    assert!(refused(&metrics, "tls_handshake") > 0);
}

#[bpf_test(alone)]
fn a_flood_of_wrong_passwords_does_not_lock_out_another_address() {
    let folder = fixtures::folder();
    let config = folder.path().join("web.yml");
    // of `secret`, with a common cost
    let slow = "$2b$10$abcdefghijklmnopqrstuuqflPDzB6gcMhKa1rZqKiun2YGL5sa2u";
    fs::write(&config, format!("basic_auth_users:\n  ann: {slow}\n")).unwrap();
    let daemon = Daemon::displaying(0, &["--web-config", &shown(&config)]);
    let (address, done) = (daemon.address(), std::sync::atomic::AtomicBool::new(false));
    thread::scope(|scope| {
        for client in 0..32 {
            let done = &done;
            scope.spawn(move || {
                for attempt in 0.. {
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    ask_with_password(address, &format!("ann:{client}-{attempt}"));
                }
            });
        }
        let url = format!("http://{address}/metrics");
        let statuses: Vec<_> =
            (0..45).map(|_| curl(&["--interface", "127.0.0.2", "-u", "ann:secret"], &url).0).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(statuses, [200; 45]);
    });
}

/// Sends one request and ignores the answer.
fn ask_with_password(address: SocketAddr, pair: &str) {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let pair = base64(pair.as_bytes());
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {pair}\r\n\r\n").ok();
    stream.read_to_end(&mut Vec::new()).ok();
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of_three = |three: &[u8]| {
        let word = (0..3).fold(0_usize, |word, at| word << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        let digit = |at: usize| char::from(DIGITS[word >> (18 - 6 * at) & 63]);
        (0..4).map(|at| if at <= three.len() { digit(at) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(of_three).collect()
}

fn assert_client_certificates(web_config: &WebConfig, ask: &dyn Fn(&[&str]) -> u16) {
    let folder = web_config.folder.path();
    let known = signed(folder, "known", &web_config.ours);
    let stranger = authority(folder, "stranger");
    let with = |certificate: &Certificate| {
        let (cert, key) = (shown(&certificate.cert), shown(&certificate.key));
        ask(&["--cert", &cert, "--key", &key])
    };
    let wanted = |kind: &str, more: &str| {
        web_config.write(&format!("  client_auth_type: {kind}\n{more}"), CHANGED);
        (ask(&[]), with(&stranger), with(&known))
    };
    let ours = "  client_ca_file: ours.crt\n";
    assert_eq!(wanted("RequireAndVerifyClientCert", ours), (0, 0, 200));
    assert_eq!(wanted("VerifyClientCertIfGiven", ours), (200, 0, 200));
    assert_eq!(wanted("RequireAnyClientCert", ""), (0, 200, 200));
    assert_eq!(wanted("RequestClientCert", ""), (200, 200, 200));
}

/// Checks for this status and one line on stderr with all of these words.
fn assert_reported(finished: &Finished, status: i32, words: &[&str]) {
    assert_eq!(finished.status, status, "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    words.iter().for_each(|word| assert!(finished.stderr.contains(word), "{word}: {}", finished.stderr));
}

fn daemon(args: &[&str]) -> Finished {
    finish(gpuprobe(&["daemon", "--metrics-addr", "127.0.0.1:0"]).args(args))
}

#[test]
fn errors_at_the_start_of_the_endpoint_are_one_line() {
    let web_config = WebConfig::new();
    let reported = |text: &str, words: &[&str]| {
        let config = shown(web_config.write_text(text));
        assert_reported(&daemon(&["--web-config", &config]), 1, &[words, &["web.yml"]].concat());
    };
    let tls = |cert: &str, key: &str| format!("tls_server_config:\n  cert_file: {cert}\n  key_file: {key}\n");
    reported("basic_auth_user:\n  ann: x\n", &["unknown field `basic_auth_user`"]);
    reported("basic_auth_users:\n  ann: secret\n", &["ann", "htpasswd"]);
    reported(&tls("none.crt", "server.key"), &["cert_file none.crt", "No such file"]);
    reported(&tls("server.crt", "none.key"), &["key_file none.key", "No such file"]);
    reported(&tls("server.key", "server.key"), &["cert_file server.key", "no certificate"]);
    reported(&tls("server.crt", "server.crt"), &["key_file server.crt", "no private key"]);
    reported(&tls("server.crt", "ours.key"), &["key_file ours.key", "cert_file server.crt"]);
    fs::write(web_config.folder.path().join("broken.crt"), broken(&web_config.server.cert)).unwrap();
    reported(&tls("broken.crt", "server.key"), &["broken.crt"]);
    assert_reported(&daemon(&["--web-config", "/none/web.yml"]), 1, &["/none/web.yml", "No such file"]);
    assert_reported(&daemon(&["--web-config", "/"]), 1, &["is not a file"]);
    // an address reserved for documentation
    let elsewhere = finish(&mut gpuprobe(&["daemon", "--metrics-addr", "192.0.2.1:9000"]));
    assert_reported(&elsewhere, 1, &["cannot listen on 192.0.2.1:9000", "--metrics-addr"]);
    assert_eq!(finish(&mut gpuprobe(&["daemon", "--web-config"])).status, 2);
}

fn broken(certificate: &Path) -> String {
    let text = fs::read_to_string(certificate).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    [&lines[..3], &lines[lines.len() - 2..]].concat().join("\n")
}
