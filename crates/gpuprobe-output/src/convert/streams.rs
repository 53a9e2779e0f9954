//! What is given to streams: launches, copies and fills. Each is one call of a program, however many functions of CUDA
//! it passes through.

use gpuprobe_analysis::Slice;
use gpuprobe_event::{Call, Class, Outcome};

/// Another name of the default stream.
const LEGACY: u64 = 1;
/// The default stream of each thread.
const PER_THREAD: u64 = 2;

/// Something that was given to a stream. When the GPU does it the trace does not know.
#[derive(Debug, PartialEq)]
pub(super) struct Given<'a> {
    pub(super) call: &'a Call,
    /// When the call began.
    pub(super) at_ns: u64,
    pub(super) stream: u64,
    /// The kernel, the direction, or where neither is known the function.
    pub(super) name: &'a str,
}

/// What these calls gave to streams.
pub(super) fn given(slices: &[Slice]) -> impl Iterator<Item = Given<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(slice) = slices.get(at) {
            at += 1;
            if !is_work(&slice.call) {
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
    let call: &Call = &outer.call;
    let effects = || std::iter::once(outer).chain(inner).map(|slice| &slice.call.effect);
    let stream = effects().find_map(|effect| effect.stream).filter(|stream| *stream != LEGACY).unwrap_or(0);
    let kernel = effects().find_map(|effect| effect.kernel.as_deref());
    let name = kernel.or(call.effect.kind.as_deref()).unwrap_or(&call.name);
    Given { call, at_ns: outer.start_ns, stream, name }
}

fn is_work(call: &Call) -> bool {
    matches!(call.class, Class::Launch | Class::GraphLaunch | Class::Memcpy | Class::Memset)
}

/// What was captured is not run, but made part of a graph.
fn succeeded(call: &Call) -> bool {
    !call.failed() && !call.effect.captured && matches!(call.outcome, Outcome::Returned { .. })
}

/// What a stream is called.
pub(super) fn name(stream: u64) -> String {
    match stream {
        0 => "default stream".to_owned(),
        PER_THREAD => "default streams of threads".to_owned(),
        stream => format!("stream {stream:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::Nesting;
    use gpuprobe_event::Event;
    use gpuprobe_event::trace::{Line, Reader};

    use super::*;

    /// Streams and names of what is given by these calls, each of which is `name stream more`.
    fn given_by(calls: &[(u64, u64, &str, &str)]) -> Vec<(u64, String)> {
        let mut trace = String::from("{\"type\":\"meta\",\"format\":1}\n");
        for (id, parent, name, more) in calls {
            let api = if name.starts_with("cuda") { "runtime" } else { "driver" };
            let parent = if *parent == 0 { String::new() } else { format!(",\"parent\":{parent}") };
            trace += &format!(
                "{{\"event_id\":{id},\"ts\":0.{id:09},\"type\":\"launch\",\"name\":\"{name}\",\"phase\":\"X\",\"pid\":1,\
                 \"tid\":1,\"process\":\"\",\"duration_us\":0.0,\"api\":\"{api}\"{parent}{more}}}\n"
            );
        }
        let (mut nesting, mut slices) = (Nesting::default(), Vec::new());
        let mut reader = Reader::new(trace.as_bytes()).unwrap();
        while let Some(line) = reader.read().unwrap() {
            let Line::Event(Event::Call(call)) = line else { panic!("only calls") };
            nesting.feed(call, &mut slices);
        }
        nesting.finish(9, &mut slices);
        assert_eq!(slices.len(), calls.len());
        given(&slices).map(|given| (given.stream, given.name.to_owned())).collect()
    }

    #[test]
    fn a_launch_is_one_whatever_it_passes_through() {
        let calls = [
            (2, 1, "cuLaunchKernel", ",\"ret\":0,\"stream\":\"0x7\",\"kernel\":\"k\""),
            (1, 0, "cudaLaunchKernel", ",\"ret\":0"),
            (4, 3, "cuMemcpyHtoD_v2", ",\"ret\":0"),
            (3, 0, "cudaMemcpy", ",\"ret\":0,\"kind\":\"H2D\",\"stream\":\"0x1\""),
        ];
        assert_eq!(given_by(&calls), [(7, "k".to_owned()), (0, "H2D".to_owned())]);
    }

    #[test]
    fn what_failed_or_was_captured_is_not_given() {
        let calls = [
            (2, 1, "cuLaunchKernel", ",\"ret\":0,\"kernel\":\"k\""),
            (1, 0, "cudaLaunchKernel", ",\"ret\":0,\"captured\":true"),
            (3, 0, "cudaLaunchKernel", ",\"ret\":700"),
            (4, 0, "cudaDeviceSynchronize", ",\"ret\":0"),
        ];
        assert_eq!(given_by(&calls), []);
    }
}
