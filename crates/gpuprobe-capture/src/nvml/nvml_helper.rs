//! Reads NVML in another process. A statically linked program cannot load libraries, so it carries a small dynamically
//! linked one (`gpuprobe-nvml`), starts it from memory, and reads what it writes.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use flate2::read::GzDecoder;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};

use super::helper_message::Message;
use super::nvml_thread::{Nvml, NvmlLoader, NvmlVersions, nvml_versions};
use crate::host::privileges::drop_privileges;
use crate::host::seccomp::install_seccomp_filter;

/// How often the helper looks for a new reading.
const STEP: Duration = Duration::from_millis(100);
/// The helper itself waits for a library for five seconds.
const PATIENCE: Duration = Duration::from_secs(8);
/// What is kept of an error message of the dynamic loader.
const MOST_ERROR_BYTES: u64 = 4096;

/// A running helper that reads NVML. It ends when this is dropped.
#[derive(Debug)]
pub struct NvmlHelper(Child);

impl NvmlHelper {
    /// Starts the program, which is a compressed ELF file in memory. A restricted helper gives up the privileges and system calls
    /// that the daemon does.
    pub(super) fn start(
        program: &[u8],
        library: &OsStr,
        every: Duration,
        is_restricted: bool,
    ) -> Result<Self, String> {
        let mode = if is_restricted { "restricted" } else { "read" };
        spawn(program, &[mode.into(), library.to_owned(), every.as_millis().to_string().into()]).map(Self)
    }

    /// The end that takes intervals, and the messages that come; the iterator ends with the reason why there is no more.
    pub(super) fn open(mut self) -> (Option<ChildStdin>, impl Iterator<Item = Message>) {
        let intervals = self.0.stdin.take();
        let mut lines = self.0.stdout.take().map(|pipe| BufReader::new(pipe).lines());
        let mut child = Some(self.0);
        let messages = std::iter::from_fn(move || {
            let line = lines.as_mut().and_then(Iterator::next).and_then(Result::ok);
            match line.and_then(|line| serde_json::from_str(&line).ok()) {
                Some(message) => Some(message),
                None => child.take().map(|child| Message { error: Some(ended(child)), ..Message::default() }),
            }
        });
        (intervals, messages)
    }
}

/// Sets another interval; a helper that has ended does not care.
pub(super) fn set_interval(intervals: &mut ChildStdin, every: Duration) {
    writeln!(intervals, "{}", every.as_millis()).ok();
}

/// The versions, by a helper that only asks for them.
pub(super) fn versions(program: &[u8], library: &OsStr) -> Result<NvmlVersions, String> {
    let mut child = spawn(program, &["versions".into(), library.to_owned()])?;
    let (sender, receiver) = channel();
    let ask = move || {
        let mut line = String::new();
        let pipe = child.stdout.take();
        let read = pipe.map(|pipe| BufReader::new(pipe).read_line(&mut line));
        let answer = match (read, serde_json::from_str::<Value>(&line)) {
            (Some(Ok(1..)), Ok(answer)) => answer,
            _ => json!({"error": ended(child)}),
        };
        // the receiver is gone if it took too long
        sender.send(answer).ok();
    };
    thread::Builder::new().spawn(ask).map_err(|e| format!("cannot start a thread: {e}"))?;
    let answer = receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| json!({"error": "no answer"}));
    let text = |key: &str| answer[key].as_str().map(str::to_owned);
    match (text("library"), text("driver")) {
        (Some(library), Some(driver)) => Ok(NvmlVersions { library, driver }),
        _ => Err(text("error").unwrap_or_default()),
    }
}

fn spawn(program: &[u8], arguments: &[OsString]) -> Result<Child, String> {
    let started = || -> io::Result<Child> {
        let file = memfd_create("gpuprobe-nvml", MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(file);
        io::copy(&mut GzDecoder::new(program), &mut file)?;
        // the child has the descriptor until it executes the file
        Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    started().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "this gpuprobe is statically linked, so a helper process loads NVML, and it needs the \
                                    C library of NVIDIA's driver (glibc), which is not installed here"
                .to_owned()
        }
        _ => format!("the helper process that loads NVML did not start: {error}"),
    })
}

/// Why a helper ended, in its own words or those of the dynamic loader.
fn ended(mut child: Child) -> String {
    // it ends when it has no input, unless NVML hangs
    drop(child.stdin.take());
    let mut words = Vec::new();
    if let Some(pipe) = child.stderr.take() {
        pipe.take(MOST_ERROR_BYTES).read_to_end(&mut words).ok();
    }
    let words = String::from_utf8_lossy(&words);
    let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("without a message");
    let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    format!("the helper process that loads NVML ended ({status}): {last}")
}

/// The helper: writes what it reads until its input ends. `None` if the arguments are not understood.
pub fn serve_nvml(arguments: &[OsString]) -> Option<io::Result<()>> {
    match arguments {
        [mode, library] if mode == "versions" => Some(write_line(&versions_as_json(library))),
        [mode, library, every] if mode == "read" || mode == "restricted" => {
            let every = Duration::from_millis(every.to_str()?.parse().ok()?);
            Some(serve(library, every, mode == "restricted"))
        }
        _ => None,
    }
}

fn versions_as_json(library: &OsStr) -> Value {
    match nvml_versions(NvmlLoader::ThisProcess, library) {
        Ok(versions) => json!({"library": versions.library, "driver": versions.driver}),
        Err(error) => json!({"error": error}),
    }
}

fn serve(library: &OsStr, every: Duration, is_restricted: bool) -> io::Result<()> {
    // what NVML itself writes there would fill the pipe in which gpuprobe looks for the last words
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        rustix::stdio::dup2_stderr(null)?;
    }
    if is_restricted {
        drop_privileges(false)?;
        install_seccomp_filter()?;
    }
    let nvml = std::sync::Arc::new(Nvml::start(NvmlLoader::ThisProcess, library, every)?);
    let changed = std::sync::Arc::clone(&nvml);
    thread::Builder::new().spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if let Ok(every) = line.parse() {
                changed.read_every(Duration::from_millis(every));
            }
        }
        // gpuprobe has ended; NVML may hang, so nothing waits for it
        std::process::exit(0);
    })?;
    let mut last = None;
    loop {
        if let Some(message) = nvml.news(&mut last) {
            write_line(&serde_json::to_value(&message)?)?;
        }
        thread::sleep(STEP);
    }
}

fn write_line(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}
