//! Asks NCCL's RAS service for the status of jobs. One process of a job on each host listens on a loopback address. Its
//! protocol is lines of text. Any program can listen there, so the answer is bounded and untrusted.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuprobe_analysis::NcclStatus;
use gpuprobe_discover::{maps_nccl, variable_at_start};
use gpuprobe_event::Tgid;
use gpuprobe_output::units::printable;

/// The variable that has another address.
const ADDRESS_VARIABLE: &str = "NCCL_RAS_ADDR";
/// Where the service listens by default.
const PORT: u16 = 28028;
/// The time for all services together.
const AT_MOST: Duration = Duration::from_secs(2);
/// The service waits so many seconds for other hosts, so that it answers in time.
const WAIT_FOR_OTHERS: u32 = 1;
/// The most bytes of an answer.
const MOST_BYTES: usize = 64 << 10;
/// The most bytes of a line before the status.
const LONGEST_LINE: usize = 256;
/// The most services that are asked.
const MOST_SERVICES: usize = 4;
const PROTOCOL: u32 = 2;

/// The status of the jobs of these processes. Empty if no service answers. A service in another network namespace is
/// not asked.
pub(crate) fn nccl_status(processes: &[Tgid]) -> Vec<NcclStatus> {
    let deadline = Instant::now() + AT_MOST;
    let proc_root = Path::new("/proc");
    let of_nccl = processes.iter().filter(|pid| maps_nccl(proc_root, pid.0));
    let services: BTreeSet<_> = of_nccl.filter_map(|pid| port_of(proc_root, *pid)).collect();
    services.into_iter().take(MOST_SERVICES).filter_map(|port| ask_port(port, deadline)).collect()
}

/// The port of the service of a process, if that listens on a loopback address in gpuprobe's network namespace.
fn port_of(proc_root: &Path, pid: Tgid) -> Option<u16> {
    let network = |process: PathBuf| proc_root.join(process).join("ns/net").read_link().ok();
    let own = network("self".into())?;
    if network(pid.to_string().into())? != own {
        return None;
    }
    match variable_at_start(proc_root, pid.0, ADDRESS_VARIABLE) {
        Some(address) => loopback_port(&address),
        None => Some(PORT),
    }
}

/// The port of an address such as `localhost:28028`, if it is reached by loopback.
fn loopback_port(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    let is_reached = host == "localhost" || host.parse().is_ok_and(is_loopback);
    port.parse().ok().filter(|port| is_reached && *port != 0)
}

fn ask_port(port: u16, deadline: Instant) -> Option<NcclStatus> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    loopback.into_iter().find_map(|ip| ask(SocketAddr::new(ip, port), deadline).ok())
}

/// Asks one service.
fn ask(address: SocketAddr, deadline: Instant) -> io::Result<NcclStatus> {
    let mut connection = Connection::open(address, deadline)?;
    connection.send(format_args!("CLIENT PROTOCOL {PROTOCOL}\n"))?;
    let version = connection.line()?;
    if !version.to_ascii_uppercase().starts_with(b"SERVER PROTOCOL ") {
        return Err(io::ErrorKind::InvalidData.into());
    }
    connection.send(format_args!("TIMEOUT {WAIT_FOR_OTHERS}\n"))?;
    if !connection.line()?.eq_ignore_ascii_case(b"OK") {
        return Err(io::ErrorKind::InvalidData.into());
    }
    connection.send(format_args!("VERBOSE STATUS\n"))?;
    let (bytes, is_cut) = connection.rest();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().map(printable).collect();
    Ok(NcclStatus { address: address.to_string(), text: lines.join("\n"), is_cut })
}

/// A connection that ends at a deadline.
struct Connection {
    stream: TcpStream,
    deadline: Instant,
    /// What was received and not used.
    received: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr, deadline: Instant) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, left(deadline)?)?;
        Ok(Self { stream, deadline, received: Vec::new() })
    }

    fn send(&mut self, line: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write_all(line.to_string().as_bytes())
    }

    /// Receives more; returns false at the end.
    fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        let count = match self.stream.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            count => count?,
        };
        self.received.extend_from_slice(bytes.get(..count).unwrap_or_default());
        Ok(count > 0)
    }

    /// The next line, without its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=end).collect();
                line.truncate(line.trim_ascii_end().len());
                return Ok(line);
            }
            if self.received.len() > LONGEST_LINE || !self.receive()? {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    /// Everything up to the end of the connection, and whether it is cut.
    fn rest(mut self) -> (Vec<u8>, bool) {
        let is_cut = loop {
            if self.received.len() > MOST_BYTES {
                break true;
            }
            match self.receive() {
                Ok(true) => {}
                Ok(false) => break false,
                Err(_) => break true,
            }
        };
        self.received.truncate(MOST_BYTES);
        (self.received, is_cut)
    }
}

/// The time up to the deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// Asks a service that sends `greeting` for the first line, and then calls `status`. Returns the lines that it
    /// received.
    fn asked(
        greeting: &'static [u8],
        limit: Duration,
        status: impl FnOnce(&mut TcpStream) + Send + 'static,
    ) -> (io::Result<NcclStatus>, Vec<String>, Duration) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let service: JoinHandle<Vec<String>> = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut lines = Vec::new();
            for answer in [greeting, b"OK\n", b""] {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return lines;
                }
                lines.push(line);
                stream.write_all(answer).ok();
            }
            status(&mut stream);
            lines
        });
        let begin = Instant::now();
        let answer = ask(address, begin + limit);
        let took = begin.elapsed();
        (answer, service.join().unwrap(), took)
    }

    const GREETING: &[u8] = b"SERVER PROTOCOL 2\n";
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(300);

    #[test]
    fn a_whole_answer_is_returned_without_control_characters() {
        let (answer, lines, _) = asked(GREETING, LONG, |stream| {
            stream.write_all(b"NCCL version 2.32\n\x1b[31mrank 3 \xff lags\n").unwrap();
        });
        let answer = answer.unwrap();
        assert_eq!(answer.text, "NCCL version 2.32\n\\u{1b}[31mrank 3 \u{fffd} lags");
        assert!(!answer.is_cut && answer.address.starts_with("127.0.0.1:"));
        assert_eq!(lines, ["CLIENT PROTOCOL 2\n", "TIMEOUT 1\n", "VERBOSE STATUS\n"]);
    }

    #[test]
    fn a_slow_answer_is_cut_at_the_deadline() {
        let (answer, _, took) = asked(GREETING, SHORT, |stream| {
            // a byte now and then must not extend the time
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let answer = answer.unwrap();
        assert!(answer.is_cut && answer.text.starts_with('x'), "{answer:?}");
        assert!(took >= SHORT && took < LONG);
    }

    #[test]
    fn an_endless_answer_is_cut_at_the_limit() {
        let (answer, ..) = asked(GREETING, LONG, |stream| while stream.write_all(&[b'x'; 4096]).is_ok() {});
        let answer = answer.unwrap();
        assert_eq!((answer.text.len(), answer.is_cut), (MOST_BYTES, true));
    }

    #[test]
    fn other_services_give_no_status() {
        for greeting in
            [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"-ERR unknown command\n", &[b'x'; 100_000]]
        {
            let (answer, lines, _) = asked(greeting, LONG, |_| panic!("not asked for a status"));
            assert!(answer.is_err());
            assert_eq!(lines[0], "CLIENT PROTOCOL 2\n");
        }
        let (answer, _, took) = asked(b"", SHORT, |_| {});
        assert!(answer.is_err() && took >= SHORT, "it says nothing");
    }

    #[test]
    fn no_service_gives_no_status() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert!(ask(address, Instant::now() + LONG).is_err());
        assert!(ask(address, Instant::now()).is_err());
    }

    #[test]
    fn only_loopback_addresses_are_asked() {
        for (address, port) in [
            ("localhost:28028", Some(28028)),
            ("127.0.0.1:7", Some(7)),
            ("127.8.8.8:7", Some(7)),
            ("[::1]:99", Some(99)),
            ("0.0.0.0:99", Some(99)),
            ("10.0.0.1:28028", None),
            ("localhost.example:1", None),
            ("localhost:0", None),
            ("localhost:70000", None),
            ("localhost", None),
            ("", None),
        ] {
            assert_eq!(loopback_port(address), port, "{address}");
        }
    }

    #[test]
    fn a_process_of_another_network_namespace_is_not_asked() {
        let proc = tempfile::tempdir().unwrap();
        let process = |name: &str, network: &str, environment: &[u8]| {
            let folder = proc.path().join(name);
            std::fs::create_dir_all(folder.join("ns")).unwrap();
            std::os::unix::fs::symlink(network, folder.join("ns/net")).unwrap();
            std::fs::write(folder.join("environ"), environment).unwrap();
        };
        process("self", "net:[1]", b"");
        process("7", "net:[1]", b"A=1\0");
        process("8", "net:[2]", b"A=1\0");
        process("9", "net:[1]", b"NCCL_RAS_ADDR=127.0.0.1:5\0");
        process("10", "net:[1]", b"NCCL_RAS_ADDR=192.168.0.9:5\0");
        let ports = [7, 8, 9, 10, 11].map(|pid| port_of(proc.path(), Tgid(pid)));
        assert_eq!(ports, [Some(PORT), None, Some(5), None, None]);
    }
}
