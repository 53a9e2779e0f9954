//! The longest calls.

use std::sync::Arc;

use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Tgid, Tid};
use serde::Serialize;

/// The number of calls listed.
pub const MOST: usize = 10;

/// One of the longest calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowCall {
    pub duration_ns: u64,
    pub start_ns: u64,
    pub tgid: Tgid,
    pub tid: Tid,
    /// The name of the process.
    pub process: Arc<str>,
    pub api: Api,
    /// The function.
    pub name: Name,
    pub error: Option<Name>,
    /// Bytes allocated or moved.
    pub size: Option<u64>,
    /// The CUDA kernel launched.
    pub kernel: Option<Arc<str>>,
}

/// Keeps the longest outermost calls. Calls inside another are part of that one.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    calls: Vec<SlowCall>,
}

impl Slowest {
    pub(crate) fn feed(&mut self, call: &Call) {
        // a launch whose return was not probed has the time of another one
        let is_known = call.parent.is_none() && call.return_probed;
        let Some(duration_ns) = call.duration_ns().filter(|_| is_known) else { return };
        if self.calls.len() >= MOST && self.calls.last().is_some_and(|least| duration_ns <= least.duration_ns)
        {
            return;
        }
        let at = self.calls.partition_point(|other| other.duration_ns >= duration_ns);
        self.calls.truncate(MOST - 1);
        self.calls.insert(
            at.min(self.calls.len()),
            SlowCall {
                duration_ns,
                start_ns: call.start_ns,
                tgid: call.tgid,
                tid: call.tid,
                process: Arc::clone(&call.process),
                api: call.api,
                name: call.name.clone(),
                error: call.error.clone(),
                size: call.effect.size(),
                kernel: call.effect.kernel().cloned(),
            },
        );
    }

    /// Sorted by duration, longest first.
    pub(crate) fn report(&self) -> Vec<SlowCall> {
        self.calls.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{call, inside, took, unfinished};

    #[test]
    fn the_longest_outermost_calls_are_kept_in_order() {
        let mut slowest = Slowest::default();
        for ns in [5, 90, 20, 70, 10, 60, 30, 50, 40, 80, 100, 1] {
            slowest.feed(&took(call(Api::Runtime, "f", 0), ns));
        }
        slowest.feed(&inside(took(call(Api::Driver, "g", 0), 1000), 1));
        slowest.feed(&unfinished(call(Api::Runtime, "f", 0)));
        let kept: Vec<_> = slowest.report().iter().map(|slow| slow.duration_ns).collect();
        assert_eq!(kept, [100, 90, 80, 70, 60, 50, 40, 30, 20, 10]);
    }
}
