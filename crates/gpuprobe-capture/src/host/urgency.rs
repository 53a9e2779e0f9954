//! Real-time priority for short moments. Processes that wait for us in the kernel share the CPUs with us, and an
//! ordinary process that wakes up may have to wait for milliseconds each time. The policy is set with libc, because rustix has
//! no call for it.

use std::cell::Cell;
use std::marker::PhantomData;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The lowest real-time priority.
const LOWEST: libc::c_int = 1;

thread_local! {
    /// How many [`Urgent`] this thread has, and its policy before the first.
    static URGENT: Cell<(u32, libc::c_int)> = const { Cell::new((0, libc::SCHED_OTHER)) };
}

/// While it exists, its thread runs before every ordinary one. Several may exist at once. Without the privilege it
/// does nothing.
#[derive(Debug)]
pub struct Urgent {
    /// It belongs to the thread that made it.
    _stays: PhantomData<*const ()>,
}

impl Urgent {
    /// Starts.
    pub fn begin() -> Self {
        URGENT.with(|urgent| match urgent.get() {
            (0, _) => {
                urgent.set((1, policy()));
                schedule(libc::SCHED_RR, LOWEST);
            }
            (many, before) => urgent.set((many + 1, before)),
        });
        Self { _stays: PhantomData }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        URGENT.with(|urgent| {
            let (many, before) = urgent.get();
            urgent.set((many.saturating_sub(1), before));
            if many == 1 {
                schedule(before, 0);
            }
        });
    }
}

/// The policy of this thread, if it is one without a priority; else the ordinary one.
fn policy() -> libc::c_int {
    // SAFETY: takes a number, and concerns only this thread.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    if [libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy) { policy } else { libc::SCHED_OTHER }
}

fn schedule(policy: libc::c_int, sched_priority: libc::c_int) {
    let parameters = libc::sched_param { sched_priority };
    // Children start as ordinary processes. Clearing this flag needs a privilege, so it stays set.
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameters are valid for the call, which concerns only this thread. Refusal changes nothing.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}

/// Raises the limit so that this process can get real-time priority without a capability. Returns whether that
/// worked.
pub(crate) fn raise_limit() -> bool {
    let at_least = |limit: Option<u64>| limit.map(|limit| limit.max(LOWEST as u64));
    let limit = getrlimit(Resource::Rtprio);
    let raised = Rlimit { current: at_least(limit.current), maximum: at_least(limit.maximum) };
    setrlimit(Resource::Rtprio, raised).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_urgent_values_end_with_the_last_one() {
        // SAFETY: takes a number, and concerns only this thread.
        let is_urgent =
            || unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR;
        let outer = Urgent::begin();
        // without the privilege nothing changes
        let can_be = is_urgent();
        drop(Urgent::begin());
        assert_eq!(is_urgent(), can_be);
        let inner = Urgent::begin();
        drop(outer);
        assert_eq!(is_urgent(), can_be);
        drop(inner);
        assert!(!is_urgent());
    }
}
