//! How it stands with the host's GPUs, by the driver's management library, which is loaded if it is there.
//!
//! Calls of it may take seconds, as while a GPU wakes up or falls off the bus. So a thread of its own makes them all, and
//! nobody ever waits for it, not even at the end of gpuprobe: whoever asks gets what was last read.

use std::ffi::{OsStr, OsString};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use gpuprobe_event::GpuReadings;
use nvml_wrapper::Nvml as Library;
use nvml_wrapper::error::NvmlError;

use super::gpu_reader::Reader;
use super::nvml_library::trusted_nvml;
use super::xid_events::Xids;

/// What the library is called; the dynamic loader finds it.
pub const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// NVML renews most figures no more often than this, and asking takes a part of the driver's time.
const SHORTEST: Duration = Duration::from_secs(1);
/// How long a reading is believed where the next one does not come. After that it says nothing of how things stand.
const BELIEVED: Duration = Duration::from_secs(10);
/// How long until the library is tried again: a driver may be loaded after us, and taken out under us.
const RETRY: Duration = Duration::from_secs(30);

/// What the library says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlVersions {
    /// Of the library.
    pub library: String,
    /// Of the driver.
    pub driver: String,
}

/// The thread that reads. It ends, as soon as the library lets it, when this goes.
#[derive(Debug)]
pub struct Nvml {
    shared: Arc<Mutex<Shared>>,
}

/// What the thread has told so far, and what it was told.
#[derive(Debug, Default)]
struct Shared {
    every: Duration,
    readings: GpuReadings,
    at: Option<Instant>,
    trouble: Option<String>,
    refusals: Vec<String>,
}

impl Nvml {
    /// Begins to read every so often, but not faster than NVML has anything new.
    pub fn start(library: &OsStr, every: Duration) -> io::Result<Self> {
        let shared = Shared { every: every.max(SHORTEST), ..Shared::default() };
        let shared = Arc::new(Mutex::new(shared));
        let (library, weak) = (library.to_owned(), Arc::downgrade(&shared));
        spawn(move || follow(&library, &weak))?;
        Ok(Self { shared })
    }

    /// Reads that often from now on.
    pub fn read_every(&self, every: Duration) {
        lock(&self.shared).every = every.max(SHORTEST);
    }

    /// What was read last. Where that is too long ago nothing is known of the GPUs; errors stay counted.
    pub fn readings(&self) -> GpuReadings {
        let shared = lock(&self.shared);
        let believed = BELIEVED.max(shared.every.saturating_mul(3));
        let is_fresh = shared.at.is_some_and(|at| at.elapsed() < believed);
        match is_fresh {
            true => shared.readings.clone(),
            false => GpuReadings { is_up: false, gpus: Vec::new(), xids: shared.readings.xids.clone() },
        }
    }

    /// Why nothing can be read, once for each reason.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.shared).trouble.take()
    }

    /// That the library is not trusted, and the GPUs whose errors cannot be heard of while those of others are, each once.
    pub fn refusals(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared).refusals)
    }
}

/// Starts a thread that no signal meant for us goes to, whenever we begin to hold them back ourselves.
fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: the sets are plain data, the first filled in by the call that is made for it, the second by that which tells
    // what was set before; a thread begins with the mask of the one that starts it.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let started = thread::Builder::new().name("nvml".to_owned()).spawn(run);
    // SAFETY: the set is what the call above has told.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started.map(drop)
}

/// What is kept is whole at any moment, whoever panicked.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells something, if somebody still listens.
fn update(weak: &Weak<Mutex<Shared>>, change: impl FnOnce(&mut Shared)) -> bool {
    let shared = weak.upgrade();
    if let Some(shared) = &shared {
        change(&mut lock(shared));
    }
    shared.is_some()
}

/// Reads until nobody listens any more.
fn follow(library: &OsStr, weak: &Weak<Mutex<Shared>>) {
    let (mut xids, mut last) = (Xids::default(), None);
    loop {
        let (trouble, is_refused) = match trusted_nvml(library) {
            Err(refusal) => (refusal, true),
            Ok(library) => match read_on(&library, weak, &mut xids) {
                Ok(()) => return,
                Err(error) => (explained(&library, &error), false),
            },
        };
        let is_new = last.as_ref() != Some(&trouble);
        let listens = update(weak, |shared| {
            shared.at = None;
            match (is_new, is_refused) {
                (false, _) => {}
                // nobody has to ask for that
                (true, true) => shared.refusals.push(trouble.clone()),
                (true, false) => shared.trouble = Some(trouble.clone()),
            }
        });
        if !listens {
            return;
        }
        last = Some(trouble);
        thread::sleep(RETRY);
    }
}

/// Reads until the library fails as a whole, or nobody listens.
fn read_on(library: &OsStr, weak: &Weak<Mutex<Shared>>, xids: &mut Xids) -> Result<(), NvmlError> {
    let nvml = Library::builder().lib_path(library).init()?;
    let mut reader = Reader::new(&nvml)?;
    let events = xids.listen(&nvml, &reader);
    loop {
        let begun = Instant::now();
        let gpus = reader.read(&nvml)?;
        let refusals = xids.refusals();
        update(weak, |shared| {
            shared.readings = GpuReadings { is_up: true, gpus, xids: xids.counts() };
            shared.at = Some(Instant::now());
            shared.refusals.extend(refusals);
        });
        // errors that come meanwhile are told with the next reading
        if !until_due(weak, begun, |until| xids.wait(events.as_ref(), &reader, until)) {
            return Ok(());
        }
    }
}

/// Waits, a part at a time, until the next reading is due, which may change meanwhile; `false` when nobody listens any more.
fn until_due(weak: &Weak<Mutex<Shared>>, begun: Instant, mut wait: impl FnMut(Instant)) -> bool {
    loop {
        let mut left = Duration::ZERO;
        if !update(weak, |shared| left = shared.every.saturating_sub(begun.elapsed())) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        wait(Instant::now() + left.min(SHORTEST));
    }
}

fn explained(library: &OsStr, error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => {
            format!("no NVML, so nothing is known of GPUs beyond what processes do: {error}")
        }
        error => format!("NVML ({}) tells nothing of GPUs: {error}", library.display()),
    }
}

/// The versions of the library and of the driver below it, or why there is none. It is given up after some seconds.
pub fn nvml_versions(library: &OsStr) -> Result<NvmlVersions, String> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let (sender, receiver) = channel();
    let name: OsString = trusted_nvml(library)?;
    let ask = move || -> Result<NvmlVersions, NvmlError> {
        let nvml = Library::builder().lib_path(&name).init()?;
        Ok(NvmlVersions { library: nvml.sys_nvml_version()?, driver: nvml.sys_driver_version()? })
    };
    let asked = spawn(move || {
        // nobody listens any more where it took too long
        sender.send(ask()).ok();
    });
    asked.map_err(|e| format!("cannot start a thread: {e}"))?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(found) => found.map_err(|error| match error {
            NvmlError::LibloadingError(error) => error.to_string(),
            error => error.to_string(),
        }),
        Err(_) => Err(format!("it does not answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_too_long_ago_says_nothing_of_gpus_and_errors_stay_counted() {
        let xids = vec![gpuprobe_event::gpu_state::XidCount { id: Default::default(), xid: 79, count: 2 }];
        let readings = GpuReadings { is_up: true, gpus: vec![Default::default()], xids: xids.clone() };
        let shared = Shared { readings: readings.clone(), at: Some(Instant::now()), ..Shared::default() };
        let nvml = Nvml { shared: Arc::new(Mutex::new(shared)) };
        assert_eq!(nvml.readings(), readings);
        lock(&nvml.shared).at = Instant::now().checked_sub(BELIEVED);
        assert_eq!(nvml.readings(), GpuReadings { is_up: false, gpus: Vec::new(), xids });
        nvml.read_every(BELIEVED);
        assert_eq!(nvml.readings(), readings, "where it is read seldom it is believed longer");
    }

    #[test]
    fn a_thread_that_waits_to_read_hears_that_it_shall_read_sooner_or_end() {
        let nvml = Nvml { shared: Arc::default() };
        nvml.read_every(Duration::from_secs(3600));
        let (weak, begun, mut waits) = (Arc::downgrade(&nvml.shared), Instant::now(), 0);
        let due = until_due(&weak, begun, |until| {
            assert!(until <= Instant::now() + SHORTEST, "nothing is heard while it waits");
            waits += 1;
            if waits == 3 {
                nvml.read_every(Duration::ZERO);
                thread::sleep(SHORTEST.saturating_sub(begun.elapsed()));
            }
        });
        assert!(due && waits == 3, "{waits}");
        nvml.read_every(Duration::from_secs(3600));
        let mut nvml = Some(nvml);
        assert!(!until_due(&weak, Instant::now(), |_| drop(nvml.take())));
    }

    #[test]
    fn the_thread_is_hit_by_no_signal_and_ours_are_as_before() {
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
    fn a_library_that_is_not_there_is_told_once_and_nothing_is_up() {
        let nvml = Nvml::start(OsStr::new("libnvidia-ml-of-nobody.so.9"), SHORTEST).unwrap();
        let start = Instant::now();
        let trouble = loop {
            match nvml.trouble() {
                Some(trouble) => break trouble,
                None => assert!(start.elapsed() < Duration::from_secs(60), "it says nothing"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(
            trouble.starts_with("no NVML") && trouble.contains("libnvidia-ml-of-nobody.so.9"),
            "{trouble}"
        );
        assert_eq!(nvml.trouble(), None);
        assert_eq!(nvml.readings(), GpuReadings::default());
        let why = nvml_versions(OsStr::new("libnvidia-ml-of-nobody.so.9")).unwrap_err();
        assert!(why.contains("libnvidia-ml-of-nobody.so.9"), "{why}");
    }
}
