//! Calls that have begun and not returned.

use std::collections::HashSet;

use gpuprobe_event::counters::PendingCall;
use gpuprobe_event::{Call, Tgid};

use super::Capture;
use crate::error::CaptureError;
use crate::host::clock::monotonic_ns;
use crate::tables::task_iterator::may_be_in_call;
use crate::threads::ThreadSampler;
use crate::wire::{gp_call, is_return_probed, number};

/// A launch whose return is not probed has returned before this age, or its thread waits.
const WAITING_NS: u64 = 1_000_000_000;

impl Capture {
    /// Calls that are open now, of all threads, outer ones before those made inside them. At the end of observation,
    /// launches whose return is not probed are among them.
    pub fn open_calls(&mut self) -> Result<Vec<Call>, CaptureError> {
        let mut calls = self.ring.open_calls()?;
        mark_waiting(&mut calls);
        Ok(calls.iter().filter_map(|call| self.ring.decoder.open_call(call)).collect())
    }

    /// The outermost call of every thread, if it has been open for more than a second. This visits every thread of the
    /// host.
    pub fn pending_calls(&self) -> Result<Vec<PendingCall>, CaptureError> {
        self.tables.pending_calls(self.clock)
    }
}

/// Marks launches whose return is not probed as open if their threads still wait in them. If that cannot be seen, it is
/// not known how they ended.
fn mark_waiting(calls: &mut [gp_call]) {
    let now_ns = monotonic_ns();
    let may_wait = |call: &gp_call| {
        !is_return_probed(call)
            && now_ns.saturating_sub(call.start_ns) >= WAITING_NS
            && may_be_in_call(call.tid, call.stack_pointer, call.return_address)
    };
    let mut unclear: Vec<&mut gp_call> = calls.iter_mut().filter(|call| may_wait(call)).collect();
    if unclear.is_empty() {
        return;
    }
    let processes: HashSet<Tgid> = unclear.iter().map(|call| Tgid(call.tgid)).collect();
    let places = return_places(&processes.into_iter().collect::<Vec<_>>());
    for call in &mut unclear {
        match &places {
            Ok(places) if places.contains(&(call.tid, call.stack_pointer)) => {
                call.flags &= !number::CALL_UNOBSERVED;
            }
            Ok(_) => {}
            Err(_) => call.flags |= number::CALL_BEGUN,
        }
    }
}

/// The places of all return addresses on the stacks of these processes, by thread.
fn return_places(processes: &[Tgid]) -> Result<HashSet<(u32, u64)>, CaptureError> {
    let mut sampler = ThreadSampler::new()?;
    sampler.sample(processes)?;
    let threads = sampler.finish().into_iter().flat_map(|process| process.threads);
    Ok(threads.flat_map(|t| t.return_slots.into_iter().map(move |slot| (t.tid.0, slot))).collect())
}
