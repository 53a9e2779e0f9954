//! Unwinds a copy of a stack into return addresses without frame pointers: the unwind information of each function
//! says where its caller is. A file is opened when a return address is new and is not kept open, so that no file
//! system is kept busy. Rows of unwind information are cached by instruction.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gpuprobe_event::{Api, Frame};

use super::address_space::{AddressSpaces, ModuleNumber};
use super::export_thunks::ExportThunks;
use super::registers::{Registers, ReplacedReturn, StackEnd, ThreadRegisters};
use super::symbolize::Symbolizer;
use super::unwind_row::{Known, Row, StackCopy};
use super::unwind_table::{Budget, Listed, function_begin, searched};
use crate::access::{FileKey, RegularFile};
use crate::elf::{Elf, Machine};
use crate::process::{Mapping, ProcessMaps, lasting_path, open_mapped};

/// The most frames of one stack that are unwound, counted from the innermost.
pub const FRAME_LIMIT: usize = 128;
/// The most files, and instructions of all files, that are cached; beyond these numbers all are dropped.
const MODULE_LIMIT: usize = 4096;
const ROW_LIMIT: usize = 128 << 10;
/// The most bytes cached of sections without a search table.
const LISTED_LIMIT: usize = 64 << 20;
/// The most bytes of entries read for one stack: 128 frames with the largest entries that compilers write.
const ENTRY_BYTES: u64 = 256 << 10;
/// The most sections without a search table read for one stack; the next stack reads the next ones.
const SECTIONS: u32 = 2;

/// Return addresses, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    pub addresses: Vec<u64>,
    /// The address on the stack of each return address; `None` if it was in a register or computed.
    pub slots: Vec<Option<u64>>,
    pub end: StackEnd,
}

/// Unwinds stacks of many processes.
#[derive(Debug)]
pub struct Unwinder {
    machine: Machine,
    spaces: AddressSpaces,
    modules: Modules,
}

impl Default for Unwinder {
    fn default() -> Self {
        let machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };
        Self { machine, spaces: AddressSpaces::default(), modules: Modules::default() }
    }
}

impl Unwinder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the mappings of a process. Call it when a process is first seen and when it has loaded a library, so
    /// that its stacks can be unwound if it exits soon.
    pub fn observe(&mut self, proc_root: &Path, tgid: u32) {
        self.spaces.read(&proc_root.join(tgid.to_string()), tgid);
    }

    /// As [`Unwinder::observe`], with mappings that were read already.
    pub fn observe_maps(&mut self, maps: &ProcessMaps) {
        self.spaces.replace(maps);
    }

    /// Drops a process. Call it when the process has executed another program, or has exited and its last stack was
    /// unwound.
    pub fn forget(&mut self, tgid: u32) {
        self.spaces.forget(tgid);
    }

    /// Unwinds one stack. `stack` has the bytes from `registers.sp` upwards, as many as there are.
    pub fn unwind(&mut self, proc_root: &Path, tgid: u32, registers: Registers, stack: &[u8]) -> Stack {
        self.unwind_probed(proc_root, tgid, registers, stack, &[])
    }

    /// As [`Unwinder::unwind`], with return addresses that return probes have replaced.
    pub fn unwind_probed(
        &mut self,
        proc_root: &Path,
        tgid: u32,
        registers: Registers,
        stack: &[u8],
        replaced: &[ReplacedReturn],
    ) -> Stack {
        let copy = StackCopy { start: registers.sp, bytes: stack, replaced };
        self.unwind_from(proc_root, tgid, Known::new(self.machine, registers), &copy, |_| ())
    }

    /// Unwinds the stack of a thread that is at any instruction. Also returns, for each frame, the registers that calls
    /// preserve, as they will be when it continues: variables of the frame are in them.
    pub fn unwind_thread(
        &mut self,
        proc_root: &Path,
        tgid: u32,
        thread: &ThreadRegisters,
        stack: &[u8],
        replaced: &[ReplacedReturn],
    ) -> (Stack, Vec<Vec<Option<u64>>>) {
        let copy = StackCopy { start: thread.registers.sp, bytes: stack, replaced };
        let mut preserved = Vec::new();
        let known = Known::of_thread(self.machine, thread);
        let unwound = self
            .unwind_from(proc_root, tgid, known, &copy, |known| preserved.push(known.preserved().collect()));
        (unwound, preserved)
    }

    fn unwind_from(
        &mut self,
        proc_root: &Path,
        tgid: u32,
        mut known: Known,
        copy: &StackCopy<'_>,
        mut visit: impl FnMut(&Known),
    ) -> Stack {
        let folder = proc_root.join(tgid.to_string());
        let (mut addresses, mut slots) = (vec![known.ip], vec![None]);
        visit(&known);
        let mut budget = Budget { entries: ENTRY_BYTES, sections: SECTIONS, refused: false };
        let end = loop {
            if addresses.len() == FRAME_LIMIT {
                break StackEnd::TooDeep;
            }
            match self.caller(&folder, tgid, &known, copy, &mut budget) {
                Ok(caller) => known = caller,
                Err(end) => break end,
            }
            // an address outside of code cannot be a return address
            if self.spaces.find(&folder, tgid, known.lookup()).is_none() {
                break StackEnd::Lost;
            }
            addresses.push(known.ip);
            slots.push(known.slot);
            visit(&known);
        };
        Stack { addresses, slots, end }
    }

    fn caller(
        &mut self,
        folder: &Path,
        tgid: u32,
        known: &Known,
        stack: &StackCopy<'_>,
        budget: &mut Budget,
    ) -> Result<Known, StackEnd> {
        match self.row(folder, tgid, known.lookup(), budget)? {
            Some(row) => row.step(known, stack),
            None => known.by_frame_pointer(stack),
        }
    }

    /// The row for an address; `None` if the code has no unwind information. `Lost` if the code may have some that
    /// cannot be read: the frame pointer is not used then, because the code may not keep one, and wrong frames would
    /// result.
    fn row(
        &mut self,
        folder: &Path,
        tgid: u32,
        address: u64,
        budget: &mut Budget,
    ) -> Result<Option<Rc<Row>>, StackEnd> {
        let Some(code) = self.code_at(folder, tgid, address) else {
            return self.spaces.find(folder, tgid, address).map(|_| None).ok_or(StackEnd::Lost);
        };
        let index = code.module.ok_or(StackEnd::Lost)?;
        if let Some(row) = self.modules.rows.get(&(index, code.offset)) {
            return Ok(row.clone());
        }
        let mapping = self.spaces.mapping(tgid, address).ok_or(StackEnd::Lost)?;
        let file = self.modules.open(folder, mapping, index).ok_or(StackEnd::Lost)?;
        let row = self.modules.read_row(index, &file, self.machine, code.offset, budget).map(Rc::new);
        // a search that hit the limit may succeed with the next stack
        if budget.refused {
            return Err(StackEnd::NotYet);
        }
        self.modules.rows.insert((index, code.offset), row.clone());
        Ok(row)
    }

    /// The file of an address of a process; `None` if it is in no file.
    fn code_at(&mut self, folder: &Path, tgid: u32, address: u64) -> Option<Code> {
        self.modules.make_room();
        let mapped = self.spaces.find(folder, tgid, address)?;
        let mapping = mapped.range.file.as_ref()?;
        let offset = mapped.range.offset.checked_add(address - mapped.range.start)?;
        let generation = self.modules.generation;
        let number = match mapped.module.filter(|number| number.generation == generation) {
            Some(number) => number,
            None => ModuleNumber { generation, index: self.modules.of_mapping(folder, mapping) },
        };
        mapped.module = Some(number);
        Some(Code { offset, module: number.index })
    }

    /// Resolves addresses of a process; inlined functions become separate frames. For an exited process the files are
    /// named, and the functions if its files can still be read.
    pub fn frames(
        &mut self,
        symbolizer: &mut Symbolizer,
        proc_root: &Path,
        tgid: u32,
        addresses: &[u64],
    ) -> Vec<Frame> {
        let folder = proc_root.join(tgid.to_string());
        let mut frames = Vec::with_capacity(addresses.len());
        for &address in addresses {
            // The call is before its return address.
            let lookup = address.wrapping_sub(1);
            let code = self.code_at(&folder, tgid, lookup);
            let mapping = self.spaces.mapping(tgid, lookup);
            let module = mapping.and_then(|mapping| mapping.file.path.file_name());
            let module = module.map(|name| name.to_string_lossy().into_owned());
            let named = code.zip(mapping).and_then(|(code, mapping)| {
                let index = code.module?;
                let key = self.modules.known.get(index as usize)?.key;
                symbolizer.remembered(key, code.offset, || self.modules.open(&folder, mapping, index))
            });
            match named.filter(|named| !named.is_empty()) {
                Some(named) => frames.extend(named.iter().map(|named| named.frame(address, module.clone()))),
                None => frames.push(Frame { address, module, ..Frame::default() }),
            }
        }
        frames
    }
}

/// Functions behind exported thunks.
impl Unwinder {
    /// The export of a GPU library whose function a return address is in, if the export is a thunk that jumps there;
    /// with the bytes from the beginning of the function.
    pub fn export_of(
        &mut self,
        proc_root: &Path,
        tgid: u32,
        address: u64,
        api: Api,
    ) -> Option<(String, u64)> {
        let folder = proc_root.join(tgid.to_string());
        let lookup = address.wrapping_sub(1);
        let code = self.code_at(&folder, tgid, lookup)?;
        let (index, mapping) = (code.module?, self.spaces.mapping(tgid, lookup)?);
        let file = self.modules.open(&folder, mapping, index)?;
        let elf = Elf::parse(&file).ok().filter(|elf| elf.machine == self.machine)?;
        let called = elf.code_address(code.offset)?;
        let begin = function_begin(&elf, called)?;
        let module = self.modules.known.get_mut(index as usize)?;
        let thunks = module.thunks.get_or_insert_with(|| ExportThunks::read(&elf, api));
        Some((thunks.name_of(begin)?.to_owned(), called.wrapping_sub(begin).wrapping_add(1)))
    }
}

struct Code {
    offset: u64,
    module: Option<u32>,
}

#[derive(Debug)]
struct Module {
    key: FileKey,
    /// The path it was last opened by, which may outlive the process.
    path: PathBuf,
    /// Its unwind information if it has no search table; `Some(None)` if it has none.
    listed: Option<Option<Listed>>,
    /// Its exports, if they were needed.
    thunks: Option<ExportThunks>,
}

#[derive(Debug, Default)]
struct Modules {
    known: Vec<Module>,
    by_key: HashMap<FileKey, u32>,
    /// By module and file offset. `None` if the file has no row for it.
    rows: HashMap<(u32, u64), Option<Rc<Row>>>,
    listed_bytes: usize,
    generation: u64,
}

impl Modules {
    fn make_room(&mut self) {
        let full = self.known.len() >= MODULE_LIMIT
            || self.rows.len() >= ROW_LIMIT
            || self.listed_bytes >= LISTED_LIMIT;
        if full {
            *self = Self { generation: self.generation + 1, ..Self::default() };
        }
    }

    /// The index of the mapped module; `None` if its file cannot be opened.
    fn of_mapping(&mut self, folder: &Path, mapping: &Mapping) -> Option<u32> {
        let (file, path) = open_certain(folder, mapping)?;
        let key = (file.id, file.stamp);
        if let Some(index) = self.by_key.get(&key) {
            return Some(*index);
        }
        let index = u32::try_from(self.known.len()).ok()?;
        self.known.push(Module { key, path, listed: None, thunks: None });
        self.by_key.insert(key, index);
        Some(index)
    }

    /// The file of a module, if it has not changed.
    fn open(&self, folder: &Path, mapping: &Mapping, index: u32) -> Option<RegularFile> {
        let module = self.known.get(index as usize)?;
        let same = |file: &RegularFile| (file.id, file.stamp) == module.key;
        let mapped = open_certain(folder, mapping).map(|(file, _)| file).filter(same);
        mapped.or_else(|| RegularFile::open(&module.path).ok().filter(same))
    }

    fn read_row(
        &mut self,
        index: u32,
        file: &RegularFile,
        machine: Machine,
        offset: u64,
        budget: &mut Budget,
    ) -> Option<Row> {
        let elf = Elf::parse(file).ok().filter(|elf| elf.machine == machine)?;
        let address = elf.code_address(offset)?;
        if let Some(row) = searched(&elf, address, budget) {
            return Some(row);
        }
        let module = self.known.get_mut(index as usize)?;
        if module.listed.is_none() {
            budget.section()?;
            let listed = Listed::read(&elf);
            self.listed_bytes += listed.as_ref().map_or(0, Listed::size);
            module.listed = Some(listed);
        }
        module.listed.as_ref()?.as_ref()?.row(address, budget)
    }
}

/// The mapped file. If the process has exited only the path is left, and by now it may be another file.
fn open_certain(folder: &Path, mapping: &Mapping) -> Option<(RegularFile, PathBuf)> {
    let (file, path) = open_mapped(folder, mapping).ok()?;
    let certain = file.id.inode == mapping.file.inode || folder.join("maps").exists();
    certain.then(|| {
        let path = lasting_path(mapping, &file, path);
        (file, path)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::process::code_ranges;
    use crate::testing::{FakeProc, Xorshift};

    /// Random words, many of which are addresses of code or of the stack, so that unwinding continues for long.
    fn plausible(random: &mut Xorshift, code: &[(u64, u64)], stack: u64) -> u64 {
        let (start, size) = code[random.next() as usize % code.len()];
        match random.next() % 16 {
            0 => random.next(),
            1 | 2 => stack.wrapping_add(8 * (random.next() % 512)),
            _ => start + random.next() % size,
        }
    }

    /// Unwinds a random stack. It only has to return within bounds.
    fn try_one(
        unwinder: &mut Unwinder,
        proc: &Path,
        pid: u32,
        random: &mut Xorshift,
        code: &[(u64, u64)],
    ) -> usize {
        let sp = if random.next().is_multiple_of(8) { random.next() } else { 0x7ffc_0000_0000 };
        let mut word = || plausible(random, code, sp);
        let registers = Registers { ip: word(), sp, fp: word(), lr: word() };
        let bytes: Vec<u8> = (0..512).flat_map(|_| word().to_le_bytes()).collect();
        let stack = unwinder.unwind(proc, pid, registers, &bytes);
        assert_eq!(stack.addresses[0], registers.ip);
        assert!(stack.addresses.len() <= FRAME_LIMIT);
        stack.addresses.len()
    }

    #[test]
    fn unwinding_random_stacks_terminates() {
        let pid = std::process::id();
        let maps = fs::read("/proc/self/maps").unwrap();
        let code: Vec<_> = code_ranges(&maps).map(|range| (range.start, range.end - range.start)).collect();
        let mut unwinder = Unwinder::new();
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        let begin = Instant::now();
        let tries = 3000;
        let frames: usize =
            (0..tries).map(|_| try_one(&mut unwinder, Path::new("/proc"), pid, &mut random, &code)).sum();
        assert!(frames > tries * 3 / 2, "{frames} frames: the stacks are not trivial");
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    }

    /// Builds a small library with its code in the second page of the file.
    fn library(folder: &Path) -> Vec<u8> {
        let (source, library) = (folder.join("source.c"), folder.join("lib.so"));
        let functions: String = (0..20)
            .map(|n| format!("int f{n}(int (*next)(int), int a) {{ int x[{}]; x[0] = next(a); return x[0] + next(x[0]); }}\n", n + 1))
            .collect();
        fs::write(&source, functions).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-g", "-o"])
            .args([&library, &source])
            .status();
        assert!(built.unwrap().success());
        fs::read(library).unwrap()
    }

    #[test]
    fn damaged_and_truncated_files_are_harmless() {
        let folder = tempfile::tempdir().unwrap();
        let whole = library(folder.path());
        let path = folder.path().join("damaged.so");
        let proc = FakeProc::new();
        fs::write(&path, &whole).unwrap();
        proc.process(7, &[("/x/damaged.so", &path)]);
        let code = [(0x7f00_0000_0000, 0x300)];
        let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
        let attempt = |bytes: &[u8], random: &mut Xorshift| {
            fs::write(&path, bytes).unwrap();
            let (mut unwinder, mut symbolizer) = (Unwinder::new(), Symbolizer::new());
            let frames = try_one(&mut unwinder, proc.path(), 7, random, &code);
            let addresses: Vec<u64> = (0..4).map(|_| code[0].0 + random.next() % code[0].1).collect();
            assert!(unwinder.frames(&mut symbolizer, proc.path(), 7, &addresses).len() >= 4);
            frames
        };
        let sound: usize = (0..100).map(|_| attempt(&whole, &mut random)).sum();
        assert!(sound > 150, "{sound} frames: the stacks are not trivial");
        for length in (0..whole.len()).step_by(101) {
            attempt(&whole[..length], &mut random);
        }
        // the headers, and the part with the unwind information, which follows the code
        for _ in 0..600 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.next() % 16 {
                let part = if random.next().is_multiple_of(4) { 0..1024 } else { 0x2000..bytes.len() as u64 };
                let at = part.start + random.next() % (part.end - part.start);
                bytes[at as usize] = random.next() as u8;
            }
            attempt(&bytes, &mut random);
        }
    }

    #[test]
    fn the_module_cache_is_bounded() {
        let mut modules = Modules::default();
        for offset in 0..ROW_LIMIT as u64 {
            modules.make_room();
            modules.rows.insert((0, offset), None);
        }
        assert_eq!((modules.rows.len(), modules.generation), (ROW_LIMIT, 0));
        modules.make_room();
        assert_eq!((modules.rows.len(), modules.generation), (0, 1));
    }
}
