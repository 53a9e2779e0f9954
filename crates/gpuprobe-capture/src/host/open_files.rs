//! The limit of open files: a loaded object takes a descriptor for each map and program, and on the perf tier a function
//! takes four. A process often starts with a limit of 1,024.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The default maximum of the Linux kernel (`fs.nr_open`).
const WANTED: u64 = 1 << 20;

/// The limit before it was raised.
static BEFORE: OnceLock<(u64, u64)> = OnceLock::new();

/// The soft and hard limit of open files before it was raised, for commands that are started later.
pub fn original_file_limit() -> Option<(u64, u64)> {
    BEFORE.get().copied()
}

/// Raises the limit of open files as far as possible, once. Commands that are started later inherit it, unless
/// [`original_file_limit`] is set for them.
pub(crate) fn raise_limit() {
    BEFORE.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        // above the hard limit only with CAP_SYS_RESOURCE; up to it, any process may
        if !set(limit.maximum.map(|maximum| maximum.max(WANTED))) {
            set(limit.maximum);
        }
        let number = |limit: Option<u64>| limit.unwrap_or(libc::RLIM_INFINITY);
        (number(limit.current), number(limit.maximum))
    });
}

/// Sets both limits; `None` is no limit.
fn set(limit: Option<u64>) -> bool {
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        raise_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
