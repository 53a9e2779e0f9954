//! Being run at once. Processes that wait for us in the kernel share the CPUs with us, and an ordinary process that
//! wakes up may have to let them go on for milliseconds each time.

/// Of the real-time priorities.
const LOWEST: libc::c_int = 1;

/// While it lives, the thread that made it is run before every ordinary one. Without the privilege it does nothing.
#[derive(Debug)]
pub struct Urgent(());

impl Urgent {
    /// Begins.
    pub fn begin() -> Self {
        schedule(libc::SCHED_RR, LOWEST);
        Self(())
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        schedule(libc::SCHED_OTHER, 0);
    }
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
