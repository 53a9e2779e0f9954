//! The records of the last moments before the program exits.
//!
//! The handler runs on the thread that exits, before those of CUDA and CUPTI, which were registered earlier. It asks the
//! agent's thread to have CUPTI deliver what it has, and waits for that, but not for ever.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::guard;
use crate::wakeup::{self, Wakeup};

const LONGEST_WAIT: Duration = Duration::from_secs(2);

const RUNNING: u32 = 0;
const EXITING: u32 = 1;
const FLUSHED: u32 = 2;

static PROGRESS: Wakeup = Wakeup::new();
/// Whether a probe waits for records.
static IS_AWAITED: AtomicBool = AtomicBool::new(false);
/// The process that registered the handler. A forked child inherits the registration.
static REGISTERED_BY: AtomicU32 = AtomicU32::new(0);
static IS_REGISTERED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// When the handler is registered. It must run before that of CUPTI, and so be registered after it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    BeforeCupti = 0,
    AfterCupti = 1,
}

pub(crate) fn set_awaited(is_awaited: bool) {
    IS_AWAITED.store(is_awaited, Ordering::Release);
}

/// Registers the handler, at most once before and once after CUPTI is initialized. The one that is registered last runs
/// first, and then the other one has nothing to do.
pub(crate) fn register(when: When) {
    REGISTERED_BY.store(std::process::id(), Ordering::Release);
    let is_registered = IS_REGISTERED.get(when as usize);
    if is_registered.is_some_and(|is_registered| !is_registered.swap(true, Ordering::AcqRel)) {
        // SAFETY: the library is never unloaded. If it fails, the last records are lost.
        unsafe { libc::atexit(flush) };
    }
}

/// Whether the program exits and waits for the last records.
pub(crate) fn is_due() -> bool {
    PROGRESS.number() == EXITING
}

pub(crate) fn is_over() -> bool {
    PROGRESS.number() == FLUSHED
}

pub(crate) fn set_over() {
    PROGRESS.set(FLUSHED);
}

extern "C" fn flush() {
    guard::run((), || {
        let is_own = REGISTERED_BY.load(Ordering::Acquire) == std::process::id();
        if is_own && IS_AWAITED.load(Ordering::Acquire) && PROGRESS.number() == RUNNING {
            PROGRESS.set(EXITING);
            wakeup::AGENT.next();
            PROGRESS.wait(EXITING, LONGEST_WAIT);
        }
    });
}
