//! Calls that have begun and not returned.

use std::collections::{HashMap, HashSet};

use gpuprobe_event::counters::PendingCall;
use gpuprobe_event::{Call, Tgid};

use super::Capture;
use crate::error::CaptureError;
use crate::host::clock::monotonic_ns;
use crate::tables::task_iterator::may_be_in_call;
use crate::threads::{ThreadSampler, ThreadSamples};
use crate::wire::{gp_call, is_end_assumed, number};

impl Capture {
    /// Calls that are open now, of all threads, outer ones before those made inside them. Launches whose return is not
    /// probed and whose records are deferred are among them, most of them returned.
    pub fn open_calls(&mut self) -> Result<Vec<Call>, CaptureError> {
        let mut calls = self.ring.open_calls()?;
        mark_enclosing(&mut calls);
        let unclear = mark_waiting(&mut calls);
        // before the end, it may still be seen
        if self.stopped_ns.is_some() {
            self.unclear_returns += unclear;
        }
        Ok(calls.iter().filter_map(|call| self.ring.decoder.open_call(call)).collect())
    }

    /// The outermost call of every thread, if it has been open for more than a second. This visits every thread of the
    /// host.
    pub fn pending_calls(&self) -> Result<Vec<PendingCall>, CaptureError> {
        self.tables.pending_calls(self.clock)
    }
}

/// Marks launches whose return is not probed as open if a call inside them is open.
fn mark_enclosing(calls: &mut [gp_call]) {
    let open: HashSet<u64> =
        calls.iter().filter(|call| !is_end_assumed(call)).map(|call| call.parent).collect();
    for call in calls.iter_mut().filter(|call| is_end_assumed(call) && open.contains(&call.id)) {
        mark_open(call);
    }
}

fn mark_open(launch: &mut gp_call) {
    launch.flags &= !number::CALL_UNOBSERVED;
}

/// Marks launches whose return is not probed as open if their threads still wait in them. If that cannot be seen, it is
/// not known how they ended. Returns how many these are.
fn mark_waiting(calls: &mut [gp_call]) -> u64 {
    let now_ns = monotonic_ns();
    let may_wait = |call: &gp_call| {
        is_end_assumed(call)
            && now_ns.saturating_sub(call.start_ns) >= u64::from(number::UNPROBED_WAIT_NS)
            && may_be_in_call(call.tid, call.stack_pointer, call.return_address)
    };
    let mut unclear: Vec<&mut gp_call> = calls.iter_mut().filter(|call| may_wait(call)).collect();
    if unclear.is_empty() {
        return 0;
    }
    let processes: HashSet<Tgid> = unclear.iter().map(|call| Tgid(call.tgid)).collect();
    let threads = threads_of(&processes.into_iter().collect::<Vec<_>>()).unwrap_or_default();
    let mut unknown = 0;
    for call in &mut unclear {
        match threads.get(&call.tid).and_then(|thread| is_on_stack(thread, call.stack_pointer)) {
            Some(true) => mark_open(call),
            Some(false) => {}
            None => {
                call.flags |= number::CALL_BEGUN;
                unknown += 1;
            }
        }
    }
    unknown
}

/// Whether the return address at this place of a thread's stack is that of a frame; `None` if the stack was not seen
/// up to there.
fn is_on_stack(thread: &ThreadSamples, place: u64) -> Option<bool> {
    if thread.return_slots.contains(&place) {
        return Some(true);
    }
    let is_torn = thread.samples.last().is_none_or(|sample| sample.stack.is_torn);
    let is_past = thread.return_slots.iter().any(|slot| *slot > place);
    (is_past && !is_torn).then_some(false)
}

/// The threads of these processes, by number, with their stacks.
fn threads_of(processes: &[Tgid]) -> Result<HashMap<u32, ThreadSamples>, CaptureError> {
    let mut sampler = ThreadSampler::new()?;
    sampler.sample(processes)?;
    let threads = sampler.finish().into_iter().flat_map(|process| process.threads);
    Ok(threads.map(|thread| (thread.tid.0, thread)).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuprobe_event::{ThreadSample, ThreadStack, Tid};

    use super::*;

    fn thread(return_slots: &[u64], is_torn: bool) -> ThreadSamples {
        let sample = ThreadSample {
            at_ns: 0,
            state: 'S',
            system_call: None,
            wait_channel: None,
            cpu_ns: 0,
            waits: 0,
            stack: Arc::new(ThreadStack { is_torn, ..ThreadStack::default() }),
            caller_state: 0,
        };
        let (name, samples) = (String::new(), vec![sample]);
        ThreadSamples { tid: Tid(1), name, samples, has_returned: None, return_slots: return_slots.to_vec() }
    }

    #[test]
    fn a_launch_has_returned_only_if_the_stack_was_seen_beyond_its_place() {
        assert_eq!(is_on_stack(&thread(&[10, 20, 30], false), 20), Some(true));
        assert_eq!(is_on_stack(&thread(&[10, 30], false), 20), Some(false));
        assert_eq!(is_on_stack(&thread(&[10], false), 20), None, "unwinding stopped before");
        assert_eq!(is_on_stack(&thread(&[10, 30], true), 20), None, "it was running");
        assert_eq!(is_on_stack(&thread(&[], false), 20), None);
    }

    #[test]
    fn a_launch_with_an_open_call_inside_is_open() {
        let launch = |id| gp_call { id, flags: number::CALL_UNOBSERVED, ..gp_call::default() };
        let mut calls = [launch(1), launch(5), gp_call { id: 2, parent: 1, ..gp_call::default() }];
        mark_enclosing(&mut calls);
        assert_eq!(calls.map(|call| is_end_assumed(&call)), [false, true, false]);
    }
}
