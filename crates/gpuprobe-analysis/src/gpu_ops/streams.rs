//! The stream that a call uses.

use gpuprobe_event::{Call, Tid};

/// Set in the number of a per-thread default stream; the other bits are the thread id. No address has this bit.
pub const STREAM_OF_THREAD: u64 = 1 << 63;
/// `cudaStreamLegacy`, another handle of the default stream.
pub(crate) const LEGACY: u64 = 1;
/// `cudaStreamPerThread`, the handle of the calling thread's default stream.
pub(crate) const PER_THREAD: u64 = 2;

/// The stream of a call. The default stream has two handles. The per-thread default stream is selected by a handle or
/// by the suffix of the function.
pub fn stream_of(call: &Call) -> Option<u64> {
    let per_thread = call.name.ends_with("_ptsz") || call.name.ends_with("_ptds");
    of_handle(call.stream, call.tid, per_thread)
}

/// The stream of a handle that a thread uses; `per_thread`: in a function whose default stream is the thread's.
pub(crate) fn of_handle(handle: Option<u64>, tid: Tid, per_thread: bool) -> Option<u64> {
    let of_thread = STREAM_OF_THREAD | u64::from(tid.0);
    match handle {
        Some(PER_THREAD) => Some(of_thread),
        Some(0) | None if per_thread => Some(of_thread),
        Some(LEGACY) => Some(0),
        stream => stream,
    }
}
