//! Calls that were already pending when the probes were attached. No probe saw them begin, but they are on the stacks of
//! their threads.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::Result;
use gpuprobe_analysis::CallSite;
use gpuprobe_capture::{ThreadSampler, ThreadSamples};
use gpuprobe_event::{Call, Tgid, Tid};
use gpuprobe_output::EarlyCall;

/// A call that returns within this time is not pending.
const PENDING_FOR: Duration = Duration::from_millis(100);

/// Identifies a call: its thread, its function and where it returns to.
type CallKey = (Tgid, Tid, String, u64);

/// The calls that were pending at the beginning, and are still.
#[derive(Debug)]
pub(crate) struct EarlyCalls {
    sampler: ThreadSampler,
    /// `None` before the first look.
    pending: Option<HashSet<CallKey>>,
}

impl EarlyCalls {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { sampler: ThreadSampler::new()?, pending: None })
    }

    /// Looks at these processes: the calls of the first look that have not returned. A thread with a call that a probe
    /// saw begin has none.
    pub(crate) fn look(&mut self, processes: &[Tgid], open: &[Call]) -> Result<Vec<EarlyCall>> {
        if self.pending.as_ref().is_some_and(HashSet::is_empty) {
            return Ok(Vec::new());
        }
        let seen: HashSet<(Tgid, Tid)> = open.iter().map(|call| (call.tgid, call.tid)).collect();
        self.sampler.sample(processes)?;
        // a loop that makes the same call again and again is at the same place at every look
        self.sampler.watch_returns();
        std::thread::sleep(PENDING_FOR);
        self.sampler.sample(processes)?;
        let mut found: HashMap<CallKey, EarlyCall> = HashMap::new();
        for process in self.sampler.finish() {
            for ThreadSamples { tid, name, samples, has_returned, .. } in process.threads {
                let Some(sample) = samples.last().filter(|_| has_returned != Some(true)) else { continue };
                let Some(call) = sample.stack.gpu_call.clone() else { continue };
                let key = (process.tgid, tid, call.function.clone(), call.slot);
                let is_early = self.pending.as_ref().is_none_or(|pending| pending.contains(&key));
                if is_early && !seen.contains(&(process.tgid, tid)) {
                    let callers = sample.stack.frames.iter().skip(call.frame + 1).cloned().collect();
                    let place = CallSite::of(callers).place();
                    let (tgid, function) = (process.tgid, call.function);
                    found.insert(key, EarlyCall { tgid, tid, process: name, function, place });
                }
            }
        }
        let mut calls: Vec<_> = found.values().cloned().collect();
        calls.sort_by_key(|call| (call.tgid, call.tid));
        self.pending = Some(found.into_keys().collect());
        Ok(calls)
    }
}
