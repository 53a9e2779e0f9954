//! The agent's own thread.

use std::ffi::CStr;
use std::os::unix::thread::JoinHandleExt;
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;
use std::{io, ptr};

use crate::process::Agent;
use crate::{at_exit, guard, wakeup};

/// At most fifteen characters.
pub(crate) const NAME: &CStr = c"gpuprobe-agent";
/// CUPTI's functions run on it.
const STACK_BYTES: usize = 1 << 20;
/// How soon a change of the semaphores is noticed.
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// The same while CUDA graphs are recorded as a whole: a profiler that begins now must get their nodes.
const WHOLE_GRAPHS_PERIOD: Duration = Duration::from_millis(5);
/// A thread begins within microseconds.
const LONGEST_START: Duration = Duration::from_secs(1);

/// Starts the thread and returns its number.
pub(crate) fn start(agent: &'static Agent) -> Option<u32> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let started = without_signals(|| {
        thread::Builder::new().stack_size(STACK_BYTES).spawn(move || guard::run((), || run(agent, &sender)))
    });
    let thread = started.ok()?;
    // here and not by the thread, so that a second agent finds it when this function has returned
    // SAFETY: the thread is not detached before the handle is dropped, and the name is short enough.
    unsafe { libc::pthread_setname_np(thread.as_pthread_t(), NAME.as_ptr()) };
    receiver.recv_timeout(LONGEST_START).ok()
}

/// A new thread has the signals blocked that its creator has: those of the program are not for the agent.
fn without_signals<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // SAFETY: a set of signals may have any bits; both are valid during the calls.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = work();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}

fn run(agent: &Agent, started: &SyncSender<u32>) {
    // SAFETY: it has no arguments and cannot fail.
    let tid = unsafe { libc::gettid() };
    if started.send(tid.cast_unsigned()).is_err() {
        return;
    }
    while !guard::is_off() && !at_exit::is_over() {
        let seen = wakeup::AGENT.number();
        let mut period = POLL_PERIOD;
        agent.with_collector(|collector| {
            if at_exit::is_due() {
                collector.finish();
                at_exit::set_over();
            } else {
                collector.step(agent.is_cuda_used());
            }
            if collector.records_whole_graphs() {
                period = WHOLE_GRAPHS_PERIOD;
            }
        });
        wakeup::AGENT.wait(seen, period);
    }
}
