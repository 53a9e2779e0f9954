//! Tracks how far the reader of a ring is behind.

use std::time::Duration;

use crate::host::urgency::Urgent;

/// After so many batches without a pause the reader is behind: with small calls they are a third of the default ring.
const BEHIND: u32 = 8;
/// After so many it will never catch up, and would only take CPU time from the watched programs.
const HOPELESS: u32 = 64;

/// The backlog of a ring. The reader is woken only once, when the ring passes its wake-up mark, so it must not wait
/// before the ring is empty. While it is behind it gets real-time priority, so that the ring does not fill up and
/// lose calls; if it can spool, it does that instead.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    batches: u32,
    urgent: Option<Urgent>,
    can_spool: bool,
}

impl Backlog {
    /// The backlog of a reader that can spool.
    pub(crate) fn of_spooling() -> Self {
        Self { can_spool: true, ..Self::default() }
    }

    /// Notes that a batch was taken, and whether the ring is empty now.
    pub(crate) fn taken(&mut self, is_last: bool) {
        self.batches = if is_last { 0 } else { self.batches.saturating_add(1) };
        if self.can_spool || !(BEHIND..HOPELESS).contains(&self.batches) {
            self.urgent = None;
        } else if self.urgent.is_none() {
            self.urgent = Some(Urgent::begin());
        }
    }

    /// How long the reader may wait for more.
    pub(crate) fn wait_at_most(&self, timeout: Duration) -> Duration {
        if self.batches == 0 { timeout } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_behind_is_urgent_until_it_catches_up_or_cannot() {
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
    fn a_reader_that_can_spool_is_never_urgent() {
        let (mut plain, mut spooling) = (Backlog::default(), Backlog::of_spooling());
        for _ in 0..BEHIND {
            plain.taken(false);
            spooling.taken(false);
        }
        assert!(plain.urgent.is_some() && spooling.urgent.is_none());
    }

    #[test]
    fn the_reader_does_not_wait_before_the_ring_is_empty() {
        let mut backlog = Backlog::default();
        let timeout = Duration::from_millis(50);
        assert_eq!(backlog.wait_at_most(timeout), timeout);
        backlog.taken(false);
        assert_eq!(backlog.wait_at_most(timeout), Duration::ZERO);
        backlog.taken(true);
        assert_eq!(backlog.wait_at_most(timeout), timeout);
    }
}
