//! Processes that were told to stop so that they can be probed: which of them did, and which had gone on.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use gpuprobe_capture::Hold;
use gpuprobe_event::Tgid;

/// How long a process that was told to stop may take to say that it has, before it is probed as it runs.
const STOPS_WITHIN: Duration = Duration::from_millis(20);

/// Who was told, by the ticket of the hold.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    told: HashMap<Tgid, (u32, Instant)>,
    /// Taken for having gone on. One that was only kept from the CPU says later that it stopped, and is none of these
    /// then: its own code has not run meanwhile. Nor has that of one that was killed, which says so too.
    late: HashSet<(Tgid, u32)>,
}

impl Stops {
    /// A process is told to stop.
    pub(crate) fn tell(&mut self, hold: Hold, now: Instant) {
        self.told.insert(hold.tgid, (hold.ticket, now));
    }

    /// A process waits, and can be probed.
    pub(crate) fn waits(&mut self, hold: Hold) {
        self.told.remove(&hold.tgid);
        if hold.stopped {
            self.late.remove(&(hold.tgid, hold.ticket));
        }
    }

    /// Those that should have stopped by now. They are named once.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<Tgid> {
        let overdue = self.told.extract_if(|_, (_, since)| now.duration_since(*since) > STOPS_WITHIN);
        let overdue: Vec<_> = overdue.map(|(tgid, (ticket, _))| (tgid, ticket)).collect();
        self.late.extend(&overdue);
        overdue.into_iter().map(|(tgid, _)| tgid).collect()
    }

    /// How many had gone on, as far as is known.
    pub(crate) fn late(&self) -> u64 {
        self.late.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(ticket: u32, stopped: bool) -> Hold {
        Hold { tgid: Tgid(7), stopped, may_attach: stopped, at_exec: true, ticket }
    }

    #[test]
    fn who_never_says_that_it_stopped_is_late() {
        let (mut stops, start) = (Stops::default(), Instant::now());
        stops.tell(hold(1, false), start);
        assert_eq!(stops.overdue(start + STOPS_WITHIN), []);
        assert_eq!(stops.overdue(start + 2 * STOPS_WITHIN), [Tgid(7)]);
        assert_eq!((stops.overdue(start + 3 * STOPS_WITHIN), stops.late()), (vec![], 1));
        stops.waits(hold(2, true));
        assert_eq!(stops.late(), 1, "another stop of the same process");
    }

    #[test]
    fn who_stops_is_not_late_however_late_it_says_so() {
        let (mut stops, start) = (Stops::default(), Instant::now());
        stops.tell(hold(1, false), start);
        stops.waits(hold(1, true));
        assert_eq!((stops.overdue(start + 2 * STOPS_WITHIN), stops.late()), (vec![], 0));
        stops.tell(hold(2, false), start);
        assert_eq!(stops.overdue(start + 2 * STOPS_WITHIN), [Tgid(7)]);
        stops.waits(hold(2, true));
        assert_eq!(stops.late(), 0);
    }
}
