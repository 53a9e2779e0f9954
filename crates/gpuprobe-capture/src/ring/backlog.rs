//! How far the reader of a ring is behind.

use std::time::Duration;

use crate::host::urgency::Urgent;

/// Batches without a pause after which a reader is behind: of small calls, a third of the default ring.
const BEHIND: u32 = 8;
/// And after which it will never catch up: then it would only take the CPU from those that it watches.
const HOPELESS: u32 = 64;

/// What waits for a reader of a ring. It is woken once, as a mark is passed, so it must not rest before the ring is empty; and
/// while much is waiting it is run at once, before the ring is full and calls are lost.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    batches: u32,
    urgent: Option<Urgent>,
}

impl Backlog {
    /// A batch was taken; whether it was the last for now.
    pub(crate) fn taken(&mut self, is_last: bool) {
        self.batches = if is_last { 0 } else { self.batches.saturating_add(1) };
        if !(BEHIND..HOPELESS).contains(&self.batches) {
            self.urgent = None;
        } else if self.urgent.is_none() {
            self.urgent = Some(Urgent::begin());
        }
    }

    /// How long to wait for more.
    pub(crate) fn wait_at_most(&self, timeout: Duration) -> Duration {
        if self.batches == 0 { timeout } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_behind_is_urgent_until_it_has_caught_up_or_cannot() {
        let mut backlog = Backlog::default();
        let mut urgent = |batches: u32, is_last| {
            (0..batches).for_each(|_| backlog.taken(is_last));
            backlog.urgent.is_some()
        };
        assert!(!urgent(BEHIND - 1, false));
        assert!(urgent(1, false));
        assert!(!urgent(1, true));
        assert!(!urgent(BEHIND - 1, false));
        assert!(urgent(HOPELESS - BEHIND, false));
        assert!(!urgent(1, false));
        assert!(!urgent(10, false));
        assert!(!urgent(1, true));
        assert!(urgent(BEHIND, false));
    }

    #[test]
    fn nobody_rests_before_the_ring_is_empty() {
        let mut backlog = Backlog::default();
        let timeout = Duration::from_millis(50);
        assert_eq!(backlog.wait_at_most(timeout), timeout);
        backlog.taken(false);
        assert_eq!(backlog.wait_at_most(timeout), Duration::ZERO);
        backlog.taken(true);
        assert_eq!(backlog.wait_at_most(timeout), timeout);
    }
}
