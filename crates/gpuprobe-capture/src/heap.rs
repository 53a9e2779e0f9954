//! How the heap gives memory back.

/// Blocks from this size on are asked of the kernel one by one, and given back when they are freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 256 << 10;
/// As much free memory may lie at the end of the heap.
#[cfg(target_env = "gnu")]
const SPARE_BYTES: libc::c_int = 1 << 20;

/// For who runs long, and makes large texts and tables anew every second. By default glibc raises the size from which blocks
/// go back to that of the largest that was freed, and gives each thread a heap of its own; so what a busy moment took is
/// never given back.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    for (what, value) in
        [(libc::M_MMAP_THRESHOLD, LARGE_BYTES), (libc::M_TRIM_THRESHOLD, SPARE_BYTES), (libc::M_ARENA_MAX, 2)]
    {
        // SAFETY: takes two numbers; what it does not know it leaves as it is.
        unsafe { libc::mallopt(what, value) };
    }
}
