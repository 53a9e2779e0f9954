//! Reads hosts, each in a thread of its own, so that neither a slow host nor a large reading delays keys or other hosts.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::session::probes::probe_budget::MOST_LATE;
use anyhow::{Context, Result, bail};
use gpuprobe_analysis::view::{LiveView, Reading, View};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Readings in the history of a GPU.
const POINTS: usize = 60;
/// Reading may take at most one of so many parts of the time, however short the interval is.
const ONE_OF: u32 = 2;

/// Where the readings of one host come from.
pub(super) trait HostSource {
    /// Whether the program must wait for its end, because it has probes to remove. A daemon may take long to answer.
    const HAS_PROBES: bool;

    /// Reads the host. A host that does not answer is no error: it may answer later.
    fn read(&mut self) -> Result<Answer>;

    /// Whether a reading has whole figures now. In the middle of a sampled stratum it has not.
    fn is_readable(&self) -> bool;

    /// Waits at most this long, or until there is something to read from the descriptor.
    fn wait(&mut self, stop: BorrowedFd<'_>, most: Duration) -> Result<()>;
}

/// A reading, or why there is none.
pub(super) type Answer = Result<Reading, String>;

/// What the screens show of one host.
pub(super) struct HostFrame {
    pub(super) live: LiveView,
    pub(super) view: View,
}

/// What a thread has read.
#[derive(Default)]
struct State {
    frame: Option<Arc<HostFrame>>,
    problem: Option<String>,
    /// How often the host was read.
    reads: u64,
    /// Frames that are not shown any more. The thread frees them: a large one takes longer than a key may.
    retired: Vec<Arc<HostFrame>>,
    /// The result of the thread, if it has ended.
    ended: Option<Result<()>>,
}

/// Reads one host.
pub(super) struct HostReader {
    state: Arc<Mutex<State>>,
    /// Dropping it ends the thread.
    stop: Option<PipeWriter>,
    /// If its end is waited for.
    thread: Option<JoinHandle<()>>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostReader {
    /// Opens a source and reads it at this interval. Returns when it is open.
    fn start<S: HostSource>(
        host: usize,
        interval: Duration,
        news: News,
        open: impl FnOnce() -> Result<S> + Send + 'static,
    ) -> Result<Self> {
        let state = Arc::<Mutex<State>>::default();
        let (stopped, stop) = io::pipe().context("cannot create a pipe")?;
        let (is_open, opened) = sync_channel(1);
        let end = ThreadEnd { state: Arc::clone(&state), news };
        let read = move || match open() {
            Ok(mut source) => {
                is_open.send(Ok(())).ok();
                let result =
                    read_until_stopped(&mut source, LiveView::new(host, POINTS), &end, &stopped, interval);
                locked(&end.state).ended = Some(result);
            }
            Err(error) => drop(is_open.send(Err(error))),
        };
        let thread = Builder::new().name("reader".to_owned()).spawn(read).context("cannot start a thread")?;
        opened.recv().context("the thread that reads the host has ended")??;
        Ok(Self { state, stop: Some(stop), thread: S::HAS_PROBES.then_some(thread) })
    }
}

impl Drop for HostReader {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Reports that something was read, or that the thread has ended.
#[derive(Clone)]
struct News(Arc<UnixStream>);

impl News {
    fn report(&self) {
        // if it is full, there is a report already
        (&*self.0).write_all(&[0]).ok();
    }
}

/// Reports the end of the thread, also after a panic.
struct ThreadEnd {
    state: Arc<Mutex<State>>,
    news: News,
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        locked(&self.state).ended.get_or_insert(Ok(()));
        self.news.report();
    }
}

fn read_until_stopped(
    source: &mut impl HostSource,
    mut view: LiveView,
    to: &ThreadEnd,
    stopped: &PipeReader,
    interval: Duration,
) -> Result<()> {
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        if now >= due && (source.is_readable() || now >= due + MOST_LATE) {
            let retired = std::mem::take(&mut locked(&to.state).retired);
            drop(retired);
            let frame = source.read()?.map(|reading| {
                view.take(reading);
                Arc::new(HostFrame { view: view.view(), live: view.clone() })
            });
            publish(&to.state, frame);
            to.news.report();
            due = now + interval.max(now.elapsed().saturating_mul(ONE_OF));
        }
        let now = Instant::now();
        let next = if now < due { due } else { due + MOST_LATE };
        source.wait(stopped.as_fd(), next.saturating_duration_since(now))?;
        if is_closed(stopped)? {
            return Ok(());
        }
    }
}

fn publish(state: &Mutex<State>, frame: Result<Arc<HostFrame>, String>) {
    let mut state = locked(state);
    state.reads += 1;
    state.problem = frame.as_ref().err().cloned();
    if let Ok(frame) = frame {
        let before = state.frame.replace(frame);
        state.retired.extend(before);
    }
}

/// The reading end of a pipe: closed when the writing end is.
fn is_closed(pipe: &PipeReader) -> Result<bool> {
    Ok(poll_for(&[pipe.as_fd()], Some(Duration::ZERO))? > 0)
}

/// Waits until there is something to read from one of the descriptors. Returns how many of them have.
pub(super) fn poll_for(fds: &[BorrowedFd<'_>], most: Option<Duration>) -> Result<i32> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // rounded up: less than a millisecond is not no time
    let most = most.map(|most| most.saturating_add(Duration::from_micros(999)));
    let most = most.map_or(PollTimeout::NONE, |most| PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX));
    match poll(&mut fds, most) {
        Ok(ready) => Ok(ready),
        Err(Errno::EINTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// All hosts that are shown, and their newest frames.
pub(super) struct Hosts {
    /// Empty if it is only this host.
    names: Vec<String>,
    readers: Vec<HostReader>,
    /// Readable when there is something new.
    news: UnixStream,
    reports: News,
}

impl Hosts {
    pub(super) fn none() -> Result<Self> {
        let (news, reports) = UnixStream::pair().context("cannot create a socket")?;
        news.set_nonblocking(true).and_then(|()| reports.set_nonblocking(true))?;
        Ok(Self { names: Vec::new(), readers: Vec::new(), news, reports: News(Arc::new(reports)) })
    }

    /// Reads one more host. Hosts have names if they are read from daemons.
    pub(super) fn add<S: HostSource>(
        &mut self,
        name: Option<String>,
        interval: Duration,
        open: impl FnOnce() -> Result<S> + Send + 'static,
    ) -> Result<()> {
        self.readers.push(HostReader::start(self.readers.len(), interval, self.reports.clone(), open)?);
        self.names.extend(name);
        Ok(())
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) fn count(&self) -> usize {
        self.readers.len()
    }

    /// Waits until a host was read, for one of these descriptors, or at most this long.
    pub(super) fn wait(&mut self, others: &[BorrowedFd<'_>], most: Option<Duration>) -> Result<()> {
        let fds: Vec<_> = others.iter().copied().chain([self.news.as_fd()]).collect();
        poll_for(&fds, most)?;
        while matches!(self.news.read(&mut [0; 64]), Ok(1..)) {}
        // a thread of this host fails if its probes cannot be read
        for reader in &self.readers {
            if let Some(result) = locked(&reader.state).ended.take() {
                result?;
                bail!("the thread that reads the host has ended");
            }
        }
        Ok(())
    }

    /// How often hosts were read.
    pub(super) fn reads(&self) -> u64 {
        self.readers.iter().map(|reader| locked(&reader.state).reads).sum()
    }

    /// Replaces the frames by the newest ones.
    pub(super) fn update(&self, frames: &mut [Option<Arc<HostFrame>>]) {
        for (reader, shown) in self.readers.iter().zip(frames) {
            let mut state = locked(&reader.state);
            let newest = state.frame.clone();
            let before = std::mem::replace(shown, newest);
            state.retired.extend(before);
        }
    }

    /// Whether each host has rates, or does not answer.
    pub(super) fn all_have_rates(&self) -> bool {
        self.readers.iter().all(|reader| {
            let state = locked(&reader.state);
            state.problem.is_some() || state.frame.as_ref().is_some_and(|frame| frame.live.has_rates())
        })
    }

    /// Whether each host was read.
    pub(super) fn all_were_read(&self) -> bool {
        self.readers.iter().all(|reader| locked(&reader.state).reads > 0)
    }

    /// Why there are no new figures of some hosts.
    pub(super) fn problem(&self) -> Option<String> {
        let problems: Vec<_> =
            self.readers.iter().filter_map(|reader| locked(&reader.state).problem.clone()).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}
