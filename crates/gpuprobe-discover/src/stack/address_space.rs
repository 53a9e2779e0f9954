//! Caches the executable ranges of processes, because an exited process cannot be read any more and its last stacks
//! are often unwound after its exit.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::{CodeRange, Mapping, ProcessMaps, code_ranges};

/// The most ranges kept of one process. PyTorch has some hundreds.
const RANGES_OF_PROCESS: usize = 16 << 10;
/// The most ranges kept of all processes, about 200 bytes each. Beyond this number all processes but the current one
/// are dropped.
const RANGES: usize = 256 << 10;
/// The mappings of a process are not read again until this many times the duration of the last read has passed.
/// Otherwise invalid stacks would have them read over and over.
const PATIENCE: u32 = 20;

/// An executable range and the module of its file.
#[derive(Debug)]
pub(crate) struct MappedCode {
    pub(crate) range: CodeRange,
    /// The module; `None` if it was not looked up yet.
    pub(crate) module: Option<ModuleNumber>,
}

/// A module of one generation of the module cache; earlier generations are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModuleNumber {
    pub(crate) generation: u64,
    /// `None` for a file that cannot be opened.
    pub(crate) index: Option<u32>,
}

#[derive(Debug)]
struct Space {
    ranges: Vec<MappedCode>,
    read: Instant,
    patience: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct AddressSpaces {
    spaces: HashMap<u32, Space>,
    range_count: usize,
}

impl AddressSpaces {
    /// Reads the mappings of a process again. If the process has exited, the cached ones stay.
    pub(crate) fn read(&mut self, folder: &Path, tgid: u32) {
        let Ok(maps) = ProcessMaps::of(folder, tgid) else {
            if let Some(space) = self.spaces.get_mut(&tgid) {
                space.read = Instant::now();
            }
            return;
        };
        self.replace(&maps);
    }

    /// Uses these mappings of a process.
    pub(crate) fn replace(&mut self, maps: &ProcessMaps) {
        let (tgid, begun) = (maps.pid, Instant::now());
        let mut old = self.take(tgid);
        let mut ranges: Vec<_> = code_ranges(&maps.text)
            .take(RANGES_OF_PROCESS)
            .map(|range| MappedCode { range, module: None })
            .collect();
        ranges.sort_unstable_by_key(|code| code.range.start);
        for code in &mut ranges {
            let same = old.binary_search_by_key(&code.range.start, |code| code.range.start);
            code.module = same
                .ok()
                .and_then(|at| old.get_mut(at))
                .filter(|old| old.range == code.range)
                .and_then(|old| old.module);
        }
        if self.range_count + ranges.len() > RANGES {
            self.spaces.clear();
            self.range_count = 0;
        }
        self.range_count += ranges.len();
        let took = maps.took + begun.elapsed();
        let space = Space { ranges, read: Instant::now(), patience: took * PATIENCE };
        self.spaces.insert(tgid, space);
    }

    /// The range at an address of a process. The mappings are read again if it is not known.
    pub(crate) fn find(&mut self, folder: &Path, tgid: u32, address: u64) -> Option<&mut MappedCode> {
        if self.position(tgid, address).is_none() {
            if self.spaces.get(&tgid).is_some_and(|space| space.read.elapsed() < space.patience) {
                return None;
            }
            self.read(folder, tgid);
        }
        let at = self.position(tgid, address)?;
        self.spaces.get_mut(&tgid)?.ranges.get_mut(at)
    }

    /// The file mapped at an address of a process, if known.
    pub(crate) fn mapping(&self, tgid: u32, address: u64) -> Option<&Mapping> {
        let at = self.position(tgid, address)?;
        self.spaces.get(&tgid)?.ranges.get(at)?.range.file.as_ref()
    }

    fn position(&self, tgid: u32, address: u64) -> Option<usize> {
        let ranges = &self.spaces.get(&tgid)?.ranges;
        let at = ranges.partition_point(|code| code.range.start <= address).checked_sub(1)?;
        (address < ranges.get(at)?.range.end).then_some(at)
    }

    pub(crate) fn forget(&mut self, tgid: u32) {
        self.take(tgid);
    }

    fn take(&mut self, tgid: u32) -> Vec<MappedCode> {
        let ranges = self.spaces.remove(&tgid).map(|space| space.ranges).unwrap_or_default();
        self.range_count -= ranges.len();
        ranges
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
        let code = spaces.find(&folder, 7, CODE).expect("kept");
        assert_eq!(code.range.file.as_ref().unwrap().file.path, Path::new("/bin/sh"));
        spaces.forget(7);
        assert!(spaces.find(&folder, 7, CODE).is_none());
        assert_eq!(spaces.range_count, 0);
    }

    #[test]
    fn a_library_loaded_later_is_found_and_cached_modules_stay() {
        let proc = FakeProc::new();
        let shell = Path::new("/bin/sh");
        let folder = proc.process(7, &[("/bin/sh", shell)]);
        let mut spaces = AddressSpaces::default();
        let number = ModuleNumber { generation: 1, index: Some(3) };
        spaces.find(&folder, 7, CODE).unwrap().module = Some(number);
        spaces.spaces.get_mut(&7).unwrap().patience = Duration::MAX;
        std::fs::remove_dir_all(&folder).unwrap();
        proc.process(7, &[("/bin/sh", shell), ("/lib/later.so", shell)]);
        assert!(spaces.find(&folder, 7, CODE + 0x10000).is_none(), "read only a moment ago");
        spaces.spaces.get_mut(&7).unwrap().patience = Duration::ZERO;
        assert!(spaces.find(&folder, 7, CODE + 0x10000).unwrap().module.is_none());
        assert_eq!(spaces.find(&folder, 7, CODE).unwrap().module, Some(number));
        assert_eq!(spaces.range_count, 3, "two files and the vdso");
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
            assert!(spaces.range_count <= RANGES && spaces.range_count >= RANGES_OF_PROCESS);
        }
        assert_eq!(spaces.spaces.len(), 4, "sixteen fit, then all but the last were dropped");
    }
}
