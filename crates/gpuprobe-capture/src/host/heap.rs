//! Settings of the heap: return memory to the system early, or keep it.

/// Blocks of at least this size are mapped one by one, and returned to the system when they are freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 256 << 10;
/// So much free memory may stay at the end of the heap.
#[cfg(target_env = "gnu")]
const SPARE_BYTES: libc::c_int = 1 << 20;
/// The same for [`keep_memory`]; glibc accepts no more than this for the first.
#[cfg(target_env = "gnu")]
const LARGE_KEPT_BYTES: libc::c_int = 32 << 20;
#[cfg(target_env = "gnu")]
const SPARE_KEPT_BYTES: libc::c_int = 64 << 20;

/// For processes that run long and build large texts and tables every second. By default glibc raises the size of
/// blocks that are returned to that of the largest freed block, and gives each thread its own heap, so memory of a
/// busy moment is never returned.
pub fn return_memory_early() {
    #[cfg(target_env = "gnu")]
    set(&[
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, SPARE_BYTES),
        (libc::M_ARENA_MAX, 2),
    ]);
}

/// For processes that take thousands of calls at a time, again and again. Otherwise the memory of each batch would be
/// returned and mapped again, cleared page by page, which was a fifth of the cost of a recording.
pub fn keep_memory() {
    #[cfg(target_env = "gnu")]
    set(&[(libc::M_MMAP_THRESHOLD, LARGE_KEPT_BYTES), (libc::M_TRIM_THRESHOLD, SPARE_KEPT_BYTES)]);
}

#[cfg(target_env = "gnu")]
fn set(options: &[(libc::c_int, libc::c_int)]) {
    for (what, value) in options {
        // SAFETY: takes two numbers; unknown options are ignored.
        unsafe { libc::mallopt(*what, *value) };
    }
}
