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

/// What these calls gave to streams; what was captured was not given, but made part of a graph.
pub(super) fn given(slices: &[Slice]) -> impl Iterator<Item = Given<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(slice) = slices.get(at) {
            at += 1;
            if gives(&slice.call) {
                let inside = slices[at..].iter().take_while(|inner| inner.depth > slice.depth);
                let inner: &[Slice] = &slices[at..at + inside.count()];
                at += inner.len();
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

fn gives(call: &Call) -> bool {
    let is_work = matches!(call.class, Class::Launch | Class::GraphLaunch | Class::Memcpy | Class::Memset);
    is_work && !call.failed() && !call.effect.captured && matches!(call.outcome, Outcome::Returned { .. })
}

/// What a stream is called.
pub(super) fn name(stream: u64) -> String {
    match stream {
        0 => "default stream".to_owned(),
        PER_THREAD => "default streams of threads".to_owned(),
        stream => format!("stream {stream:#x}"),
    }
}
