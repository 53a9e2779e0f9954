//! A fixed number of buffers. CUPTI asks for them on the program's threads, so handing out is one exchange of a bit.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

const BUFFERS: usize = u64::BITS as usize;
/// A thousand records of CUDA kernels. While a GPU is busy, CUPTI delivers only full buffers: larger ones come later.
pub(crate) const BUFFER_BYTES: usize = 1 << 18;

/// The pool of this process.
pub(crate) static POOL: BufferPool = BufferPool::new();

/// Bits of `free` and `completed` are the numbers of buffers. A buffer in neither is filled by CUPTI or read by the agent.
#[derive(Debug)]
pub(crate) struct BufferPool {
    first: AtomicPtr<u8>,
    free: AtomicU64,
    completed: AtomicU64,
    valid_bytes: [AtomicUsize; BUFFERS],
    /// The place of a completed buffer in the order of their completion.
    order: [AtomicU64; BUFFERS],
    completions: AtomicU64,
    is_read: AtomicBool,
}

/// A buffer that CUPTI has filled. It is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Completed<'p> {
    pool: &'p BufferPool,
    number: usize,
    order: u64,
    pub(crate) valid_bytes: usize,
}

impl BufferPool {
    const fn new() -> Self {
        Self {
            first: AtomicPtr::new(ptr::null_mut()),
            free: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            valid_bytes: [const { AtomicUsize::new(0) }; BUFFERS],
            order: [const { AtomicU64::new(0) }; BUFFERS],
            completions: AtomicU64::new(0),
            is_read: AtomicBool::new(false),
        }
    }

    /// Reserves the memory, once per process. Pages are taken when they are written.
    pub(crate) fn map(&self) -> bool {
        if !self.first.load(Ordering::Acquire).is_null() {
            return true;
        }
        // SAFETY: new memory, which nothing else knows.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                BUFFERS * BUFFER_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return false;
        }
        self.completed.store(0, Ordering::Relaxed);
        self.first.store(memory.cast(), Ordering::Release);
        self.free.store(u64::MAX, Ordering::Release);
        true
    }

    /// Forgets the memory of the parent process: CUPTI does not run in a forked child.
    pub(crate) fn forget(&self) {
        self.read_completed(false);
        self.free.store(0, Ordering::Release);
        self.first.store(ptr::null_mut(), Ordering::Release);
    }

    /// Whether completed buffers are read. They are free at once if not.
    pub(crate) fn read_completed(&self, are_read: bool) {
        self.is_read.store(are_read, Ordering::Release);
    }

    /// A free buffer; `None` if CUPTI has all of them.
    pub(crate) fn take(&self) -> Option<*mut u8> {
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            let number = free.trailing_zeros();
            if number == u64::BITS {
                return None;
            }
            let without = free & !(1 << number);
            match self.free.compare_exchange_weak(free, without, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break Some(self.address(number as usize)),
                Err(now) => free = now,
            }
        }
    }

    /// Takes a buffer back. `false` if it is none of this pool, and then it is not touched: another user of CUPTI had
    /// registered its callbacks in the meantime.
    pub(crate) fn complete(&self, buffer: *const u8, valid_bytes: usize) -> bool {
        let first = self.first.load(Ordering::Acquire);
        let offset = buffer.addr().wrapping_sub(first.addr());
        let number = offset / BUFFER_BYTES;
        if first.is_null() || number >= BUFFERS || !offset.is_multiple_of(BUFFER_BYTES) {
            return false;
        }
        if !self.is_read.load(Ordering::Acquire) {
            self.free.fetch_or(1 << number, Ordering::AcqRel);
            return true;
        }
        let order = self.completions.fetch_add(1, Ordering::Relaxed);
        if let (Some(bytes), Some(place)) = (self.valid_bytes.get(number), self.order.get(number)) {
            bytes.store(valid_bytes.min(BUFFER_BYTES), Ordering::Relaxed);
            place.store(order, Ordering::Relaxed);
        }
        self.completed.fetch_or(1 << number, Ordering::AcqRel);
        true
    }

    /// The buffers that were completed since the last call, in that order.
    pub(crate) fn completed(&self) -> Vec<Completed<'_>> {
        let mut bits = self.completed.swap(0, Ordering::AcqRel);
        let mut found = Vec::with_capacity(bits.count_ones() as usize);
        while bits != 0 {
            let number = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let number_of = |numbers: &[AtomicU64; BUFFERS]| {
                numbers.get(number).map_or(0, |number| number.load(Ordering::Relaxed))
            };
            let valid_bytes = self.valid_bytes.get(number).map_or(0, |bytes| bytes.load(Ordering::Relaxed));
            found.push(Completed { pool: self, number, order: number_of(&self.order), valid_bytes });
        }
        found.sort_unstable_by_key(|buffer| buffer.order);
        found
    }

    fn address(&self, number: usize) -> *mut u8 {
        self.first.load(Ordering::Acquire).wrapping_add(number * BUFFER_BYTES)
    }
}

impl Completed<'_> {
    pub(crate) fn first_byte(&self) -> *mut u8 {
        self.pool.address(self.number)
    }
}

impl Drop for Completed<'_> {
    fn drop(&mut self) {
        self.pool.free.fetch_or(1 << self.number, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    #[test]
    fn every_buffer_is_handed_out_once_and_comes_back() {
        let pool = BufferPool::new();
        assert_eq!(pool.take(), None);
        assert!(pool.map() && pool.map());
        pool.read_completed(true);
        let taken: BTreeSet<usize> = std::iter::from_fn(|| pool.take()).map(<*mut u8>::addr).collect();
        assert_eq!(taken.len(), BUFFERS);
        let mut addresses: Vec<usize> = taken.into_iter().collect();
        addresses.reverse();
        for (index, address) in addresses.iter().enumerate() {
            assert!(pool.complete(ptr::without_provenance(*address), index));
        }
        let found: Vec<(usize, usize)> =
            pool.completed().iter().map(|buffer| (buffer.first_byte().addr(), buffer.valid_bytes)).collect();
        let expected: Vec<(usize, usize)> =
            addresses.iter().enumerate().map(|(index, address)| (*address, index)).collect();
        assert_eq!(found, expected);
        assert!(pool.completed().is_empty());
        assert_eq!(std::iter::from_fn(|| pool.take()).count(), BUFFERS);
    }

    #[test]
    fn buffers_of_others_are_not_touched() {
        let pool = BufferPool::new();
        assert!(!pool.complete(ptr::null(), 0));
        assert!(pool.map());
        pool.read_completed(true);
        let buffer = pool.take().expect("a buffer");
        for wrong in [buffer.wrapping_add(8), buffer.wrapping_sub(BUFFER_BYTES), ptr::null_mut()] {
            assert!(!pool.complete(wrong, 8));
        }
        assert!(!pool.complete(pool.address(BUFFERS), 8));
        assert!(pool.completed().is_empty());
    }

    #[test]
    fn buffers_that_are_not_read_are_free_at_once() {
        let pool = BufferPool::new();
        assert!(pool.map());
        for _ in 0..3 * BUFFERS {
            let buffer = pool.take().expect("a buffer");
            assert!(pool.complete(buffer, 8));
        }
        assert!(pool.completed().is_empty());
        pool.forget();
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn threads_take_and_complete_at_the_same_time() {
        let pool = BufferPool::new();
        assert!(pool.map());
        pool.read_completed(true);
        let mut seen = 0;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut done = 0;
                        while done < 2_000 {
                            let Some(buffer) = pool.take() else {
                                thread::yield_now();
                                continue;
                            };
                            // SAFETY: this thread alone has the buffer.
                            unsafe { buffer.write(1) };
                            assert!(pool.complete(buffer, done));
                            done += 1;
                        }
                    })
                })
                .collect();
            while seen < 8_000 {
                let found = pool.completed();
                assert!(found.is_sorted_by_key(|buffer| buffer.order));
                seen += found.len();
                thread::yield_now();
            }
            for worker in workers {
                worker.join().expect("a worker");
            }
        });
        assert_eq!(seen, 8_000);
    }
}
