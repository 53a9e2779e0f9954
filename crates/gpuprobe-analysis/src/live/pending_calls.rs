//! The call that each process has been in for the longest time, and the time of all open calls.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::{PendingCall, ProcessKey};
use gpuprobe_event::{Api, Container, Tgid, catalogue};
use serde::Serialize;

use crate::process_info::ProcessInfo;

/// The oldest pending call of a running process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OldestCall {
    pub pid: Tgid,
    pub name: String,
    pub container: Option<Container>,
    pub api: Api,
    /// The exported name.
    pub function: &'static str,
    /// How long ago it began.
    pub age_ns: u64,
}

/// A call is shown as pending from this age on.
const PENDING_NS: u64 = 1_000_000_000;

/// The oldest of the pending calls of each process, sorted by pid. Processes that have exited since, or that have no
/// name yet, are left out.
pub fn oldest_calls(
    pending: &[PendingCall],
    processes: &HashMap<ProcessKey, ProcessInfo>,
    now_ns: u64,
) -> Vec<OldestCall> {
    let mut oldest: BTreeMap<ProcessKey, &PendingCall> = BTreeMap::new();
    for call in pending.iter().filter(|call| age_ns(call, now_ns) >= PENDING_NS) {
        let known = oldest.entry(call.process).or_insert(call);
        if call.start_ns < known.start_ns {
            *known = call;
        }
    }
    let named = |(key, call): (ProcessKey, &PendingCall)| {
        let info = processes.get(&key).filter(|info| info.exited_at_ns.is_none())?;
        let function = catalogue().get(call.function)?;
        Some(OldestCall {
            pid: key.tgid,
            name: info.name.clone(),
            container: info.container.clone(),
            api: function.api,
            function: function.name,
            age_ns: age_ns(call, now_ns),
        })
    };
    oldest.into_iter().filter_map(named).collect()
}

fn age_ns(call: &PendingCall, now_ns: u64) -> u64 {
    now_ns.saturating_sub(call.start_ns)
}

/// The time since the beginning of the open calls of the APIs that do the work, such as the CUDA driver, by process. It is
/// that of calls whose return adds their time to the counters. Calls of other libraries are left out: the calls inside of
/// them are counted.
pub fn open_times(pending: &[PendingCall], now_ns: u64) -> HashMap<ProcessKey, u64> {
    let does_work = |call: &PendingCall| catalogue().get(call.function).is_some_and(|f| f.api.does_work());
    let mut open: HashMap<ProcessKey, u64> = HashMap::new();
    for call in pending.iter().filter(|call| call.unprobed.is_none() && does_work(call)) {
        let sum = open.entry(call.process).or_default();
        *sum = sum.saturating_add(age_ns(call, now_ns));
    }
    open
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tid;
    use gpuprobe_event::counters::UnprobedReturn;

    use super::*;

    fn key(tgid: u32) -> ProcessKey {
        ProcessKey { tgid: Tgid(tgid), instance: 1 }
    }

    fn call(tgid: u32, name: &str, start_ns: u64) -> PendingCall {
        let function = catalogue().lookup(Api::Driver, None, name).unwrap().id;
        PendingCall { process: key(tgid), function, start_ns, unprobed: None }
    }

    #[test]
    fn the_oldest_call_of_each_running_process_is_kept() {
        let info = |name: &str, exited_at_ns| ProcessInfo {
            name: name.to_owned(),
            exited_at_ns,
            ..ProcessInfo::default()
        };
        let processes = HashMap::from([
            (key(1), info("train", None)),
            (key(2), info("serve", None)),
            (key(3), info("gone", Some(5))),
            (key(5), info("begun", None)),
        ]);
        const SECOND: u64 = 1_000_000_000;
        let pending = [
            call(2, "cuCtxSynchronize", 9 * SECOND),
            call(1, "cuCtxSynchronize", 40 * SECOND),
            call(1, "cuStreamSynchronize", 20 * SECOND),
            call(1, "cuEventSynchronize", 30 * SECOND),
            call(3, "cuCtxSynchronize", SECOND),
            call(4, "cuCtxSynchronize", SECOND),
            call(5, "cuCtxSynchronize", 100 * SECOND - 1),
        ];
        let found = oldest_calls(&pending, &processes, 100 * SECOND);
        let shown: Vec<_> = found
            .iter()
            .map(|call| (call.pid.0, call.name.as_str(), call.function, call.age_ns / SECOND))
            .collect();
        let expected = [(1, "train", "cuStreamSynchronize", 80), (2, "serve", "cuCtxSynchronize", 91)];
        assert_eq!(
            shown, expected,
            "neither the exited process, nor the unknown one, nor a call that just began"
        );
    }

    #[test]
    fn open_time_is_that_of_calls_whose_return_counts_it() {
        let of_nccl = catalogue().lookup(Api::Nccl, None, "ncclAllReduce").unwrap().id;
        let unprobed = UnprobedReturn { tid: Tid(1), slot: 8 };
        let pending = [
            PendingCall { function: of_nccl, ..call(1, "cuCtxSynchronize", 10) },
            PendingCall { unprobed: Some(unprobed), ..call(1, "cuLaunchKernel", 20) },
            call(1, "cuMemcpyHtoD_v2", 30),
            call(1, "cuCtxSynchronize", 99),
            call(2, "cuCtxSynchronize", 40),
        ];
        assert_eq!(open_times(&pending, 100), HashMap::from([(key(1), 70 + 1), (key(2), 60)]));
    }
}
