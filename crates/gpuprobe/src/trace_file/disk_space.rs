//! How much of the file system a trace may fill.

use std::fs::File;

use nix::sys::statvfs::fstatvfs;

/// The most that is kept free.
const MOST_KEPT: u64 = 1 << 30;

/// The free space of the file system of a trace, when it was last looked at.
#[derive(Debug)]
pub(super) struct DiskSpace {
    /// This much stays free.
    pub(super) kept: u64,
    pub(super) free: u64,
    /// Look again when the current segment has received this many bytes. The file size would not do: it is not known
    /// while data waits for the compressor, and its upper bound shrinks when the data is compressed.
    next: u64,
}

impl DiskSpace {
    /// `None` if the file system has no size, as that of a pipe.
    pub(super) fn of(file: &File) -> Option<Self> {
        let (size, free) = size_and_free(file)?;
        let kept = kept(size, free);
        let mut space = Self { kept, free, next: 0 };
        space.look_again_after(0);
        Some(space)
    }

    /// Whether it is time to look again: the trace alone cannot have used up the space before.
    pub(super) fn is_due(&self, received: u64) -> bool {
        received >= self.next
    }

    /// Looks again at the next event: a new segment begins.
    pub(super) fn look_now(&mut self) {
        self.next = 0;
    }

    /// Looks again. `unwritten` bytes of the trace are not in the file yet. Returns whether too little is left.
    pub(super) fn is_low(&mut self, file: &File, received: u64, unwritten: u64) -> bool {
        let Some((_, free)) = size_and_free(file) else { return false };
        self.free = free.saturating_sub(unwritten);
        self.look_again_after(received);
        self.free < self.kept
    }

    fn look_again_after(&mut self, received: u64) {
        self.next = received.saturating_add(self.free.saturating_sub(self.kept) / 2);
    }
}

/// What stays free: 1 GiB, or less on a small or nearly full file system, so that short recordings are always possible.
fn kept(size: u64, free: u64) -> u64 {
    MOST_KEPT.min(size / 20).min(free / 2)
}

/// What users other than root can still write.
fn size_and_free(file: &File) -> Option<(u64, u64)> {
    let about = fstatvfs(file).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.fragment_size());
    Some((bytes(about.blocks()), bytes(about.blocks_available()))).filter(|(size, _)| *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_file_system_stays_free() {
        const GIB: u64 = 1 << 30;
        assert_eq!(kept(2000 * GIB, 100 * GIB), GIB);
        assert_eq!(kept(10 * GIB, 5 * GIB), GIB / 2);
        assert_eq!(kept(100 * GIB, GIB), GIB / 2);
        assert_eq!(kept(100 * GIB, 0), 0);
    }

    #[test]
    fn it_looks_more_often_when_less_is_left() {
        let mut space = DiskSpace { kept: 1000, free: 5000, next: 0 };
        space.look_again_after(100);
        assert!(!space.is_due(2099) && space.is_due(2100));
        space.free = 1010;
        space.look_again_after(4000);
        assert!(!space.is_due(4004) && space.is_due(4005));
        let file = tempfile::tempfile().unwrap();
        let mut real = DiskSpace::of(&file).unwrap();
        assert!(!real.is_low(&file, 0, 0));
        assert!(real.is_low(&file, 0, u64::MAX));
    }
}
