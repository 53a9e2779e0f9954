//! A thread that reads the state of the GPUs from NVML, if it is installed.
//!
//! Calls into NVML may take seconds, for example while a GPU wakes up or falls off the bus. So a separate thread
//! makes them, and nothing waits for it, not even the exit of gpuprobe. Readers get the last values. Another thread does the
//! same with ROCm SMI for AMD's GPUs.

use std::ffi::{OsStr, OsString};
use std::process::ChildStdin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use gpuprobe_event::{GpuReadings, GpuState};
use nvml_wrapper::Nvml as Library;
use nvml_wrapper::error::NvmlError;

use super::gpu_reader::Reader;
use super::helper_message::Message;
use super::nvml_helper::{self, NvmlHelper};
use super::nvml_library::trusted_nvml;
use super::xid_events::Xids;
use crate::rocm_smi::{AmdGpuReader, has_amdgpu};

/// The name by which the dynamic loader finds the library.
pub const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// NVML updates most values no more often than this, and every query costs the driver time.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// How long a reading is valid if no other follows.
const VALID_FOR: Duration = Duration::from_secs(10);
/// How long until the library is tried again: the driver may be loaded later, or unloaded meanwhile.
const RETRY: Duration = Duration::from_secs(30);

/// The versions that NVML reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlVersions {
    /// Of the library.
    pub library: String,
    /// Of the NVIDIA driver.
    pub driver: String,
}

/// Where NVML is loaded.
#[derive(Debug)]
pub enum NvmlLoader {
    /// In this process.
    ThisProcess,
    /// In a helper process that reads it, or why there is none.
    Helper(Result<NvmlHelper, String>),
    /// In a helper process that is started when it is needed: an ELF file.
    Program(&'static [u8]),
}

impl NvmlLoader {
    /// Starts the helper process now, if there is to be one: this process may soon be unable to execute programs.
    pub fn started(self, library: &OsStr, every: Duration, is_restricted: bool) -> Self {
        match self {
            Self::Program(program) => {
                Self::Helper(NvmlHelper::start(program, library, every.max(MIN_INTERVAL), is_restricted))
            }
            loader => loader,
        }
    }
}

/// The thread that reads. It ends after this is dropped, as soon as NVML returns.
#[derive(Debug)]
pub struct Nvml {
    shared: Arc<Mutex<Shared>>,
    /// The input of the helper process, which reads until it is closed.
    intervals: Option<Mutex<ChildStdin>>,
}

/// What the thread and its owner share.
#[derive(Debug, Default)]
struct Shared {
    every: Duration,
    readings: GpuReadings,
    at: Option<Instant>,
    /// AMD's GPUs.
    amd: Vec<GpuState>,
    amd_at: Option<Instant>,
    error_message: Option<String>,
    amd_error: Option<String>,
    refusals: Vec<String>,
}

impl Shared {
    /// What was read last, if it is not too old.
    fn current(&self) -> GpuReadings {
        let valid_for = VALID_FOR.max(self.every.saturating_mul(3));
        let is_fresh = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < valid_for);
        let amd = if is_fresh(self.amd_at) { self.amd.clone() } else { Vec::new() };
        match is_fresh(self.at) {
            true => GpuReadings { amd, ..self.readings.clone() },
            false => GpuReadings { is_up: false, gpus: Vec::new(), amd, xids: self.readings.xids.clone() },
        }
    }
}

impl Nvml {
    /// Starts to read at this interval, but no more often than NVML updates its values.
    pub fn start(loader: NvmlLoader, library: &OsStr, every: Duration) -> io::Result<Self> {
        let mut shared = Shared { every: every.max(MIN_INTERVAL), ..Shared::default() };
        let helper = match loader.started(library, every, false) {
            NvmlLoader::Helper(Ok(helper)) => Some(helper),
            NvmlLoader::Helper(Err(error)) => {
                shared.error_message = Some(without_nvml(&error));
                return Ok(Self { shared: Arc::new(Mutex::new(shared)), intervals: None });
            }
            NvmlLoader::ThisProcess | NvmlLoader::Program(_) => None,
        };
        let shared = Arc::new(Mutex::new(shared));
        let (library, weak) = (library.to_owned(), Arc::downgrade(&shared));
        let mut intervals = None;
        match helper {
            Some(helper) => {
                let (input, messages) = helper.open();
                intervals = input.map(Mutex::new);
                spawn(move || follow_helper(messages, &weak))?;
            }
            None => {
                let amd = Weak::clone(&weak);
                spawn(move || follow(&library, &weak))?;
                spawn(move || follow_amd(&amd))?;
            }
        }
        Ok(Self { shared, intervals })
    }

    /// Changes the interval.
    pub fn read_every(&self, every: Duration) {
        lock(&self.shared).every = every.max(MIN_INTERVAL);
        if let Some(intervals) = &self.intervals {
            let mut intervals = intervals.lock().unwrap_or_else(PoisonError::into_inner);
            nvml_helper::set_interval(&mut intervals, every.max(MIN_INTERVAL));
        }
    }

    /// What is new since the reading of this moment, which becomes that of the last one.
    pub(super) fn news(&self, last: &mut Option<Instant>) -> Option<Message> {
        let mut shared = lock(&self.shared);
        let error = shared.error_message.take().or_else(|| shared.amd_error.take());
        let refusals = std::mem::take(&mut shared.refusals);
        let newest = shared.at.max(shared.amd_at);
        let is_new = newest.is_some() && newest != *last;
        *last = newest;
        let readings = is_new.then(|| shared.current().into());
        (is_new || error.is_some() || !refusals.is_empty()).then_some(Message { readings, error, refusals })
    }

    /// The last reading. If it is too old, only the counts of errors are returned.
    pub fn readings(&self) -> GpuReadings {
        lock(&self.shared).current()
    }

    /// Why nothing can be read. Each reason is returned once.
    pub fn error_message(&self) -> Option<String> {
        let mut shared = lock(&self.shared);
        shared.error_message.take().or_else(|| shared.amd_error.take())
    }

    /// Messages about a library that is not trusted, and about GPUs whose errors are not counted. Each is returned
    /// once.
    pub fn refusals(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared).refusals)
    }
}

/// Starts a thread that receives no signals, so that they all go to the threads that handle them.
fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: the sets are plain data; the first call fills the first one, the second call fills the second with the
    // previous mask. A thread starts with the mask of the thread that starts it.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let started = thread::Builder::new().name("nvml".to_owned()).spawn(run);
    // SAFETY: the set is the previous mask from above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started.map(drop)
}

/// The data is consistent at any moment, so a panic while it was locked does no harm.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes the shared data. Returns whether the owner still exists.
fn update(weak: &Weak<Mutex<Shared>>, change: impl FnOnce(&mut Shared)) -> bool {
    let shared = weak.upgrade();
    if let Some(shared) = &shared {
        change(&mut lock(shared));
    }
    shared.is_some()
}

/// Reads until the owner is dropped.
fn follow(library: &OsStr, weak: &Weak<Mutex<Shared>>) {
    let (mut xids, mut last) = (Xids::default(), None);
    loop {
        let (error_message, is_refused) = match trusted_nvml(library) {
            Err(refusal) => (refusal, true),
            Ok(library) => match read_on(&library, weak, &mut xids) {
                Ok(()) => return,
                Err(error) => (explained(&library, &error), false),
            },
        };
        let is_new = last.as_ref() != Some(&error_message);
        let listens = update(weak, |shared| {
            shared.at = None;
            match (is_new, is_refused) {
                (false, _) => {}
                // shown without being asked for
                (true, true) => shared.refusals.push(error_message.clone()),
                (true, false) => shared.error_message = Some(error_message.clone()),
            }
        });
        if !listens {
            return;
        }
        last = Some(error_message);
        thread::sleep(RETRY);
    }
}

/// Takes what a helper process writes, until it ends or the owner is dropped.
fn follow_helper(messages: impl Iterator<Item = Message>, weak: &Weak<Mutex<Shared>>) {
    for message in messages {
        let listens = update(weak, |shared| {
            if let Some(readings) = message.readings {
                let mut readings = GpuReadings::from(readings);
                shared.amd = std::mem::take(&mut readings.amd);
                shared.amd_at = Some(Instant::now());
                shared.at = readings.is_up.then(Instant::now);
                shared.readings = readings;
            }
            if let Some(error) = message.error {
                shared.at = None;
                shared.error_message = Some(error);
            }
            shared.refusals.extend(message.refusals);
        });
        if !listens {
            return;
        }
    }
}

/// Reads until the library fails as a whole, or the owner is dropped.
fn read_on(library: &OsStr, weak: &Weak<Mutex<Shared>>, xids: &mut Xids) -> Result<(), NvmlError> {
    let nvml = Library::builder().lib_path(library).init()?;
    let mut reader = Reader::new(&nvml)?;
    let events = xids.listen(&nvml, &reader);
    loop {
        let begun = Instant::now();
        let gpus = reader.read(&nvml)?;
        let refusals = xids.refusals();
        update(weak, |shared| {
            shared.readings = GpuReadings { is_up: true, gpus, xids: xids.counts(), amd: Vec::new() };
            shared.at = Some(Instant::now());
            shared.refusals.extend(refusals);
        });
        // errors that come meanwhile are reported with the next reading
        if !until_due(weak, begun, |until| xids.wait(events.as_ref(), &reader, until)) {
            return Ok(());
        }
    }
}

/// Reads AMD's GPUs until the owner is dropped, if the Linux kernel drives any.
fn follow_amd(weak: &Weak<Mutex<Shared>>) {
    let mut last = None;
    loop {
        let error = match has_amdgpu().then(AmdGpuReader::open) {
            Some(Ok(reader)) => return read_amd(&reader, weak),
            Some(Err(error)) => Some(format!("no state of AMD's GPUs: {error}")),
            None => None,
        };
        let is_new = error != last;
        let listens = update(weak, |shared| {
            if is_new {
                shared.amd_error.clone_from(&error);
            }
        });
        if !listens {
            return;
        }
        last = error;
        thread::sleep(RETRY);
    }
}

fn read_amd(reader: &AmdGpuReader, weak: &Weak<Mutex<Shared>>) {
    loop {
        let begun = Instant::now();
        let gpus = reader.read();
        update(weak, |shared| (shared.amd, shared.amd_at) = (gpus, Some(Instant::now())));
        if !until_due(weak, begun, |until| thread::sleep(until.saturating_duration_since(Instant::now()))) {
            return;
        }
    }
}

/// Waits in short steps until the next reading is due, because the interval may change meanwhile; `false` when the
/// owner is dropped.
fn until_due(weak: &Weak<Mutex<Shared>>, begun: Instant, mut wait: impl FnMut(Instant)) -> bool {
    loop {
        let mut left = Duration::ZERO;
        if !update(weak, |shared| left = shared.every.saturating_sub(begun.elapsed())) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        wait(Instant::now() + left.min(MIN_INTERVAL));
    }
}

fn explained(library: &OsStr, error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => without_nvml(&error.to_string()),
        error => format!("NVML ({}) cannot read the GPUs: {error}", library.display()),
    }
}

fn without_nvml(why: &str) -> String {
    format!("no NVML, so the state of the GPUs is not known: {why}")
}

/// The versions of the library and of the driver, or the reason why there is none. Gives up after some seconds.
pub fn nvml_versions(loader: NvmlLoader, library: &OsStr) -> Result<NvmlVersions, String> {
    match loader {
        NvmlLoader::ThisProcess => versions_here(library),
        NvmlLoader::Program(program) => nvml_helper::versions(program, library),
        NvmlLoader::Helper(helper) => Err(helper.err().unwrap_or_default()),
    }
}

fn versions_here(library: &OsStr) -> Result<NvmlVersions, String> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let (sender, receiver) = channel();
    let name: OsString = trusted_nvml(library)?;
    let ask = move || -> Result<NvmlVersions, NvmlError> {
        let nvml = Library::builder().lib_path(&name).init()?;
        Ok(NvmlVersions { library: nvml.sys_nvml_version()?, driver: nvml.sys_driver_version()? })
    };
    let asked = spawn(move || {
        // the receiver is gone if it took too long
        sender.send(ask()).ok();
    });
    asked.map_err(|e| format!("cannot start a thread: {e}"))?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(found) => found.map_err(|error| match error {
            NvmlError::LibloadingError(error) => error.to_string(),
            error => error.to_string(),
        }),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_reading_has_no_gpus_but_keeps_the_error_counts() {
        let xids = vec![gpuprobe_event::gpu_state::XidCount { id: Default::default(), xid: 79, count: 2 }];
        let gpus = vec![GpuState::default()];
        let readings = GpuReadings { is_up: true, gpus: gpus.clone(), xids: xids.clone(), amd: Vec::new() };
        let shared = Shared { readings: readings.clone(), at: Some(Instant::now()), ..Shared::default() };
        let nvml = Nvml { shared: Arc::new(Mutex::new(shared)), intervals: None };
        assert_eq!(nvml.readings(), readings);
        lock(&nvml.shared).at = Instant::now().checked_sub(VALID_FOR);
        let old = GpuReadings { is_up: false, gpus: Vec::new(), xids, amd: Vec::new() };
        assert_eq!(nvml.readings(), old);
        let mut shared = lock(&nvml.shared);
        (shared.amd, shared.amd_at) = (gpus.clone(), Some(Instant::now()));
        drop(shared);
        assert_eq!(nvml.readings(), GpuReadings { amd: gpus, ..old }, "those of AMD are not old");
        lock(&nvml.shared).amd_at = None;
        nvml.read_every(VALID_FOR);
        assert_eq!(nvml.readings(), readings, "a longer interval makes readings valid for longer");
    }

    #[test]
    fn a_waiting_thread_notices_a_shorter_interval_or_the_drop() {
        let nvml = Nvml { shared: Arc::default(), intervals: None };
        nvml.read_every(Duration::from_secs(3600));
        let (weak, begun, mut waits) = (Arc::downgrade(&nvml.shared), Instant::now(), 0);
        let due = until_due(&weak, begun, |until| {
            assert!(until <= Instant::now() + MIN_INTERVAL, "a change is noticed only between waits");
            waits += 1;
            if waits == 3 {
                nvml.read_every(Duration::ZERO);
                thread::sleep(MIN_INTERVAL.saturating_sub(begun.elapsed()));
            }
        });
        assert!(due && waits == 3, "{waits}");
        nvml.read_every(Duration::from_secs(3600));
        let mut nvml = Some(nvml);
        assert!(!until_due(&weak, Instant::now(), |_| drop(nvml.take())));
    }

    #[test]
    fn the_thread_blocks_all_signals_and_ours_does_not_change() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line =
                status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
            u64::from_str_radix(&line, 16).unwrap()
        };
        let (before, (sender, receiver)) = (blocked(), channel());
        spawn(move || sender.send(blocked()).unwrap()).unwrap();
        let ends: u64 =
            [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| 1_u64 << (signal - 1)).iter().sum();
        assert_eq!(receiver.recv().unwrap() & ends, ends);
        assert_eq!(blocked(), before);
    }

    #[test]
    fn a_missing_library_is_reported_once_and_no_gpu_is_up() {
        let nvml =
            Nvml::start(NvmlLoader::ThisProcess, OsStr::new("libnvidia-ml-missing.so.9"), MIN_INTERVAL)
                .unwrap();
        let start = Instant::now();
        let error_message = loop {
            match nvml.error_message() {
                Some(error_message) => break error_message,
                None => assert!(start.elapsed() < Duration::from_secs(60), "no reason was reported"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(
            error_message.starts_with("no NVML") && error_message.contains("libnvidia-ml-missing.so.9"),
            "{error_message}"
        );
        assert_eq!(nvml.error_message(), None);
        assert_eq!(nvml.readings(), GpuReadings::default());
        let why =
            nvml_versions(NvmlLoader::ThisProcess, OsStr::new("libnvidia-ml-missing.so.9")).unwrap_err();
        assert!(why.contains("libnvidia-ml-missing.so.9"), "{why}");
    }
}
