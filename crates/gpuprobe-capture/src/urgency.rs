//! Being run at once. Processes that wait for us in the kernel share the CPUs with us, and an ordinary process that
//! wakes up may have to let them go on for milliseconds each time.

/// While it lives, the thread that made it is run before every ordinary one. Without the privilege it does nothing.
#[derive(Debug)]
pub struct Urgent(());

impl Urgent {
    /// Begins.
    pub fn begin() -> Self {
        // the lowest of the real-time priorities; children begin as ordinary processes
        schedule(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1);
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
    // SAFETY: the parameters are valid for the call, which is about this thread alone. Refusal changes nothing.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
