//! The limit of open files: on the perf tier a function takes four descriptors, and a process starts with a limit of
//! 1,024.

use std::sync::OnceLock;

/// The default maximum of the Linux kernel (`fs.nr_open`).
const WANTED: libc::rlim_t = 1 << 20;

/// The limit before it was raised.
static BEFORE: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// The soft and hard limit of open files before it was raised, for commands that are started later.
pub fn original_file_limit() -> Option<(u64, u64)> {
    BEFORE.get().copied().flatten()
}

/// Raises the limit of open files as far as possible, once. Commands that are started later inherit it, unless
/// [`original_file_limit`] is set for them.
pub(crate) fn raise_limit() {
    BEFORE.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct is valid for writing during the call.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
            return None;
        }
        let most = limit.rlim_max.max(WANTED);
        // above the hard limit only with CAP_SYS_RESOURCE; up to it, any process may
        if !set(most, most) {
            set(limit.rlim_max, limit.rlim_max);
        }
        Some((limit.rlim_cur, limit.rlim_max))
    });
}

fn set(rlim_cur: libc::rlim_t, rlim_max: libc::rlim_t) -> bool {
    let limit = libc::rlimit { rlim_cur, rlim_max };
    // SAFETY: the struct is valid for reading during the call.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        raise_limit();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct is valid for writing during the call.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        assert_eq!(limit.rlim_cur, limit.rlim_max);
    }
}
