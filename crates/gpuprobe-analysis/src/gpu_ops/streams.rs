//! What is given to streams: launches, copies and fills. Each is one call of a program, however many functions of CUDA
//! it passes through.

use gpuprobe_event::Call;

/// Set in the number of a thread's own default stream, whose other bits are the thread: no address has it.
pub const STREAM_OF_THREAD: u64 = 1 << 63;
/// Another name of the default stream.
pub(crate) const LEGACY: u64 = 1;
/// The thread's own default stream, as programs name it.
pub(crate) const OWN: u64 = 2;

/// The stream of a call, by what it was given for it: the default stream has two names, and a thread's own one too.
pub fn stream_of(call: &Call) -> Option<u64> {
    let own = STREAM_OF_THREAD | u64::from(call.tid.0);
    let per_thread = call.name.ends_with("_ptsz") || call.name.ends_with("_ptds");
    match call.stream {
        Some(OWN) => Some(own),
        Some(0) | None if per_thread => Some(own),
        Some(LEGACY) => Some(0),
        stream => stream,
    }
}
