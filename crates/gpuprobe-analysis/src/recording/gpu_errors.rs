//! GPU errors (XIDs), each with the calls that failed before and after it.

use std::collections::VecDeque;

use gpuprobe_event::{Call, Name, Tgid, XidEvent};
use serde::Serialize;

/// Errors that are stored; further ones are only counted.
const MOST_ERRORS: usize = 64;
/// Failed calls stored with each error, before it and after it.
const MOST_CALLS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedCall {
    /// When it returned, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    pub tgid: Tgid,
    pub function: Name,
    pub error: Name,
}

/// A GPU error and the calls that failed around it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuError {
    pub event: XidEvent,
    /// The last calls that failed before it.
    pub before: Vec<FailedCall>,
    /// The first calls that failed after it, most often because of it.
    pub after: Vec<FailedCall>,
}

/// Collects the GPU errors of a recording in bounded memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuErrorLog {
    errors: Vec<GpuError>,
    others: u64,
    failed: VecDeque<FailedCall>,
}

impl GpuErrorLog {
    pub(crate) fn xid(&mut self, event: &XidEvent) {
        if self.errors.len() >= MOST_ERRORS {
            self.others += 1;
            return;
        }
        let concerns = |call: &&FailedCall| concerns(event, call.tgid);
        let before = self.failed.iter().filter(concerns).cloned().collect();
        self.errors.push(GpuError { event: event.clone(), before, after: Vec::new() });
    }

    pub(crate) fn call(&mut self, call: &Call) {
        let Some(error) = call.error.clone().filter(|_| call.parent.is_none()) else { return };
        let at_ns = call.start_ns.saturating_add(call.duration_ns().unwrap_or(0));
        let failed = FailedCall { at_ns, tgid: call.tgid, function: call.name.clone(), error };
        for known in &mut self.errors {
            if known.after.len() < MOST_CALLS && concerns(&known.event, call.tgid) {
                known.after.push(failed.clone());
            }
        }
        if self.failed.len() >= MOST_CALLS {
            self.failed.pop_front();
        }
        self.failed.push_back(failed);
    }

    /// The stored errors, and the number of further ones.
    pub(crate) fn report(&self) -> (Vec<GpuError>, u64) {
        (self.errors.clone(), self.others)
    }
}

/// Whether an error may concern a process. If the error names no process, it may concern any.
fn concerns(event: &XidEvent, tgid: Tgid) -> bool {
    event.processes.is_empty() || event.processes.iter().any(|process| process.tgid == tgid)
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Evidence, Outcome, XidProcess};

    use super::*;
    use crate::samples;

    fn xid(at_ns: u64, pids: &[u32]) -> XidEvent {
        let process =
            |pid: &u32| XidProcess { tgid: Tgid(*pid), process: "p".into(), evidence: Evidence::Opened };
        XidEvent {
            id: at_ns,
            at_ns,
            number: 31,
            gpu: "0000:0f:00.0".into(),
            message: "pid=7, name=p".into(),
            processes: pids.iter().map(process).collect(),
        }
    }

    fn failed(at_ns: u64, tgid: u32) -> Call {
        let mut failed = samples::call(Api::Runtime, "cudaFree", 700);
        failed.start_ns = at_ns;
        failed.outcome = Outcome::Returned { value: 700, duration_ns: 0 };
        (failed.tgid, failed.error) = (Tgid(tgid), Some(Name::Borrowed("cudaErrorIllegalAddress")));
        failed
    }

    #[test]
    fn an_error_has_the_failed_calls_of_the_processes_it_concerns() {
        let mut errors = GpuErrorLog::default();
        (1..=6).for_each(|at| errors.call(&failed(at, 7)));
        errors.call(&failed(7, 8));
        errors.xid(&xid(10, &[7]));
        errors.xid(&xid(11, &[]));
        (20..=26).for_each(|at| errors.call(&failed(at, 7)));
        errors.call(&samples::call(Api::Runtime, "cudaFree", 0));
        let (errors, others) = errors.report();
        let times = |calls: &[FailedCall]| calls.iter().map(|call| call.at_ns).collect::<Vec<_>>();
        assert_eq!(
            (times(&errors[0].before), times(&errors[0].after)),
            (vec![4, 5, 6], vec![20, 21, 22, 23])
        );
        assert_eq!((times(&errors[1].before), others), (vec![4, 5, 6, 7], 0));
    }

    #[test]
    fn errors_beyond_the_bound_are_counted() {
        let mut errors = GpuErrorLog::default();
        (0..100).for_each(|at| errors.xid(&xid(at, &[])));
        let (kept, others) = errors.report();
        assert_eq!((kept.len(), others), (MOST_ERRORS, 36));
    }
}
