//! `top` of a host with 2,000 processes that have 500 CUDA kernels each: how soon keys are answered, and its memory.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gpuprobe_e2e::process::{PATIENCE, gpuprobe, resident_kilobytes, until};
use nix::pty::{Winsize, openpty};

/// A key is answered within this time, nine times of ten.
const MOST: Duration = Duration::from_millis(100);
const PROCESSES: usize = 2000;
const KERNELS: usize = 500;

/// Answers `/api/snapshot` as a daemon would: with these processes, and a later time in each answer.
fn serve(processes: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) => request.push(byte[0]),
                    _ => break,
                }
            }
            let head = format!("{{\"snapshot\":{{\"unix_seconds\":{},\"processes\":[", 1000 + number);
            let length = head.len() + processes.len() + 3;
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
            // the client may have ended
            write!(stream, "{answer}\r\ncontent-length: {length}\r\n\r\n{head}").ok();
            stream.write_all(processes.as_bytes()).and_then(|()| stream.write_all(b"]}}")).ok();
        }
    });
    address
}

/// Processes as in a snapshot, without the fields that `top` does not read.
fn processes(count: usize, kernels: usize) -> String {
    let mut all = String::new();
    for pid in 0..count {
        let comma = if pid > 0 { "," } else { "" };
        write!(
            all,
            "{comma}{{\"pid\":{},\"instance\":7,\"name\":\"train_{pid}\",\"uid\":0,\"exited_at_ns\":null,\
             \"functions\":[],\"failures\":[],\"memory\":{{\"live\":[{{\"gpu\":{{\"host\":0}},\"kind\":\"device\",\
             \"allocations\":1,\"bytes\":{}}}],\"peak_bytes\":1}},\"gpu_ops\":{{\"graphs\":{{\"launches\":0,\
             \"errors\":0}},\"copies\":[],\"kernels\":[",
            pid + 1,
            pid * 4096
        )
        .unwrap();
        for kernel in 0..kernels {
            let comma = if kernel > 0 { "," } else { "" };
            write!(
                all,
                "{comma}{{\"kernel\":\"kernel_number_{kernel}\",\"streams\":1,\"in_graphs\":0,\"launches\":{kernel},\
                 \"errors\":0,\"total_ns\":9}}"
            )
            .unwrap();
        }
        all.push_str("]}}");
    }
    all
}

/// `top` on a terminal without a shell, whose output arrives with its times.
struct Terminal {
    keys: File,
    output: Receiver<(Instant, Vec<u8>)>,
    child: Child,
}

impl Terminal {
    fn start(url: &str) -> Self {
        let size = Winsize { ws_row: 60, ws_col: 250, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let side = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let mut command = gpuprobe(&["top", "--interval", "500ms", "--connect", url]);
        command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color");
        let child = command.stdin(side(&pty.slave)).stdout(side(&pty.slave)).stderr(side(&pty.slave));
        let child = child.spawn().unwrap();
        let mut screen = File::from(pty.master.try_clone().unwrap());
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            loop {
                match screen.read(&mut bytes) {
                    Ok(length @ 1..) if sender.send((Instant::now(), bytes[..length].to_vec())).is_ok() => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    _ => return,
                }
            }
        });
        Self { keys: File::from(pty.master), output, child }
    }

    /// Presses a key, and returns how long it takes until its output has this text.
    fn answer(&mut self, key: &str, expected: &str) -> Duration {
        let pressed = Instant::now();
        self.keys.write_all(key.as_bytes()).unwrap();
        let mut seen = Vec::new();
        loop {
            let (at, bytes) = self.output.recv_timeout(PATIENCE).unwrap();
            seen.extend(bytes);
            if seen.windows(expected.len()).any(|part| part == expected.as_bytes()) {
                return at - pressed;
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn keys_are_answered_while_a_large_host_is_read() {
    let address = serve(processes(PROCESSES, KERNELS));
    let mut terminal = Terminal::start(&format!("http://{address}"));
    terminal.answer("", "COMMAND");
    // keys with a screen of their own, so that an update is not taken for the answer
    let keys = [("?", "PgUp"), ("x", "COMMAND"), ("\r", "mean call"), ("\x7f", "COMMAND")];
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..12 {
        for (key, expected) in keys {
            times.push(terminal.answer(key, expected));
            // some keys come at any time of an update
            std::thread::sleep(Duration::from_millis(70));
        }
    }
    times.sort_unstable();
    let of = |percent: usize| times[times.len() * percent / 100];
    eprintln!(
        "a key is answered in {:?} (50%), {:?} (90%), {:?} (100%)",
        of(50),
        of(90),
        times[times.len() - 1]
    );
    assert!(of(90) < MOST, "{times:?}");
    terminal.keys.write_all(b"q").unwrap();
    until(PATIENCE, "top ends", || terminal.child.try_wait().unwrap());
}

#[test]
fn memory_stays_flat_over_thousands_of_frames() {
    let address = serve(processes(20, 5));
    let mut command: Command = gpuprobe(&[
        "top",
        "-b",
        "-n",
        "4000",
        "--interval",
        "1ms",
        "--connect",
        &format!("http://{address}"),
    ]);
    let mut top = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = top.stdout.take().unwrap();
    let (mut frames, mut sizes, mut bytes) = (0, Vec::new(), [0; 1 << 16]);
    while let length @ 1.. = output.read(&mut bytes).unwrap() {
        let before = frames / 1000;
        // the heading of a frame
        frames += bytes[..length].windows(7).filter(|part| part == b"COMMAND").count();
        if frames / 1000 > before && frames < 4000 {
            sizes.push(resident_kilobytes(top.id()));
        }
    }
    assert!(top.wait().unwrap().success());
    assert!(sizes.len() == 3 && frames > 3900, "{frames} frames, {sizes:?}");
    assert!(sizes[2] < sizes[0] + 2048, "{sizes:?} kB after each thousand frames");
}
