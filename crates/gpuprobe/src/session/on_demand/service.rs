//! The daemon's side: passes requests on to the recorder, and knows what it does.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::{Recordings, Snapshot};
use gpuprobe_capture::Tier;
use gpuprobe_event::Tgid;
use gpuprobe_output::units::{bytes, printable};
use gpuprobe_output::{
    RecordOnDemand, RecordRefusal, RecordRequest, RecordingInfo, StoredInfo, StoredRecordings,
};

use super::busiest::Busiest;
use super::directory::recordings;
use super::messages::{Order, Report, send};
use super::order_checks::{Times, check_functions, check_process};
use super::recording_name::RecordingName;
use crate::cli::OnDemandArgs;
use crate::session::probes::helper_commands;
use crate::terminal::notes::note;

/// How long the recorder may take to start.
const START_WITHIN: Duration = Duration::from_secs(20);
/// A request waits this long for its recording to begin, which is shorter than the time in which the endpoint must
/// answer. Attaching takes longer on older Linux kernels; then the answer says that the recording has not begun.
const PATIENCE: Duration = Duration::from_secs(8);
/// At its end, the daemon waits this long for a recording to be completed.
const END_WITHIN: Duration = Duration::from_secs(30);

/// The recorder, which waits for orders.
#[derive(Debug)]
pub(crate) struct RecorderProcess {
    child: Child,
    socket: UnixStream,
    reports: BufReader<UnixStream>,
    stored: Recordings,
}

/// Recordings on demand. When this is dropped, a recording that runs ends.
#[derive(Debug)]
pub(crate) struct OnDemand {
    service: Arc<Service>,
    reader: Option<JoinHandle<()>>,
    recorder: Child,
    busiest: Busiest,
}

#[derive(Debug)]
struct Service {
    host: String,
    directory: PathBuf,
    limit_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// `None` if the recorder has exited.
    recorder: Option<UnixStream>,
    /// The recording that runs.
    current: Option<RecordingInfo>,
    /// Recordings that were ordered.
    ordered: u64,
    /// Why the last recording that was ordered failed.
    failure: Option<String>,
    counts: Recordings,
    times: Times,
    /// The observed processes; `None` for all of the host.
    observed: Option<Vec<Tgid>>,
    busiest: Option<Tgid>,
    /// The daemon ends.
    is_ending: bool,
}

impl RecorderProcess {
    /// Starts the recorder, before privileges are given up that it needs; `None` without a directory.
    pub(crate) fn start(args: &OnDemandArgs, tier: Tier, verbose: bool) -> Result<Option<Self>> {
        let Some(directory) = &args.dir else { return Ok(None) };
        let (socket, theirs) = UnixStream::pair().context("cannot create a socket")?;
        let mut command = helper_commands::recorder();
        command.arg("--dir").arg(directory).arg(format!("--dir-size={}", args.dir_size));
        command.arg(format!("--attach={tier}"));
        if verbose {
            command.arg("--verbose");
        }
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = command.spawn().context("cannot start the process that records")?;
        // with it the other end of the socket, so that the exit of the process can be seen
        drop(command);
        let mut reports = BufReader::new(socket.try_clone().context("cannot share a socket")?);
        let mut stored = Recordings::default();
        socket.set_read_timeout(Some(START_WITHIN)).context("cannot limit a wait")?;
        loop {
            match next(&mut reports) {
                Some(Report::Ready) => break,
                Some(Report::Stored { bytes, deleted }) => {
                    (stored.stored_bytes, stored.deleted) = (bytes, stored.deleted + deleted);
                }
                Some(Report::Failed { reason }) => bail!("--record-dir: {reason}"),
                _ => bail!("--record-dir: the process that records does not start"),
            }
        }
        socket.set_read_timeout(None).context("cannot lift the limit of a wait")?;
        Ok(Some(Self { child, socket, reports, stored }))
    }
}

impl OnDemand {
    /// Starts a thread for what the recorder reports.
    pub(crate) fn start(process: RecorderProcess, args: &OnDemandArgs) -> Result<Self> {
        let RecorderProcess { child, socket, reports, stored } = process;
        let directory = args.dir.clone().unwrap_or_default();
        let state = State {
            recorder: Some(socket),
            current: None,
            ordered: 0,
            failure: None,
            counts: stored,
            times: Times { default: args.time, limit: args.time_limit },
            observed: None,
            busiest: None,
            is_ending: false,
        };
        let service = Arc::new(Service {
            host: fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            directory: std::path::absolute(&directory).unwrap_or(directory),
            limit_bytes: args.dir_size,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let follower = Arc::clone(&service);
        let thread = std::thread::Builder::new().name("recordings".to_owned());
        let reader = thread.spawn(move || follower.follow(reports));
        let reader = Some(reader.context("cannot start the thread that waits for recordings")?);
        Ok(Self { service, reader, recorder: child, busiest: Busiest::new(Instant::now()) })
    }

    /// Where the endpoint asks for recordings.
    pub(crate) fn source(&self) -> Arc<dyn RecordOnDemand> {
        Arc::<Service>::clone(&self.service)
    }

    pub(crate) fn counts(&self) -> Recordings {
        self.service.lock().counts
    }

    /// Applies other times.
    pub(crate) fn set_times(&self, args: &OnDemandArgs) {
        self.service.lock().times = Times { default: args.time, limit: args.time_limit };
    }

    /// Takes over what the probes see now: all calls, and the observed processes if that are not all.
    pub(crate) fn set_seen(&mut self, snapshot: &Snapshot, observed: Option<Vec<Tgid>>) {
        let busiest = self.busiest.of(snapshot, Instant::now());
        let mut state = self.service.lock();
        (state.busiest, state.observed) = (busiest, observed);
    }

    /// Records the process that calls CUDA most. Lines on stderr tell what becomes of it.
    pub(crate) fn record_busiest(&self) {
        match self.service.order(&RecordRequest::default()) {
            Ok(_) => {}
            Err(RecordRefusal::Busy(current)) => {
                note!("gpuprobe: not recorded: another recording is being made: {}", current.path);
            }
            Err(RecordRefusal::Invalid(why) | RecordRefusal::Unknown(why) | RecordRefusal::Failed(why)) => {
                note!("gpuprobe: not recorded: {why}")
            }
        }
    }
}

impl Drop for OnDemand {
    fn drop(&mut self) {
        {
            let mut state = self.service.lock();
            state.is_ending = true;
            if let Some(current) = &state.current {
                note!("gpuprobe: ending the recording {}", current.path);
            }
            // the recorder ends the recording, and then itself; an error means that it has exited
            state.recorder.as_ref().map(|socket| socket.shutdown(Shutdown::Write).ok());
        }
        let ended = self.service.wait_while(END_WITHIN, |state| state.recorder.is_some());
        if ended.recorder.is_some() {
            note!("gpuprobe: the recording is still being completed");
            return;
        }
        drop(ended);
        // both have ended
        self.recorder.wait().ok();
        self.reader.take().map(JoinHandle::join);
    }
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(
        &self,
        limit: Duration,
        mut condition: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Orders a recording. Returns its number and what is known of it.
    fn order(&self, request: &RecordRequest) -> Result<(u64, RecordingInfo), RecordRefusal> {
        check_functions(request)?;
        let mut state = self.lock();
        if state.recorder.is_none() || state.is_ending {
            let why = "the process that records has exited: restart the daemon";
            return Err(RecordRefusal::Failed(why.to_owned()));
        }
        if let Some(current) = &state.current {
            return Err(RecordRefusal::Busy(current.clone()));
        }
        let seconds = state.times.of(request)?;
        let busiest = state.busiest.map(|tgid| tgid.0);
        let Some(pid) = request.pid.or(busiest) else {
            return Err(RecordRefusal::Unknown("no running process has called CUDA".to_owned()));
        };
        let process = check_process(pid, state.observed.as_deref())?;
        let name = RecordingName::new(SystemTime::now(), &self.host, &process, pid);
        let file = name.as_str().to_owned();
        let path = self.directory.join(&file).display().to_string();
        let order = Order { name: file.clone(), pid, seconds, functions: request.functions.clone() };
        let sent = state.recorder.as_mut().map(|recorder| send(recorder, &order));
        if let Some(Err(error)) = sent {
            return Err(RecordRefusal::Failed(format!(
                "the process that records cannot be reached: {error}"
            )));
        }
        let current = RecordingInfo { file, path, pid, process, seconds, has_begun: false };
        (state.current, state.failure) = (Some(current.clone()), None);
        state.ordered += 1;
        Ok((state.ordered, current))
    }

    /// Takes in what the recorder reports, until it exits.
    fn follow(&self, mut reports: BufReader<UnixStream>) {
        while let Some(report) = next(&mut reports) {
            self.take(report);
            self.changed.notify_all();
        }
        let mut state = self.lock();
        state.recorder = None;
        if !state.is_ending {
            note!("gpuprobe: the process that records has exited: restart the daemon to record again");
        }
        if state.current.is_some() {
            state.fail("the process that records has exited".to_owned());
        }
        drop(state);
        self.changed.notify_all();
    }

    fn take(&self, report: Report) {
        let mut state = self.lock();
        match report {
            Report::Ready => {}
            Report::Begun => {
                let Some(current) = &mut state.current else { return };
                current.has_begun = true;
                let RecordingInfo { pid, process, seconds, path, .. } = current;
                let process = printable(process);
                note!("gpuprobe: recording process {pid} ({process}) for {seconds} s: {path}");
            }
            Report::Made { bytes: size, seconds, why } => {
                let Some(current) = state.current.take() else { return };
                state.counts.made += 1;
                let why = if why.is_empty() { why } else { format!(", {why}") };
                note!("gpuprobe: recorded {seconds:.1} s{why}: {} ({})", current.path, bytes(size));
            }
            Report::Failed { reason } => state.fail(reason),
            Report::Stored { bytes, deleted } => {
                state.counts.stored_bytes = bytes;
                state.counts.deleted += deleted;
            }
        }
    }
}

impl State {
    fn fail(&mut self, reason: String) {
        let reason = printable(&reason).into_owned();
        let of = self.current.take().map(|current| format!(" of process {}", current.pid));
        note!("gpuprobe: the recording{} failed: {reason}", of.unwrap_or_default());
        self.counts.failed += 1;
        self.failure = Some(reason);
    }
}

impl RecordOnDemand for Service {
    fn record(&self, request: &RecordRequest) -> Result<RecordingInfo, RecordRefusal> {
        let (number, mut ordered) = self.order(request)?;
        let waits = |state: &State| {
            state.ordered == number && state.current.as_ref().is_some_and(|current| !current.has_begun)
        };
        let state = self.wait_while(PATIENCE, waits);
        // another recording may have been ordered meanwhile; then this one has begun
        if state.ordered == number
            && let Some(why) = &state.failure
        {
            return Err(RecordRefusal::Failed(why.clone()));
        }
        ordered.has_begun = !waits(&state);
        Ok(ordered)
    }

    fn list(&self) -> Result<StoredRecordings, String> {
        let stored = recordings(&self.directory)
            .map_err(|error| format!("cannot read {}: {error}", self.directory.display()))?;
        let info = |recording: super::directory::StoredRecording| StoredInfo {
            file: recording.name.as_str().to_owned(),
            bytes: recording.bytes,
        };
        Ok(StoredRecordings {
            directory: self.directory.display().to_string(),
            limit_bytes: self.limit_bytes,
            current: self.lock().current.clone(),
            recordings: stored.into_iter().map(info).collect(),
        })
    }
}

/// The next report; `None` if there is none.
fn next(reports: &mut BufReader<UnixStream>) -> Option<Report> {
    let mut line = String::new();
    reports.read_line(&mut line).ok().filter(|read| *read > 0)?;
    serde_json::from_str(&line).ok()
}

#[cfg(test)]
mod tests;
