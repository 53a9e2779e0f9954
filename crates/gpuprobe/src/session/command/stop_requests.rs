//! Tracks which processes stopped when they were asked to, so that they can be probed before their code runs.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use gpuprobe_capture::PausedProcess;
use gpuprobe_event::Tgid;

/// How long a process may take to report that it has stopped. After that it is probed while it runs.
const STOPS_WITHIN: Duration = Duration::from_millis(20);

/// The pending requests.
#[derive(Debug, Default)]
pub(crate) struct StopRequests {
    /// The ticket of the request and its time.
    requested: HashMap<Tgid, (u32, Instant)>,
    /// Processes that did not report in time. One that was only waiting for a CPU reports later and is removed again:
    /// its code has not run meanwhile. A killed process reports too.
    late: HashSet<(Tgid, u32)>,
}

impl StopRequests {
    /// A process was asked to stop.
    pub(crate) fn requested(&mut self, pause: PausedProcess, now: Instant) {
        self.requested.insert(pause.tgid, (pause.ticket, now));
    }

    /// A process is paused and can be probed.
    pub(crate) fn paused(&mut self, pause: PausedProcess) {
        self.requested.remove(&pause.tgid);
        if pause.stopped {
            self.late.remove(&(pause.tgid, pause.ticket));
        }
    }

    /// Processes that should have stopped by now. Each is returned once.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<Tgid> {
        let overdue = self.requested.extract_if(|_, (_, since)| now.duration_since(*since) > STOPS_WITHIN);
        let overdue: Vec<_> = overdue.map(|(tgid, (ticket, _))| (tgid, ticket)).collect();
        self.late.extend(&overdue);
        overdue.into_iter().map(|(tgid, _)| tgid).collect()
    }

    /// The number of processes whose code ran before they were probed.
    pub(crate) fn late(&self) -> u64 {
        self.late.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(ticket: u32, stopped: bool) -> PausedProcess {
        PausedProcess { tgid: Tgid(7), stopped, may_attach: stopped, at_exec: true, ticket }
    }

    #[test]
    fn a_process_that_never_stops_is_late() {
        let (mut stops, start) = (StopRequests::default(), Instant::now());
        stops.requested(pause(1, false), start);
        assert_eq!(stops.overdue(start + STOPS_WITHIN), []);
        assert_eq!(stops.overdue(start + 2 * STOPS_WITHIN), [Tgid(7)]);
        assert_eq!((stops.overdue(start + 3 * STOPS_WITHIN), stops.late()), (vec![], 1));
        stops.paused(pause(2, true));
        assert_eq!(stops.late(), 1, "another request for the same process");
    }

    #[test]
    fn a_process_that_stops_is_not_late_whenever_it_reports() {
        let (mut stops, start) = (StopRequests::default(), Instant::now());
        stops.requested(pause(1, false), start);
        stops.paused(pause(1, true));
        assert_eq!((stops.overdue(start + 2 * STOPS_WITHIN), stops.late()), (vec![], 0));
        stops.requested(pause(2, false), start);
        assert_eq!(stops.overdue(start + 2 * STOPS_WITHIN), [Tgid(7)]);
        stops.paused(pause(2, true));
        assert_eq!(stops.late(), 0);
    }
}
