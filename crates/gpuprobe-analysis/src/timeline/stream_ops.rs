//! GPU operations by stream: launches, copies and memsets. Each is one call of the program, no matter how many CUDA
//! functions it passes through.

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{Call, Class, Outcome, Transfer};

use super::nesting::Slice;
use crate::gpu_ops::streams::stream_of;

/// Something that was given to a stream. When the GPU does it the trace does not know.
#[derive(Debug, PartialEq)]
pub struct Given<'a> {
    /// The call that the program made, where it began and ended.
    pub slice: &'a Slice,
    /// Which stream, see [`stream_of`].
    pub stream: u64,
    /// The kernel, the direction, or where neither is known the function.
    pub name: &'a str,
}

/// What these calls gave to streams. What failed, what was not seen to return and what was captured is not given.
pub fn given(slices: &[Slice]) -> impl Iterator<Item = Given<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(slice) = slices.get(at) {
            at += 1;
            if !is_work(slice.call.class) {
                continue;
            }
            let inside = slices[at..].iter().take_while(|inner| inner.depth > slice.depth);
            let inner: &[Slice] = &slices[at..at + inside.count()];
            at += inner.len();
            if succeeded(&slice.call) {
                return Some(one(slice, inner));
            }
        }
        None
    })
}

/// The call that the program made may lack what the one inside it has: the runtime's copies have no stream of their own,
/// and its launches not always a kernel that has a name.
fn one<'a>(outer: &'a Slice, inner: &'a [Slice]) -> Given<'a> {
    let calls = || std::iter::once(outer).chain(inner).map(|slice| &*slice.call);
    let stream = calls().find_map(stream_of).unwrap_or(0);
    let kernel = calls().find_map(|call| call.effect.kernel()).map(|kernel| &**kernel);
    let direction = outer.call.effect.transfer().and_then(Transfer::told_direction);
    let name = kernel.or(direction.map(CopyDirection::as_str)).unwrap_or(&outer.call.name);
    Given { slice: outer, stream, name }
}

fn is_work(class: Class) -> bool {
    matches!(class, Class::Launch | Class::GraphLaunch | Class::Memcpy | Class::Memset)
}

/// What was captured is not run, but made part of a graph.
fn succeeded(call: &Call) -> bool {
    !call.failed() && !call.effect.captured() && matches!(call.outcome, Outcome::Returned { .. })
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Tid};

    use super::*;
    use crate::gpu_ops::streams::{LEGACY, PER_THREAD, STREAM_OF_THREAD};
    use crate::samples::{call, captured, copy, launch, of_kernel, unfinished};

    /// Streams and names of what is given by these calls, each with its depth.
    fn given_by(calls: impl IntoIterator<Item = (usize, Call)>) -> Vec<(u64, String)> {
        let slice = |(depth, call)| Slice { call: Box::new(call), start_ns: 0, end_ns: 1, depth };
        let slices: Vec<_> = calls.into_iter().map(slice).collect();
        given(&slices).map(|given| (given.stream, given.name.to_owned())).collect()
    }

    #[test]
    fn a_launch_is_one_whatever_it_passes_through() {
        let inner = of_kernel(launch("cuLaunchKernel", Some(7)), Some("k"));
        let calls = [
            (0, launch("cudaLaunchKernel", None)),
            (1, inner),
            (0, copy(CopyDirection::HostToDevice, 5, 0)),
            (0, copy(CopyDirection::Unknown, 5, 0)),
            (0, launch("cudaGraphLaunch", Some(LEGACY))),
        ];
        let expected = [(7, "k"), (0, "H2D"), (0, "cudaMemcpy"), (0, "cudaGraphLaunch")];
        assert_eq!(given_by(calls), expected.map(|(stream, name)| (stream, name.to_owned())));
    }

    #[test]
    fn a_thread_has_a_default_stream_of_its_own() {
        let of = |call: Call| given_by([(0, Call { tid: Tid(9), ..call })])[0].0;
        let own = STREAM_OF_THREAD | 9;
        assert_eq!(of(launch("cudaLaunchKernel", Some(PER_THREAD))), own);
        assert_eq!(of(launch("cudaLaunchKernel_ptsz", Some(0))), own);
        assert_eq!(of(launch("cudaMemcpy_ptds", None)), own);
        assert_eq!(of(launch("cudaLaunchKernel_ptsz", Some(7))), 7);
        assert_eq!(of(launch("cudaLaunchKernel_ptsz", Some(LEGACY))), 0);
    }

    #[test]
    fn what_failed_or_was_captured_or_is_open_is_not_given() {
        let captured = captured(launch("cudaLaunchKernel", Some(7)));
        let failed = Call { status: Some(700), ..launch("cudaLaunchKernel", Some(7)) };
        let open = unfinished(launch("cudaLaunchKernel", Some(7)));
        let other = call(Api::Runtime, "cudaDeviceSynchronize", 0);
        let inner = launch("cuLaunchKernel", Some(7));
        assert_eq!(given_by([(0, captured), (1, inner), (0, failed), (0, open), (0, other)]), []);
    }
}
