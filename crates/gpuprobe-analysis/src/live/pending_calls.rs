//! The call that each process has been in for the longest time.

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

/// The oldest of the pending calls of each process, sorted by pid. Processes that have exited since, or that have no
/// name yet, are left out.
pub fn oldest_calls(
    pending: &[PendingCall],
    processes: &HashMap<ProcessKey, ProcessInfo>,
    now_ns: u64,
) -> Vec<OldestCall> {
    let mut oldest: BTreeMap<ProcessKey, &PendingCall> = BTreeMap::new();
    for call in pending {
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
            age_ns: now_ns.saturating_sub(call.start_ns),
        })
    };
    oldest.into_iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
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
        ]);
        let pending = [
            call(2, "cuCtxSynchronize", 9),
            call(1, "cuCtxSynchronize", 40),
            call(1, "cuStreamSynchronize", 20),
            call(1, "cuEventSynchronize", 30),
            call(3, "cuCtxSynchronize", 1),
            call(4, "cuCtxSynchronize", 1),
        ];
        let found = oldest_calls(&pending, &processes, 100);
        let shown: Vec<_> =
            found.iter().map(|call| (call.pid.0, call.name.as_str(), call.function, call.age_ns)).collect();
        let expected = [(1, "train", "cuStreamSynchronize", 80), (2, "serve", "cuCtxSynchronize", 91)];
        assert_eq!(shown, expected, "neither the exited process nor the unknown one");
    }
}
