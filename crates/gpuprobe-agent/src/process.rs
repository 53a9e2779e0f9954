//! The agent of this process: started once, and nothing of it in a forked child.

use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::buffers::POOL;
use crate::collection::Collector;
use crate::{agent_thread, at_exit, guard, nvtx};

/// Never freed. A child forgets its parent's, whose lock its parent's thread may have had.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());
static IS_STARTING: AtomicBool = AtomicBool::new(false);
/// Children inherit the handler and what was pinned.
static IS_PREPARED: AtomicBool = AtomicBool::new(false);

const LONGEST_START_MS: u32 = 2000;

pub(crate) struct Agent {
    collector: Mutex<Collector>,
    /// `cuInit` was called, so that CUPTI may be.
    cuda_is_used: AtomicBool,
}

impl Agent {
    pub(crate) fn with_collector<T>(&self, work: impl FnOnce(&mut Collector) -> T) -> T {
        // a panic has turned the agent off already
        work(&mut self.collector.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_cuda_used(&self) {
        self.cuda_is_used.store(true, Ordering::Release);
    }

    pub(crate) fn is_cuda_used(&self) -> bool {
        self.cuda_is_used.load(Ordering::Acquire)
    }
}

/// The agent, which is started if there is none. `None` if it cannot be started, or if another file with an agent is
/// loaded: one is enough.
pub(crate) fn start() -> Option<&'static Agent> {
    for _ in 0..LONGEST_START_MS {
        if let Some(agent) = running() {
            return Some(agent);
        }
        if !IS_STARTING.swap(true, Ordering::AcqRel) {
            let started = running().or_else(start_first);
            IS_STARTING.store(false, Ordering::Release);
            return started;
        }
        // another thread does it right now
        thread::sleep(Duration::from_millis(1));
    }
    None
}

fn running() -> Option<&'static Agent> {
    // SAFETY: null, or an agent that is never freed.
    unsafe { AGENT.load(Ordering::Acquire).as_ref() }
}

fn start_first() -> Option<&'static Agent> {
    if has_thread(agent_thread::NAME) {
        return None;
    }
    if !IS_PREPARED.swap(true, Ordering::AcqRel) {
        guard::silence_panics();
        stay_loaded();
        // SAFETY: the handler only stores numbers, and the library is never unloaded.
        if unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) } != 0 {
            return None;
        }
    }
    let agent: &'static Agent = Box::leak(Box::new(Agent {
        collector: Mutex::new(Collector::new()),
        cuda_is_used: AtomicBool::new(false),
    }));
    let tid = agent_thread::start(agent)?;
    agent.with_collector(|collector| collector.set_thread(tid));
    AGENT.store(ptr::from_ref(agent).cast_mut(), Ordering::Release);
    Some(agent)
}

/// Whether a thread of the process has a name. That finds an agent in another file of any version, and there is none in
/// a forked child.
fn has_thread(name: &CStr) -> bool {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut names = threads.filter_map(|thread| fs::read(thread.path().join("comm")).ok());
    names.any(|found| found.trim_ascii_end() == name.to_bytes())
}

/// The agent's thread and handlers are in the library, so that it must not be unloaded.
fn stay_loaded() {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    let own: fn() = stay_loaded;
    // SAFETY: the pointer is valid during the call, and the name is that of a loaded library. The handle is not closed.
    unsafe {
        if libc::dladdr(own as *const c_void, &raw mut found) != 0 {
            let name: *const c_char = found.dli_fname;
            libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

extern "C" fn forget_in_child() {
    AGENT.store(ptr::null_mut(), Ordering::Release);
    IS_STARTING.store(false, Ordering::Release);
    at_exit::set_awaited(false);
    nvtx::set_recorded(false);
    POOL.forget();
}
