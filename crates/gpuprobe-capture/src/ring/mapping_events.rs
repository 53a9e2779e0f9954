//! Reports when any process of the host maps an executable file, so that new libraries are found without searching:
//! one perf event per CPU that counts nothing and reports mappings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use libbpf_rs::libbpf_sys::perf_event_attr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::host::wake_event::WakeEvent;
use crate::ring::mapping_record::{Mapped, Records};

/// Pages of each CPU's ring, without the one that describes it; a power of two. Enough for some 800 mappings.
const RING_PAGES: usize = 32;
/// The most mappings that are kept while something else is done.
const MOST_KEPT: usize = 1 << 14;
/// The shortest time between two reads while something else is done, so that a busy host does not keep a CPU busy here.
const READ_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
const NAME: &str = "gpuprobe-maps";

/// Mappings since the last read.
#[derive(Debug, Default)]
pub struct NewMappings {
    /// Executable mappings of files.
    pub mapped: Vec<Mapped>,
    /// Reports for which there was no room. The mappings can be found by looking at every process.
    pub lost: u64,
}

/// The perf rings of all CPUs.
#[derive(Debug)]
pub struct Mappings {
    rings: Vec<Ring>,
    /// What was read while something else was done.
    kept: NewMappings,
    /// Set while there is something in `kept`.
    keeps: WakeEvent,
}

impl Mappings {
    /// Starts to watch.
    pub fn open() -> io::Result<Self> {
        let rings = online_cpus()?.into_iter().map(Ring::open).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { rings, kept: NewMappings::default(), keeps: WakeEvent::new()? })
    }

    /// Descriptors that become readable when something was mapped.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.fd.as_fd()).chain([self.keeps.as_fd()])
    }

    /// Takes the new mappings.
    pub fn take(&mut self) -> NewMappings {
        self.read();
        self.keeps.reset();
        std::mem::take(&mut self.kept)
    }

    /// Reads the rings while something is done that may take seconds, such as probing a library, so that they do not
    /// overflow.
    pub fn read_during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let Ok(end) = WakeEvent::new() else { return work() };
        let result = thread::scope(|scope| {
            // without the thread, the rings are as large as they are
            let reader = thread::Builder::new().name(NAME.to_owned());
            let _started = reader.spawn_scoped(scope, || self.read_until(&end));
            let _end = SetAtEnd(&end);
            work()
        });
        // polling the rings took away the notice of what came last
        self.read();
        if !self.kept.mapped.is_empty() || self.kept.lost > 0 {
            self.keeps.set();
        }
        result
    }

    fn read_until(&mut self, end: &WakeEvent) {
        while !waits(end, &[], Some(&READ_EVERY)) && !waits(end, &self.rings, None) {
            self.read();
        }
    }

    fn read(&mut self) {
        let Self { rings, kept, .. } = self;
        for ring in rings {
            let bytes = ring.take();
            let mut records = Records::new(&bytes);
            for mapped in records.by_ref() {
                if kept.mapped.len() < MOST_KEPT {
                    kept.mapped.push(mapped);
                } else {
                    kept.lost += 1;
                }
            }
            kept.lost += records.lost();
        }
    }
}

/// Waits for this event, for one of the rings, or for some time. Whether the event has come, or nothing can be waited for.
fn waits(end: &WakeEvent, rings: &[Ring], most: Option<&Timespec>) -> bool {
    let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(end, PollFlags::IN)];
    fds.extend(rings.iter().map(|ring| PollFd::new(&ring.fd, PollFlags::IN)));
    let failed = poll(&mut fds, most).is_err_and(|error| error != Errno::INTR);
    failed || fds[0].revents().contains(PollFlags::IN)
}

/// Sets an event when it is dropped.
struct SetAtEnd<'e>(&'e WakeEvent);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// The numbers in `/sys/devices/system/cpu/online`, such as `0-3,8`.
fn online_cpus() -> io::Result<Vec<i32>> {
    let text = std::fs::read_to_string(PathBuf::from("/sys/devices/system/cpu/online"))?;
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            cpus.extend(first..=last);
        }
    }
    Ok(cpus)
}

/// The mapped ring of one CPU.
#[derive(Debug)]
struct Ring {
    fd: OwnedFd,
    base: NonNull<u8>,
    page: usize,
}

// SAFETY: the mapping belongs to it alone, and to no thread.
unsafe impl Send for Ring {}

// Offsets of the positions of writer and reader in `struct perf_event_mmap_page`; ABI.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

impl Ring {
    fn open(cpu: i32) -> io::Result<Self> {
        const SOFTWARE: u32 = 1;
        const DUMMY: u64 = 9;
        const SAMPLE_TIME: u64 = 1 << 2;
        const EVERY_PROCESS: libc::pid_t = -1;
        const NO_GROUP: libc::c_int = -1;
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        let mut attr = perf_event_attr { type_: SOFTWARE, config: DUMMY, ..perf_event_attr::default() };
        attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
        attr.set_mmap(1);
        attr.set_mmap2(1);
        // the time is at the end of every record
        attr.sample_type = SAMPLE_TIME;
        attr.set_sample_id_all(1);
        attr.set_use_clockid(1);
        attr.clockid = libc::CLOCK_MONOTONIC;
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = 1;
        // SAFETY: the attributes are valid for the call, which makes a new descriptor or fails.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                EVERY_PROCESS,
                cpu,
                NO_GROUP,
                CLOSE_ON_EXEC,
            )
        };
        let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
            return Err(io::Error::last_os_error());
        };
        // SAFETY: the Linux kernel has just made it, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let page = rustix::param::page_size();
        // SAFETY: a new mapping at an address that the Linux kernel chooses; unmapped in `drop`.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page * (1 + RING_PAGES),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED) {
            Some(base) => Ok(Self { fd, base, page }),
            None => Err(io::Error::last_os_error()),
        }
    }

    /// A position in the first page, which the Linux kernel reads or writes at the same time.
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the first mapped page, aligned to 8, and only ever accessed as a whole number.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Copies out what the Linux kernel has written, and frees the space in the ring.
    fn take(&mut self) -> Vec<u8> {
        let size = (self.page * RING_PAGES) as u64;
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        let mut bytes = Vec::new();
        let mut at = tail;
        while at < head {
            let offset = at % size;
            let length = (head - at).min(size - offset);
            // SAFETY: `offset + length <= size`, so within the mapped data; the Linux kernel does not write between
            // tail and head until tail has moved.
            let part = unsafe {
                std::slice::from_raw_parts(
                    self.base.as_ptr().add(self.page + offset as usize),
                    length as usize,
                )
            };
            bytes.extend_from_slice(part);
            at += length;
        }
        self.position(DATA_TAIL).store(head, Ordering::Release);
        bytes
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: exactly what `open` mapped, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.page * (1 + RING_PAGES)) };
    }
}
