//! Finds the unwind information of one instruction in a file: `.eh_frame` through its search table, reading only the
//! entries that the search visits (libraries of 100 MB have 5 MB of it), or all of `.debug_frame` if a file has
//! nothing else.

use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EndianSlice, LittleEndian, UnwindContext, UnwindOffset,
    UnwindSection, Vendor,
};

use super::unwind_row::Row;
use crate::elf::{Elf, Machine};

type Bytes<'b> = EndianSlice<'b, LittleEndian>;

/// The largest entry that is read; the largest seen has 12 KB, most have 50 bytes.
const ENTRY_LIMIT: u64 = 64 << 10;
/// Bytes of an entry that are read at first.
const ENTRY_GUESS: u64 = 256;
/// The largest common part (CIE); usual ones have about 24 bytes. Each entry of a section may name another one, and
/// each is read.
const COMMON_LIMIT: u32 = 256;
/// The largest section without a search table that is read.
const SECTION_LIMIT: u64 = 16 << 20;
/// When at most this many entries of the search table are left, they are read at once.
const TABLE_CHUNK: u64 = 256;
/// Pairs of address and entry, both 32-bit and relative to the table: what every linker writes.
const TABLE_ENCODING: u8 = 0x3b;
const COUNT_ENCODING: u8 = 0x03;

/// How much may be read for one stack, so that no file can make unwinding slow.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Bytes of entries left.
    pub(crate) entries: u64,
    /// Sections without a search table left.
    pub(crate) sections: u32,
    /// Something was not read because the limit was reached.
    pub(crate) refused: bool,
}

impl Budget {
    fn entry(&mut self, bytes: u64) -> Option<()> {
        let left = self.entries.checked_sub(bytes);
        self.refused |= left.is_none();
        self.entries = left?;
        Some(())
    }

    pub(crate) fn section(&mut self) -> Option<()> {
        let left = self.sections.checked_sub(1);
        self.refused |= left.is_none();
        self.sections = left?;
        Some(())
    }
}

/// The row for an address of a file with a search table.
pub(crate) fn searched(elf: &Elf<'_>, address: u64, budget: &mut Budget) -> Option<Row> {
    let (_, entry_address) = search(elf, address)?;
    let mut entry = entry_at(elf, entry_address, budget)?;
    let distance = u32::from_le_bytes(*entry.get(4..)?.first_chunk()?);
    let common_address = entry_address.checked_add(4)?.checked_sub(u64::from(distance))?;
    // Common part and entry, one after the other, form a small section; addresses are relative to where the entry
    // was.
    let mut section = entry_at(elf, common_address, budget)?;
    let common_size = section.len();
    entry.get_mut(4..8)?.copy_from_slice(&u32::try_from(common_size + 4).ok()?.to_le_bytes());
    section.append(&mut entry);
    let bases = BaseAddresses::default().set_eh_frame(entry_address.wrapping_sub(common_size as u64));
    row(&eh_frame(&section, elf.machine), &bases, common_size, address)
}

fn eh_frame(bytes: &[u8], machine: Machine) -> EhFrame<Bytes<'_>> {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(vendor(machine));
    section
}

fn debug_frame(bytes: &[u8], machine: Machine) -> DebugFrame<Bytes<'_>> {
    let mut section = DebugFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(vendor(machine));
    section
}

fn vendor(machine: Machine) -> Vendor {
    match machine {
        Machine::X86_64 => Vendor::Default,
        Machine::Aarch64 => Vendor::AArch64,
    }
}

fn row<'b, S: UnwindSection<Bytes<'b>>>(
    section: &S,
    bases: &BaseAddresses,
    offset: usize,
    address: u64,
) -> Option<Row> {
    let fde = section.fde_from_offset(bases, S::Offset::from(offset), S::cie_from_offset).ok()?;
    let mut context = UnwindContext::new();
    let found = fde.unwind_info_for_address(section, bases, &mut context, address).ok()?;
    Row::new(section, &fde, found)
}

/// Where the function with this address begins, by the search table. Also stripped files have it.
pub(crate) fn function_begin(elf: &Elf<'_>, address: u64) -> Option<u64> {
    search(elf, address).map(|(begin, _)| begin)
}

/// The entry that may describe `address`, the last one that begins at or before it: where its function begins, and the
/// address of the entry.
fn search(elf: &Elf<'_>, address: u64) -> Option<(u64, u64)> {
    let (header, size) = elf.unwind_header()?;
    let what = "the search table of the unwind information";
    let start = elf.loaded(header, 16, what).ok()?;
    let [1, pointer, COUNT_ENCODING, TABLE_ENCODING, rest @ ..] = start.as_slice() else { return None };
    let skipped = match pointer & 0x0f {
        0x03 | 0x0b => 4,
        0x04 | 0x0c => 8,
        _ => return None,
    };
    let count = u64::from(u32::from_le_bytes(*rest.get(skipped..)?.first_chunk()?));
    let first = 4 + skipped as u64 + 4;
    let count = count.min(size.checked_sub(first)? / 8);
    let wanted = i32::try_from(address.wrapping_sub(header).cast_signed()).ok()?;
    let read =
        |at: u64, entries: u64| elf.loaded(header.checked_add(first + 8 * at)?, 8 * entries, what).ok();
    let begin = |entry: &[u8]| entry.first_chunk().map(|b| i32::from_le_bytes(*b));

    // Entry `low` begins at or before the address, entry `high` after it.
    let (mut low, mut high) = (0, count);
    while high - low > TABLE_CHUNK {
        let middle = low + (high - low) / 2;
        if begin(&read(middle, 1)?)? <= wanted { low = middle } else { high = middle }
    }
    let entries = read(low, high - low)?;
    let found =
        entries.chunks_exact(8).take_while(|entry| begin(entry).is_some_and(|b| b <= wanted)).last()?;
    let entry = i32::from_le_bytes(*found.get(4..)?.first_chunk()?);
    let at = |distance: i32| header.wrapping_add_signed(i64::from(distance));
    Some((at(begin(found)?), at(entry)))
}

/// The bytes of an entry, including its length field.
fn entry_at(elf: &Elf<'_>, address: u64, budget: &mut Budget) -> Option<Vec<u8>> {
    let what = "an entry of the unwind information";
    let mut bytes = elf.loaded(address, ENTRY_GUESS, what).ok()?;
    let size = 4 + u64::from(u32::from_le_bytes(*bytes.first_chunk()?));
    // zero ends a section; the largest number means a 64-bit length, which no compiler writes
    if size == 4 || size > ENTRY_LIMIT {
        return None;
    }
    budget.entry(size)?;
    if size > bytes.len() as u64 {
        bytes = elf.loaded(address, size, what).ok()?;
    }
    bytes.truncate(size as usize);
    (bytes.len() as u64 == size).then_some(bytes)
}

/// A section without a search table, kept as a whole.
#[derive(Debug)]
pub(crate) struct Listed {
    machine: Machine,
    is_debug: bool,
    bases: BaseAddresses,
    bytes: Vec<u8>,
    /// Start and end of each function and the offset of its entry, sorted.
    entries: Vec<(u64, u64, usize)>,
}

impl Listed {
    /// `.eh_frame` if it has no search table, else `.debug_frame`; `None` if there is neither, or it is too large.
    pub(crate) fn read(elf: &Elf<'_>) -> Option<Self> {
        let named = |name: &[u8]| elf.section_up_to(name, SECTION_LIMIT).ok().flatten();
        let plain = if elf.unwind_header().is_none() { named(b".eh_frame") } else { None };
        let is_debug = plain.is_none();
        let (address, bytes) = plain.or_else(|| named(b".debug_frame"))?;
        let bases = BaseAddresses::default().set_eh_frame(address);
        let mut entries = if is_debug {
            list(&debug_frame(&bytes, elf.machine), &bases, &bytes)
        } else {
            list(&eh_frame(&bytes, elf.machine), &bases, &bytes)
        };
        entries.sort_unstable();
        Some(Self { machine: elf.machine, is_debug, bases, bytes, entries })
    }

    /// Its memory in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<(u64, u64, usize)>()
    }

    pub(crate) fn row(&self, address: u64, budget: &mut Budget) -> Option<Row> {
        let after = self.entries.partition_point(|entry| entry.0 <= address);
        let &(_, end, offset) = self.entries.get(after.checked_sub(1)?)?;
        let size = u32::from_le_bytes(*self.bytes.get(offset..)?.first_chunk()?);
        if address >= end || u64::from(size) > ENTRY_LIMIT {
            return None;
        }
        budget.entry(u64::from(size))?;
        if self.is_debug {
            row(&debug_frame(&self.bytes, self.machine), &self.bases, offset, address)
        } else {
            row(&eh_frame(&self.bytes, self.machine), &self.bases, offset, address)
        }
    }
}

/// All entries of a section, up to the first invalid one.
fn list<'b, S: UnwindSection<Bytes<'b>>>(
    section: &S,
    bases: &BaseAddresses,
    bytes: &[u8],
) -> Vec<(u64, u64, usize)> {
    let mut found = Vec::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let parsed = partial.parse(|section, bases, offset| {
            let at = UnwindOffset::into(offset);
            let size = bytes.get(at..).and_then(<[u8]>::first_chunk).map(|b| u32::from_le_bytes(*b));
            if size.is_none_or(|size| size > COMMON_LIMIT) {
                return Err(gimli::Error::NoUnwindInfoForAddress);
            }
            section.cie_from_offset(bases, offset)
        });
        if let Ok(fde) = parsed {
            found.push((fde.initial_address(), fde.end_address(), fde.offset()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::ReplacedReturn;
    use crate::stack::registers::{Registers, StackEnd};
    use crate::stack::unwind_row::{Known, StackCopy};

    /// A section with one common part and one entry, for a function of 64 bytes at 0x1000.
    fn section(common: &[u8], entry: &[u8]) -> (Vec<u8>, usize) {
        let record = |id: u32, contents: &[u8]| {
            let mut record = id.to_le_bytes().to_vec();
            record.extend_from_slice(contents);
            record.resize(record.len().next_multiple_of(8) + 4, 0);
            let mut sized = (record.len() as u32).to_le_bytes().to_vec();
            sized.append(&mut record);
            sized
        };
        let mut bytes = record(0, common);
        let offset = bytes.len();
        let mut contents = 0x1000u64.to_le_bytes().to_vec();
        contents.extend_from_slice(&0x40u64.to_le_bytes());
        contents.extend_from_slice(entry);
        bytes.extend(record(offset as u32 + 4, &contents));
        (bytes, offset)
    }

    /// Version 1, no augmentation, code alignment 4, data alignment -8, return address in x30; the frame begins at
    /// sp.
    const AARCH64_COMMON: &[u8] = &[1, 0, 4, 0x78, 30, 0x0c, 31, 0];
    /// After one instruction: signed return address; a frame of 32 bytes, x29 at its bottom and x30 above.
    const AARCH64_ENTRY: &[u8] = &[0x41, 0x2d, 0x0e, 32, 0x80 | 29, 4, 0x80 | 30, 3];

    fn aarch64_step(ip: u64, stack: &[u64]) -> Result<Known, StackEnd> {
        let (bytes, offset) = section(AARCH64_COMMON, AARCH64_ENTRY);
        let section = eh_frame(&bytes, Machine::Aarch64);
        let found = row(&section, &BaseAddresses::default(), offset, ip - 1).expect("a row");
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let registers = Registers { ip, sp: 0x8000, fp: 0x8000, lr: 0x2222 };
        let replaced = [ReplacedReturn { entered_at: 0x8020, address: 0x7777 }];
        let is_probed = bytes[8..].starts_with(&TRAMPOLINE.to_le_bytes());
        let replaced = if is_probed { &replaced[..] } else { &[] };
        let copy = StackCopy { start: 0x8000, bytes: &bytes, replaced };
        found.step(&Known::new(Machine::Aarch64, registers), &copy)
    }

    const TRAMPOLINE: u64 = 0x00a5_0000_0000_5550;

    #[test]
    fn an_aarch64_return_address_that_a_probe_has_replaced_is_known_by_the_stack_pointer() {
        let caller = aarch64_step(0x1010, &[0x9000, TRAMPOLINE, 0, 0]).unwrap();
        assert_eq!(caller.ip, 0x7777);
    }

    #[test]
    fn the_signature_of_an_aarch64_return_address_is_removed() {
        let signed = 0x00a5_0000_0000_4568;
        let caller = aarch64_step(0x1010, &[0x9000, signed, 0, 0]).unwrap();
        assert_eq!(caller.ip, 0x4568);
        let above = StackCopy { start: 0x9000, bytes: &[0u8; 16], replaced: &[] };
        // the restored frame pointer leads to a frame record whose return address is 0
        assert_eq!(caller.by_frame_pointer(&above).unwrap_err(), StackEnd::Complete);
        assert_eq!(aarch64_step(0x1010, &[0x9000]).unwrap_err(), StackEnd::CopyEnds);
    }

    #[test]
    fn a_caller_that_is_not_above_its_callee_ends_the_stack() {
        // at its first instruction the function has no frame yet: its caller would be at the same address
        assert_eq!(aarch64_step(0x1004, &[0; 4]).unwrap_err(), StackEnd::Lost);
    }

    #[test]
    fn instructions_outside_of_the_function_have_no_row() {
        let (bytes, offset) = section(AARCH64_COMMON, AARCH64_ENTRY);
        let section = eh_frame(&bytes, Machine::Aarch64);
        let has = |address| row(&section, &BaseAddresses::default(), offset, address).is_some();
        assert_eq!([0xfff, 0x1000, 0x103f, 0x1040].map(has), [false, true, true, false]);
    }
}
