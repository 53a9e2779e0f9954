//! No panic leaves the library. One panic turns it off for good.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

static OFF: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_off() -> bool {
    OFF.load(Ordering::Relaxed)
}

/// Runs what a function that the program calls does. `otherwise` if the agent is off or turns off now.
pub(crate) fn run<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    if is_off() {
        return otherwise;
    }
    // what a panic left half done is not used any more
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        OFF.store(true, Ordering::Relaxed);
        // its destructor could panic, too
        std::mem::forget(payload);
        otherwise
    })
}

/// The message of a panic does not belong in the program's output. The library has its own copy of the standard
/// library, so this changes nothing for a program in Rust.
pub(crate) fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
