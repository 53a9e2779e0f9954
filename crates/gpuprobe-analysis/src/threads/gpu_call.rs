//! Which call of a GPU library a thread is in.

use gpuprobe_event::{Call, Frame};

use super::sample::{GpuCall, SampledThread, ThreadStack};

/// Begins of the names of the libraries that start threads: all that calls the first function of a thread.
const THREAD_STARTERS: [&str; 5] = ["libc.so", "libc-2.", "libpthread", "ld-musl", "ld-linux"];

/// The outermost GPU call of a stack. GPU libraries have threads of their own, which always wait somewhere inside of
/// the library: the program has not called anything there.
pub(super) fn call_of(stack: &ThreadStack) -> Option<&GpuCall> {
    let call = stack.gpu_call.as_ref()?;
    let is_unnamed =
        stack.frames.get(call.frame).is_some_and(|frame| frame.module.as_ref() == Some(&call.function));
    let starts_threads = |module: &String| THREAD_STARTERS.iter().any(|begin| module.starts_with(begin));
    let has_no_caller = stack.incomplete.is_none()
        && outside(stack, call).iter().all(|frame| frame.module.as_ref().is_some_and(starts_threads));
    (!(is_unnamed && has_no_caller)).then_some(call)
}

/// The frames that called a GPU call, the innermost first.
pub(super) fn outside<'s>(stack: &'s ThreadStack, call: &GpuCall) -> &'s [Frame] {
    stack.frames.get(call.frame.saturating_add(1)..).unwrap_or_default()
}

/// The open call that a probe saw, if it is one of a GPU library. A hooked function or one of a framework may be
/// around many GPU calls.
pub(super) fn open_gpu_call(thread: &SampledThread) -> Option<&Call> {
    thread.open_call.as_ref().filter(|call| call.api.is_gpu_library())
}

#[cfg(test)]
mod tests {
    use super::super::sample_threads::{frame, stack_in};
    use super::*;

    #[test]
    fn threads_of_a_library_itself_are_in_no_call() {
        let libcuda = || frame("", "libcuda.so.1");
        let call =
            |frames: Vec<Frame>, function: &str| ThreadStack { frames, ..stack_in(function, 1, 0x7f00) };
        let start = || vec![frame("start_thread", "libc.so.6"), frame("clone3", "libc.so.6")];
        let own = [vec![frame("poll", "libc.so.6"), libcuda()], start()].concat();
        assert_eq!(call_of(&call(own.clone(), "libcuda.so.1")), None);
        assert_eq!(call_of(&call(own[..2].to_vec(), "libcuda.so.1")), None);

        let called = [vec![frame("poll", "libc.so.6"), libcuda(), frame("worker", "app")], start()].concat();
        assert!(call_of(&call(called, "libcuda.so.1")).is_some(), "a function that has no name");
        assert!(call_of(&call(own.clone(), "cuCtxSynchronize")).is_some(), "a thread that runs one call");
        let incomplete = ThreadStack { incomplete: Some("cut".to_owned()), ..call(own, "libcuda.so.1") };
        assert!(call_of(&incomplete).is_some(), "the caller may be among the frames that are missing");
    }

    #[test]
    fn the_index_of_a_frame_may_be_wrong() {
        let stack = stack_in("cuInit", usize::MAX, 1);
        let call = call_of(&stack).unwrap();
        assert!(outside(&stack, call).is_empty());
    }
}
