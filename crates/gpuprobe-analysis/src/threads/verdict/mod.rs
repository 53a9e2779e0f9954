//! Whether a thread is stuck, moves, or has nothing to do, by several samples.

use gpuprobe_event::Api;
use serde::Serialize;

use super::gpu_call::{call_of, open_gpu_call};
use super::sample::{GpuCall, SampledThread, ThreadSample};

/// That nothing changed says little about a shorter time.
const LEAST_SPAN_NS: u64 = 500_000_000;
/// A thread that wakes up now and then, only to find nothing to do, takes less of a CPU.
const LEAST_CPU_SHARE: f64 = 0.01;

/// What the samples of a thread mean. The order is that of groups of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadVerdict {
    /// All the time in one GPU call, asleep or spinning.
    Stuck,
    /// Its stack or its GPU call changed, or it computed outside of GPU calls.
    Moving,
    /// All the time at one place, outside of GPU calls.
    Idle,
    /// It was sampled once, or for too short a time.
    Unknown,
}

impl ThreadVerdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stuck => "stuck",
            Self::Moving => "moving",
            Self::Idle => "idle",
            Self::Unknown => "unknown",
        }
    }

    pub(super) fn of(thread: &SampledThread) -> Self {
        let all: Vec<&ThreadSample> = thread.samples.iter().collect();
        if all.len() < 2 {
            return Self::Unknown;
        }
        let readable: Vec<&ThreadSample> = all.iter().copied().filter(|s| is_readable(s)).collect();
        let has_call = all.iter().any(|sample| call_of(&sample.stack).is_some());
        match thread.has_returned {
            Some(true) => return Self::Moving,
            // also if other threads change what its callers see
            Some(false) if mostly_in_one_place(&readable).is_some() => {
                return Self::Stuck.if_long_enough(&all);
            }
            _ => {}
        }
        match lasts_longer(thread, span_ns(&all)) {
            Some(true) => Self::Stuck.if_long_enough(&all),
            Some(false) => Self::Moving,
            // of a thread that is busy outside of calls, few stacks can be read
            None if readable.len() < 2 && !has_call => Self::by_stacks(&all),
            None => Self::by_stacks(&readable),
        }
    }

    fn by_stacks(samples: &[&ThreadSample]) -> Self {
        if samples.len() < 2 {
            Self::Unknown
        } else if is_in_one_call(samples) {
            Self::Stuck.if_long_enough(samples)
        } else if is_at_one_place(samples) {
            Self::Idle.if_long_enough(samples)
        } else {
            Self::Moving
        }
    }

    fn if_long_enough(self, samples: &[&ThreadSample]) -> Self {
        if span_ns(samples) >= LEAST_SPAN_NS { self } else { Self::Unknown }
    }
}

/// CPU time of a thread as a share of the time between two samples.
pub(super) fn cpu_share(first: &ThreadSample, last: &ThreadSample) -> Option<f64> {
    let span_ns = last.at_ns.checked_sub(first.at_ns).filter(|span| *span > 0)?;
    let share = last.cpu_ns.saturating_sub(first.cpu_ns) as f64 / span_ns as f64;
    // CPU time and the clock are not read at the same instant
    Some(share.min(1.0))
}

/// Whether a sample says where the thread is. The stack of a running thread may be cut where its registers and its
/// memory do not fit together, and then the GPU call may be among the frames that are missing.
pub(super) fn is_readable(sample: &ThreadSample) -> bool {
    !sample.stack.is_torn || sample.stack.incomplete.is_none()
}

fn span_ns(samples: &[&ThreadSample]) -> u64 {
    let ends = samples.first().zip(samples.last());
    ends.map_or(0, |(first, last)| last.at_ns.saturating_sub(first.at_ns))
}

/// Whether all samples are in a call of the same function at the same place, which may be one call or several.
fn is_in_one_place_of_call(samples: &[&ThreadSample]) -> bool {
    let calls: Option<Vec<&GpuCall>> = samples.iter().map(|sample| call_of(&sample.stack)).collect();
    calls.is_some_and(|calls| !calls.is_empty() && all_equal(calls.into_iter().map(identity)))
}

/// Those of the samples that are in a call at the same place, if they are the most. The frames of a thread that ran may be
/// wrong, so some others may seem to be elsewhere in a GPU library.
fn mostly_in_one_place<'s>(samples: &[&'s ThreadSample]) -> Option<Vec<&'s ThreadSample>> {
    let place = |sample: &ThreadSample| {
        call_of(&sample.stack).map(|call| (call.api, call.function.clone(), call.slot))
    };
    let at = |wanted: &_| samples.iter().filter(|sample| place(sample).as_ref() == Some(wanted)).count();
    let most = samples.iter().filter_map(|sample| place(sample)).max_by_key(at)?;
    let (same, other): (Vec<&ThreadSample>, Vec<&ThreadSample>) =
        samples.iter().partition(|sample| place(sample).as_ref() == Some(&most));
    let may_be_wrong = |sample: &&ThreadSample| sample.stack.is_torn && call_of(&sample.stack).is_some();
    (same.len() > other.len() && same.len() > 1 && other.iter().all(may_be_wrong)).then_some(same)
}

fn is_in_one_call(samples: &[&ThreadSample]) -> bool {
    if is_in_one_place_of_call(samples) && did_not_run(samples) {
        return true;
    }
    let same = mostly_in_one_place(samples);
    same.is_some_and(|same| all_equal(same.iter().map(|sample| sample.caller_state)))
}

/// What distinguishes a call from another one of the same thread.
fn identity(call: &GpuCall) -> (Api, &str, u64) {
    (call.api, &call.function, call.slot)
}

/// Whether the GPU call of the last sample began before the first one, if a probe saw it begin.
fn lasts_longer(thread: &SampledThread, span_ns: u64) -> Option<bool> {
    let (open, age_ns) = (open_gpu_call(thread)?, thread.open_call_age_ns?);
    let last = &thread.samples.last()?.stack;
    let call = call_of(last);
    if call.is_none() && last.incomplete.is_none() {
        // left by a jump out of it, which its probe does not see
        return None;
    }
    if age_ns >= span_ns {
        return Some(true);
    }
    // a call inside of the one on the stack may be made again and again while that one lasts
    call.is_some_and(|call| call.function == open.name).then_some(false)
}

fn is_at_one_place(samples: &[&ThreadSample]) -> bool {
    if samples.iter().any(|sample| call_of(&sample.stack).is_some()) {
        return false;
    }
    let share = samples.first().zip(samples.last()).and_then(|(first, last)| cpu_share(first, last));
    let is_same = all_equal(samples.iter().map(|sample| sample.caller_state))
        && all_equal(samples.iter().map(|sample| &sample.stack.frames));
    did_not_run(samples) || is_same && share.is_none_or(|share| share < LEAST_CPU_SHARE)
}

/// Whether the thread slept from the first to the last sample without waking up.
fn did_not_run(samples: &[&ThreadSample]) -> bool {
    samples.iter().all(|sample| sample.state != 'R')
        && all_equal(samples.iter().map(|sample| (sample.cpu_ns, sample.waits)))
}

fn all_equal<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    let first = values.next();
    first.is_none_or(|first| values.all(|value| value == first))
}

#[cfg(test)]
mod tests;
