//! What threads did on the host, while it may be needed to explain why a GPU was idle.

use std::collections::{HashMap, VecDeque};

use gpuprobe_event::{Call, Tgid, Tid, catalogue};

/// What the submitting thread did while a GPU was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostActivity {
    /// It was in this function. Those that are not in the catalogue have one name.
    In(&'static str),
    /// It was outside of all calls.
    Outside,
    /// It had submitted what ended the idle time, and that had not started yet.
    Submitted,
    /// The thread or its calls are not known.
    Unknown,
}

/// Functions that are not in the catalogue: hooks.
const OTHER_FUNCTION: &str = "a hooked function";

#[derive(Clone, Copy, Debug)]
struct HostCall {
    start_ns: u64,
    end_ns: u64,
    name: &'static str,
}

/// The recent outermost calls of threads.
#[derive(Clone, Debug, Default)]
pub(super) struct HostCalls {
    threads: HashMap<(Tgid, Tid), VecDeque<HostCall>>,
    /// Of all threads.
    count: usize,
}

impl HostCalls {
    const MOST_THREADS: usize = 32;
    /// Executions are reported seconds after their submission.
    const MOST_CALLS: usize = 1 << 19;

    /// Takes in an outermost call that returned.
    pub(super) fn feed(&mut self, call: &Call) {
        let (Some(duration_ns), None) = (call.duration_ns(), call.parent) else { return };
        let key = (call.tgid, call.tid);
        if self.threads.len() >= Self::MOST_THREADS && !self.threads.contains_key(&key) {
            return;
        }
        let calls = self.threads.entry(key).or_default();
        if self.count < Self::MOST_CALLS {
            self.count += 1;
        } else if calls.pop_front().is_none() {
            return;
        }
        let known = catalogue().lookup(call.api, None, &call.name);
        calls.push_back(HostCall {
            start_ns: call.start_ns,
            end_ns: call.start_ns.saturating_add(duration_ns),
            name: known.map_or(OTHER_FUNCTION, |function| function.name),
        });
    }

    /// A process exited or runs another program.
    pub(super) fn clear(&mut self, tgid: Tgid) {
        self.threads.retain(|(of, _), _| *of != tgid);
        self.count = self.threads.values().map(VecDeque::len).sum();
    }

    /// Divides an interval among what a thread did in it.
    pub(super) fn divide(
        &self,
        (tgid, tid): (Tgid, Tid),
        (from_ns, to_ns): (u64, u64),
        mut part: impl FnMut(HostActivity, u64),
    ) {
        let calls = self.threads.get(&(tgid, tid));
        let first_ns = calls.and_then(|calls| calls.front()).map_or(u64::MAX, |call| call.start_ns);
        let Some(calls) = calls.filter(|_| first_ns <= from_ns) else {
            // before the first call that is kept, the thread may have made others
            let unknown_ns = to_ns.min(first_ns).saturating_sub(from_ns);
            part(HostActivity::Unknown, unknown_ns);
            if first_ns < to_ns {
                self.divide((tgid, tid), (first_ns, to_ns), part);
            }
            return;
        };
        let mut outside_ns = to_ns.saturating_sub(from_ns);
        let first = calls.partition_point(|call| call.end_ns <= from_ns);
        for call in calls.range(first..).take_while(|call| call.start_ns < to_ns) {
            let ns = call.end_ns.min(to_ns).saturating_sub(call.start_ns.max(from_ns));
            outside_ns = outside_ns.saturating_sub(ns);
            part(HostActivity::In(call.name), ns);
        }
        part(HostActivity::Outside, outside_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpuprobe_event::Api;

    use super::*;
    use crate::samples::{call, inside, took};

    #[test]
    fn an_interval_is_divided_among_calls_and_the_time_outside() {
        let mut calls = HostCalls::default();
        let at = |name, start_ns, ns| Call { start_ns, ..took(call(Api::Runtime, name, 0), ns) };
        calls.feed(&at("cudaMalloc", 100, 50));
        calls.feed(&inside(at("cuMemAlloc_v2", 310, 20), 1));
        calls.feed(&at("cudaStreamSynchronize", 300, 100));
        calls.feed(&at("mine", 450, 10));
        let divided = |from_ns, to_ns| {
            let mut parts: BTreeMap<_, u64> = BTreeMap::new();
            calls.divide((Tgid(100), Tid(100)), (from_ns, to_ns), |of, ns| {
                *parts.entry(of).or_default() += ns
            });
            parts.retain(|_, ns| *ns > 0);
            parts.into_iter().collect::<Vec<_>>()
        };
        use HostActivity::{In, Outside, Unknown};
        assert_eq!(
            divided(120, 350),
            [(In("cudaMalloc"), 30), (In("cudaStreamSynchronize"), 50), (Outside, 150)]
        );
        assert_eq!(divided(320, 330), [(In("cudaStreamSynchronize"), 10)]);
        assert_eq!(divided(440, 500), [(In(OTHER_FUNCTION), 10), (Outside, 50)]);
        assert_eq!(divided(50, 110), [(In("cudaMalloc"), 10), (Unknown, 50)]);
        assert_eq!(divided(10, 20), [(Unknown, 10)]);
    }
}
