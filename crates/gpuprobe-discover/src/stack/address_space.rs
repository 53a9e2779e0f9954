//! What processes may execute, kept from when they were first seen: a process that has ended is asked no more, and
//! its last stacks are often looked at after that.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::{CodeRange, Mapping, code_ranges, read_maps};

/// Ranges kept of one process. PyTorch has some hundreds.
const RANGES_OF_PROCESS: usize = 16 << 10;
/// Ranges kept of all, about 200 bytes each; beyond this many, all processes but the one at hand are forgotten.
const RANGES: usize = 256 << 10;
/// A process is not asked again before this many times as long as the last time took has passed: stacks that make
/// no sense would have its mappings read over and over.
const PATIENCE: u32 = 20;

/// A range and what is known of the file it is from.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) range: CodeRange,
    /// The number of the module, by the count of those who keep modules; none when not looked at yet.
    pub(crate) module: Option<ModuleNumber>,
}

/// A module among those of one generation; all earlier ones are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModuleNumber {
    pub(crate) generation: u64,
    /// None for a file that cannot be opened.
    pub(crate) index: Option<u32>,
}

#[derive(Debug)]
struct Space {
    places: Vec<Place>,
    read: Instant,
    patience: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct AddressSpaces {
    spaces: HashMap<u32, Space>,
    ranges: usize,
}

impl AddressSpaces {
    /// Reads the mappings of a process again. What is known stays where the process has ended.
    pub(crate) fn read(&mut self, folder: &Path, tgid: u32) {
        let begin = Instant::now();
        let Ok(text) = read_maps(folder, tgid) else {
            if let Some(space) = self.spaces.get_mut(&tgid) {
                space.read = Instant::now();
            }
            return;
        };
        let mut old = self.take(tgid);
        let mut places: Vec<_> =
            code_ranges(&text).take(RANGES_OF_PROCESS).map(|range| Place { range, module: None }).collect();
        places.sort_unstable_by_key(|place| place.range.start);
        for place in &mut places {
            let same = old.binary_search_by_key(&place.range.start, |place| place.range.start);
            place.module = same
                .ok()
                .and_then(|at| old.get_mut(at))
                .filter(|old| old.range == place.range)
                .and_then(|old| old.module);
        }
        if self.ranges + places.len() > RANGES {
            self.spaces.clear();
            self.ranges = 0;
        }
        self.ranges += places.len();
        let space = Space { places, read: Instant::now(), patience: begin.elapsed() * PATIENCE };
        self.spaces.insert(tgid, space);
    }

    /// What a process has at an address; its mappings are read again where nothing is known there.
    pub(crate) fn find(&mut self, folder: &Path, tgid: u32, address: u64) -> Option<&mut Place> {
        if self.position(tgid, address).is_none() {
            if self.spaces.get(&tgid).is_some_and(|space| space.read.elapsed() < space.patience) {
                return None;
            }
            self.read(folder, tgid);
        }
        let at = self.position(tgid, address)?;
        self.spaces.get_mut(&tgid)?.places.get_mut(at)
    }

    /// The file that a process has at an address, as far as is known.
    pub(crate) fn mapping(&self, tgid: u32, address: u64) -> Option<&Mapping> {
        let at = self.position(tgid, address)?;
        self.spaces.get(&tgid)?.places.get(at)?.range.file.as_ref()
    }

    fn position(&self, tgid: u32, address: u64) -> Option<usize> {
        let places = &self.spaces.get(&tgid)?.places;
        let at = places.partition_point(|place| place.range.start <= address).checked_sub(1)?;
        (address < places.get(at)?.range.end).then_some(at)
    }

    pub(crate) fn forget(&mut self, tgid: u32) {
        self.take(tgid);
    }

    fn take(&mut self, tgid: u32) -> Vec<Place> {
        let places = self.spaces.remove(&tgid).map(|space| space.places).unwrap_or_default();
        self.ranges -= places.len();
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeProc;

    const CODE: u64 = 0x7f00_0000_0000;

    #[test]
    fn mappings_outlive_the_process_until_it_is_forgotten() {
        let proc = FakeProc::new();
        let folder = proc.process(7, &[("/bin/sh", Path::new("/bin/sh"))]);
        let mut spaces = AddressSpaces::default();
        assert!(spaces.find(&folder, 7, CODE + 0xfff).is_some());
        assert!(spaces.find(&folder, 7, CODE + 0x1000).is_none());
        std::fs::remove_dir_all(&folder).unwrap();
        spaces.read(&folder, 7);
        let place = spaces.find(&folder, 7, CODE).expect("kept");
        assert_eq!(place.range.file.as_ref().unwrap().file.path, Path::new("/bin/sh"));
        spaces.forget(7);
        assert!(spaces.find(&folder, 7, CODE).is_none());
        assert_eq!(spaces.ranges, 0);
    }

    #[test]
    fn a_library_that_came_later_is_found_and_what_was_known_stays() {
        let proc = FakeProc::new();
        let shell = Path::new("/bin/sh");
        let folder = proc.process(7, &[("/bin/sh", shell)]);
        let mut spaces = AddressSpaces::default();
        let number = ModuleNumber { generation: 1, index: Some(3) };
        spaces.find(&folder, 7, CODE).unwrap().module = Some(number);
        spaces.spaces.get_mut(&7).unwrap().patience = Duration::MAX;
        std::fs::remove_dir_all(&folder).unwrap();
        proc.process(7, &[("/bin/sh", shell), ("/lib/later.so", shell)]);
        assert!(spaces.find(&folder, 7, CODE + 0x10000).is_none(), "asked only a moment ago");
        spaces.spaces.get_mut(&7).unwrap().patience = Duration::ZERO;
        assert!(spaces.find(&folder, 7, CODE + 0x10000).unwrap().module.is_none());
        assert_eq!(spaces.find(&folder, 7, CODE).unwrap().module, Some(number));
        assert_eq!(spaces.ranges, 3, "two files and the vdso");
    }

    #[test]
    fn memory_is_bounded() {
        let proc = FakeProc::new();
        let mut spaces = AddressSpaces::default();
        let lines: String =
            (0..20_000u64).map(|n| format!("{:x}-{:x} r-xp 0 00:00 0 \n", n << 12, (n + 1) << 12)).collect();
        for tgid in 1..=20 {
            let folder = proc.path().join(tgid.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("maps"), &lines).unwrap();
            spaces.read(&folder, tgid);
            assert!(spaces.ranges <= RANGES && spaces.ranges >= RANGES_OF_PROCESS);
        }
        assert_eq!(spaces.spaces.len(), 4, "sixteen fit, then all but the last were forgotten");
    }
}
