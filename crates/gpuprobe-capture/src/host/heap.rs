//! How the heap gives memory back, and how it keeps it.

/// Blocks from this size on are asked of the kernel one by one, and given back when they are freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 256 << 10;
/// As much free memory may lie at the end of the heap.
#[cfg(target_env = "gnu")]
const SPARE_BYTES: libc::c_int = 1 << 20;
/// The same where memory is kept; of the first this is the most that there can be.
#[cfg(target_env = "gnu")]
const LARGE_KEPT_BYTES: libc::c_int = 32 << 20;
#[cfg(target_env = "gnu")]
const SPARE_KEPT_BYTES: libc::c_int = 64 << 20;

/// For who runs long, and makes large texts and tables anew every second. By default glibc raises the size from which blocks
/// go back to that of the largest that was freed, and gives each thread a heap of its own; so what a busy moment took is
/// never given back.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    set(&[
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, SPARE_BYTES),
        (libc::M_ARENA_MAX, 2),
    ]);
}

/// For who takes in thousands of calls at a time, again and again: each time the kernel would take back what the last ones
/// lay in and give it again, cleared, a page at a time, which was a fifth of what a recording takes.
pub fn keep_memory() {
    #[cfg(target_env = "gnu")]
    set(&[(libc::M_MMAP_THRESHOLD, LARGE_KEPT_BYTES), (libc::M_TRIM_THRESHOLD, SPARE_KEPT_BYTES)]);
}

#[cfg(target_env = "gnu")]
fn set(options: &[(libc::c_int, libc::c_int)]) {
    for (what, value) in options {
        // SAFETY: takes two numbers; what it does not know it leaves as it is.
        unsafe { libc::mallopt(*what, *value) };
    }
}
