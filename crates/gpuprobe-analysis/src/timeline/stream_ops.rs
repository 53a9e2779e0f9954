//! GPU operations by stream: launches, copies and memsets. Each is one call of the program, no matter how many CUDA
//! functions it passes through.

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{Call, Class, Outcome, Transfer};

use super::nesting::Slice;
use crate::gpu_ops::streams::stream_of;

/// An operation submitted to a stream. The trace does not know when the GPU runs it.
#[derive(Debug, PartialEq)]
pub struct StreamOp<'a> {
    /// The outermost call that submitted it.
    pub slice: &'a Slice,
    /// See [`stream_of`].
    pub stream: u64,
    /// The CUDA kernel or the copy direction; if neither is known, the function.
    pub name: &'a str,
}

/// The operations of these calls, without those that failed, did not return, or were captured.
pub fn stream_ops(slices: &[Slice]) -> impl Iterator<Item = StreamOp<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(slice) = slices.get(at) {
            at += 1;
            if !is_gpu_op(slice.call.class) {
                continue;
            }
            let inside = slices[at..].iter().take_while(|inner| inner.depth > slice.depth);
            let inner: &[Slice] = &slices[at..at + inside.count()];
            at += inner.len();
            if succeeded(&slice.call) {
                return Some(operation(slice, inner));
            }
        }
        None
    })
}

/// Takes data that the outer call lacks from the calls inside: copies of the runtime have no stream, and its launches
/// do not always have a named CUDA kernel.
fn operation<'a>(outer: &'a Slice, inner: &'a [Slice]) -> StreamOp<'a> {
    let calls = || std::iter::once(outer).chain(inner).map(|slice| &*slice.call);
    let stream = calls().find_map(stream_of).unwrap_or(0);
    let kernel = calls().find_map(|call| call.effect.kernel()).map(|kernel| &**kernel);
    let direction = outer.call.effect.transfer().and_then(Transfer::known_direction);
    let name = kernel.or(direction.map(CopyDirection::as_str)).unwrap_or(&outer.call.name);
    StreamOp { slice: outer, stream, name }
}

fn is_gpu_op(class: Class) -> bool {
    matches!(class, Class::Launch | Class::GraphLaunch | Class::Memcpy | Class::Memset)
}

/// Captured operations are not run but become part of a graph.
fn succeeded(call: &Call) -> bool {
    !call.failed() && !call.effect.captured() && matches!(call.outcome, Outcome::Returned { .. })
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Tid};

    use super::*;
    use crate::gpu_ops::streams::{LEGACY, PER_THREAD, STREAM_OF_THREAD};
    use crate::samples::{call, captured, copy, launch, of_kernel, unfinished};

    /// Streams and names of the operations of these calls, each given with its depth.
    fn ops_of(calls: impl IntoIterator<Item = (usize, Call)>) -> Vec<(u64, String)> {
        let slice = |(depth, call)| Slice { call: Box::new(call), start_ns: 0, end_ns: 1, depth };
        let slices: Vec<_> = calls.into_iter().map(slice).collect();
        stream_ops(&slices).map(|op| (op.stream, op.name.to_owned())).collect()
    }

    #[test]
    fn a_launch_is_one_operation_at_all_levels_of_nesting() {
        let inner = of_kernel(launch("cuLaunchKernel", Some(7)), Some("k"));
        let calls = [
            (0, launch("cudaLaunchKernel", None)),
            (1, inner),
            (0, copy(CopyDirection::HostToDevice, 5, 0)),
            (0, copy(CopyDirection::Unknown, 5, 0)),
            (0, launch("cudaGraphLaunch", Some(LEGACY))),
        ];
        let expected = [(7, "k"), (0, "H2D"), (0, "cudaMemcpy"), (0, "cudaGraphLaunch")];
        assert_eq!(ops_of(calls), expected.map(|(stream, name)| (stream, name.to_owned())));
    }

    #[test]
    fn a_thread_has_its_own_default_stream() {
        let of = |call: Call| ops_of([(0, Call { tid: Tid(9), ..call })])[0].0;
        let own = STREAM_OF_THREAD | 9;
        assert_eq!(of(launch("cudaLaunchKernel", Some(PER_THREAD))), own);
        assert_eq!(of(launch("cudaLaunchKernel_ptsz", Some(0))), own);
        assert_eq!(of(launch("cudaMemcpy_ptds", None)), own);
        assert_eq!(of(launch("cudaLaunchKernel_ptsz", Some(7))), 7);
        assert_eq!(of(launch("cudaLaunchKernel_ptsz", Some(LEGACY))), 0);
    }

    #[test]
    fn failed_captured_and_open_calls_are_no_operations() {
        let captured = captured(launch("cudaLaunchKernel", Some(7)));
        let failed = Call { status: Some(700), ..launch("cudaLaunchKernel", Some(7)) };
        let open = unfinished(launch("cudaLaunchKernel", Some(7)));
        let other = call(Api::Runtime, "cudaDeviceSynchronize", 0);
        let inner = launch("cuLaunchKernel", Some(7));
        assert_eq!(ops_of([(0, captured), (1, inner), (0, failed), (0, open), (0, other)]), []);
    }
}
