//! Individual calls for a timeline that can be zoomed. Memory is bounded: of too many calls, the longest are kept.

use super::nesting::{Slice, weight};
use super::stream_ops::stream_ops;

/// The memory of all calls that are kept, in bytes.
const MOST_BYTES: usize = 128 << 20;

/// A call in the timeline.
#[derive(Debug)]
pub struct LoggedCall {
    pub slice: Slice,
    /// The stream and the name of the operation that it submitted.
    pub op: Option<(u64, String)>,
}

impl LoggedCall {
    pub fn duration_ns(&self) -> u64 {
        self.slice.end_ns.saturating_sub(self.slice.start_ns)
    }

    fn weight(&self) -> usize {
        size_of::<Self>() + weight(&self.slice.call) + self.op.as_ref().map_or(0, |(_, name)| name.len())
    }
}

/// The calls of a recording, or the longest of them.
#[derive(Debug)]
pub struct CallLog {
    /// Calls including nested ones. Longest first in a finished log.
    pub calls: Vec<LoggedCall>,
    /// The number of calls that are not in `calls`.
    pub left_out: u64,
    /// All calls that took longer than this are in `calls`.
    pub left_out_ns: u64,
    bytes: usize,
    most_bytes: usize,
}

impl Default for CallLog {
    fn default() -> Self {
        Self { calls: Vec::new(), left_out: 0, left_out_ns: 0, bytes: 0, most_bytes: MOST_BYTES }
    }
}

impl CallLog {
    /// Takes calls as [`crate::Nesting`] returns them.
    pub(crate) fn take(&mut self, slices: &mut Vec<Slice>) {
        let ops = ops_of(slices);
        for (slice, op) in slices.drain(..).zip(ops) {
            let call = LoggedCall { slice, op };
            if self.left_out > 0 && call.duration_ns() <= self.left_out_ns {
                self.left_out += 1;
                continue;
            }
            self.bytes += call.weight();
            self.calls.push(call);
            if self.bytes > self.most_bytes {
                self.shrink();
            }
        }
    }

    /// Sorts the calls, longest first.
    pub(crate) fn finish(mut self) -> Self {
        self.sort();
        self
    }

    fn sort(&mut self) {
        self.calls.sort_by_key(|call| (std::cmp::Reverse(call.duration_ns()), call.slice.start_ns));
    }

    /// Drops the shorter half.
    fn shrink(&mut self) {
        self.sort();
        let dropped = self.calls.split_off(self.calls.len() / 2);
        self.left_out_ns = dropped.first().map_or(0, LoggedCall::duration_ns).max(self.left_out_ns);
        self.left_out += dropped.len() as u64;
        // calls as long as the longest one dropped are dropped too, so that the limit is a duration
        let kept = self.calls.partition_point(|call| call.duration_ns() > self.left_out_ns);
        self.left_out += (self.calls.len() - kept) as u64;
        self.calls.truncate(kept);
        self.bytes = self.calls.iter().map(LoggedCall::weight).sum();
    }
}

/// The stream and the name of the operation that each call submitted.
fn ops_of(slices: &[Slice]) -> Vec<Option<(u64, String)>> {
    let mut ops = stream_ops(slices).peekable();
    let op_of = |slice: &Slice| {
        ops.next_if(|op| std::ptr::eq(op.slice, slice)).map(|op| (op.stream, op.name.to_owned()))
    };
    slices.iter().map(op_of).collect()
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Call};

    use super::*;
    use crate::samples::{call, launch, of_kernel};

    fn slice(call: Call, start_ns: u64, end_ns: u64, depth: usize) -> Slice {
        Slice { call: Box::new(call), start_ns, end_ns, depth }
    }

    #[test]
    fn calls_are_kept_with_their_operations() {
        let mut log = CallLog::default();
        log.take(&mut vec![
            slice(launch("cudaLaunchKernel", None), 10, 90, 0),
            slice(of_kernel(launch("cuLaunchKernel", Some(7)), Some("k")), 20, 80, 1),
            slice(call(Api::Runtime, "cudaDeviceSynchronize", 0), 100, 500, 0),
        ]);
        let log = log.finish();
        let of = |at: usize| (&*log.calls[at].slice.call.name, log.calls[at].op.clone());
        assert_eq!(of(0), ("cudaDeviceSynchronize", None));
        assert_eq!(of(1), ("cudaLaunchKernel", Some((7, "k".to_owned()))));
        assert_eq!((of(2), log.left_out), (("cuLaunchKernel", None), 0));
    }

    #[test]
    fn of_too_many_calls_the_longest_are_kept() {
        let one = LoggedCall { slice: slice(call(Api::Runtime, "f", 0), 0, 1, 0), op: None }.weight();
        let mut log = CallLog { most_bytes: 100 * one, ..CallLog::default() };
        for i in 0..1000_u64 {
            // every duration from 1 to 1000, in no order
            let ns = i * 7919 % 1009 % 1000 + 1;
            log.take(&mut vec![slice(call(Api::Runtime, "f", 0), i * 2000, i * 2000 + ns, 0)]);
            assert!(log.bytes <= 100 * one);
        }
        let log = log.finish();
        assert_eq!(log.calls.len() as u64 + log.left_out, 1000);
        assert!(log.calls.len() >= 20, "{}", log.calls.len());
        assert!(log.calls.iter().all(|call| call.duration_ns() > log.left_out_ns));
        assert!(log.calls.is_sorted_by_key(|call| std::cmp::Reverse(call.duration_ns())));
    }
}
