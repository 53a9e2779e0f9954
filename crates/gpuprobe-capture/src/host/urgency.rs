//! Being run at once. Processes that wait for us in the kernel share the CPUs with us, and an ordinary process that
//! wakes up may have to let them go on for milliseconds each time.

use std::cell::Cell;
use std::marker::PhantomData;

/// Of the real-time priorities.
const LOWEST: libc::c_int = 1;

thread_local! {
    /// How many of them this thread has, and how it was run before the first.
    static URGENT: Cell<(u32, libc::c_int)> = const { Cell::new((0, libc::SCHED_OTHER)) };
}

/// While it lives, the thread that made it is run before every ordinary one; one may live inside another. Without the
/// privilege it does nothing.
#[derive(Debug)]
pub struct Urgent {
    /// It is of the thread that made it.
    _stays: PhantomData<*const ()>,
}

impl Urgent {
    /// Begins.
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

/// How this thread is run: one of those that need no priority, or as most are.
fn policy() -> libc::c_int {
    // SAFETY: takes a number, and is about this thread alone.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    if [libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy) { policy } else { libc::SCHED_OTHER }
}

fn schedule(policy: libc::c_int, sched_priority: libc::c_int) {
    let parameters = libc::sched_param { sched_priority };
    // Children begin as ordinary processes. Only with a privilege can that be taken back, so it stays.
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameters are valid for the call, which is about this thread alone. Refusal changes nothing.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}

/// Lets this process be urgent without a capability, if it has the one to allow that; whether it may.
pub(crate) fn raise_limit() -> bool {
    let wanted = LOWEST as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is valid for writing during the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_RTPRIO, &raw mut limit) } != 0 {
        return false;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_cur.max(wanted), rlim_max: limit.rlim_max.max(wanted) };
    // SAFETY: the struct is valid for reading during the call.
    unsafe { libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const raised) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_urgent_in_something_urgent_does_not_end_it() {
        // SAFETY: takes a number, and is about this thread alone.
        let is_urgent =
            || unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR;
        let outer = Urgent::begin();
        // without the privilege there is nothing to see
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
