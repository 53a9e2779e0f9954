//! Reads the few parts of an ELF file that discovery needs. Each is read separately: libcuda has 100 MB, its tables
//! less than one. Everything is checked against the file's size before it is used. Files are not mapped, because a
//! process that truncates its file would then kill this program.
//!
//! Of the crate object only the types are used, not its reader: that wants the whole file in memory or keeps all it
//! has read, and has no limit for the length of a name.

use memchr::{memchr, memmem};
use object::LittleEndian as LE;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::pod::{self, Pod};

use crate::access::RegularFile;
use crate::error::Defect;

/// The longest symbol name. Without a limit, a table of unterminated names would be searched to its end for each
/// symbol.
const NAME_LIMIT: usize = 4096;
/// The sections of GPU code. They are loaded, so `strip` keeps them.
const GPU_CODE: [&[u8]; 2] = [b".nv_fatbin", b".nvFatBinSegment"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// `.dynsym`, which the loader uses.
    Dynamic,
    /// `.symtab`, which also has local symbols and is absent from stripped files.
    Full,
}

impl Table {
    /// The type of its section, and what errors call it.
    fn kind(self) -> (elf::SectionType, &'static str) {
        match self {
            Self::Dynamic => (elf::SHT_DYNSYM, "the dynamic symbol table"),
            Self::Full => (elf::SHT_SYMTAB, "the symbol table"),
        }
    }
}

/// A defined symbol.
#[derive(Debug)]
pub(crate) struct ElfSymbol {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// False for indirect functions (IFUNC): their symbol is the address of the resolver, which the loader runs once.
    pub(crate) is_function: bool,
}

#[derive(Debug)]
pub(crate) struct Elf<'f> {
    file: &'f RegularFile,
    pub(crate) machine: Machine,
    /// An executable, as opposed to a plain shared library.
    pub(crate) is_program: bool,
    segments: Vec<ProgramHeader64<LE>>,
    sections: Vec<SectionHeader64<LE>>,
    section_names: usize,
}

impl<'f> Elf<'f> {
    pub(crate) fn parse(file: &'f RegularFile) -> Result<Self, Defect> {
        let bytes = file.read_some(0, size_of::<FileHeader64<LE>>() as u64, "the file header")?;
        let machine = identify(&bytes)?;
        let Ok((header, _)) = pod::from_bytes::<FileHeader64<LE>>(&bytes) else {
            return Err(Defect::malformed("the file header is cut off"));
        };
        let segments = segments(file, header)?;
        let (sections, section_names) = sections(file, header)?;
        let interpreted = segments.iter().any(|segment| segment.p_type.get(LE) == elf::PT_INTERP);
        let is_program = header.e_type.get(LE) == elf::ET_EXEC || interpreted;
        Ok(Self { file, machine, is_program, segments, sections, section_names })
    }

    /// Whether the file contains code for GPUs.
    pub(crate) fn has_gpu_code(&self) -> Result<bool, Defect> {
        self.has_section(&GPU_CODE)
    }

    /// Whether there is a section with one of these names.
    fn has_section(&self, names: &[&[u8]]) -> Result<bool, Defect> {
        let Some(section) = self.sections.get(self.section_names) else { return Ok(false) };
        let strings = self.contents(section, "the section names")?;
        let named = |section: &SectionHeader64<LE>| string(&strings, section.sh_name.get(LE));
        Ok(self.sections.iter().filter_map(named).any(|name| names.contains(&name)))
    }

    pub(crate) fn soname(&self) -> Result<Option<String>, Defect> {
        let Some(section) = self.section_of_type(elf::SHT_DYNAMIC) else { return Ok(None) };
        let bytes = self.contents(section, "the dynamic section")?;
        let entries = all::<Dyn64<LE>>(&bytes);
        let Some(entry) = entries.iter().find(|entry| entry.d_tag.get(LE) == elf::DT_SONAME) else {
            return Ok(None);
        };
        let strings = self.linked(section)?;
        let start = entry.d_val.get(LE);
        if start >= strings.sh_size.get(LE) {
            return Err(Defect::malformed("the SONAME lies outside the string table"));
        }
        let offset = strings.sh_offset.get(LE).saturating_add(start);
        let bytes = self.file.read_some(offset, NAME_LIMIT as u64, "the SONAME")?;
        Ok(string(&bytes, 0).map(|name| String::from_utf8_lossy(name).into_owned()))
    }

    /// The size of a symbol table with its string table; 0 if the file has no such table.
    pub(crate) fn table_size(&self, table: Table) -> u64 {
        let Some(section) = self.section_of_type(table.kind().0) else { return 0 };
        let names = self.linked(section).map_or(0, |names| names.sh_size.get(LE));
        section.sh_size.get(LE).saturating_add(names)
    }

    /// The bytes of a symbol table and of its string table; empty if the file has no such table.
    fn table(&self, table: Table) -> Result<(Vec<u8>, Vec<u8>), Defect> {
        let (kind, what) = table.kind();
        let Some(section) = self.section_of_type(kind) else { return Ok(Default::default()) };
        if section.sh_entsize.get(LE) != size_of::<Sym64<LE>>() as u64 {
            return Err(Defect::malformed(format!("{what} has entries of the wrong size")));
        }
        let bytes = self.contents(section, what)?;
        Ok((bytes, self.contents(self.linked(section)?, "the names of the symbols")?))
    }

    /// Whether the file imports a function of this name.
    pub(crate) fn imports(&self, name: &[u8]) -> Result<bool, Defect> {
        let (bytes, strings) = self.table(Table::Dynamic)?;
        // most files do not have the name at all, and it is found much faster in the text than by symbol
        if memmem::find(&strings, name).is_none() {
            return Ok(false);
        }
        let is_it = |symbol: &Sym64<LE>| {
            symbol.st_shndx.get(LE) == elf::SHN_UNDEF
                && string(&strings, symbol.st_name.get(LE)) == Some(name)
        };
        Ok(all::<Sym64<LE>>(&bytes).iter().any(is_it))
    }

    /// Defined symbols of a table whose names are wanted; none if the file has no such table.
    pub(crate) fn symbols(
        &self,
        table: Table,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<ElfSymbol>, Defect> {
        let (bytes, strings) = self.table(table)?;
        let symbol = |symbol: &Sym64<LE>| {
            if symbol.st_shndx.get(LE) == elf::SHN_UNDEF || symbol.st_value.get(LE) == 0 {
                return None;
            }
            let name = string(&strings, symbol.st_name.get(LE))?;
            // Linkers append the version to some names of the full table: `cudaMalloc@@libcudart.so.12`.
            let name = &name[..memchr(b'@', name).unwrap_or(name.len())];
            wanted(name).then(|| ElfSymbol {
                name: String::from_utf8_lossy(name).into_owned(),
                address: symbol.st_value.get(LE),
                size: symbol.st_size.get(LE),
                is_function: symbol.st_type() == elf::STT_FUNC,
            })
        };
        Ok(all::<Sym64<LE>>(&bytes).iter().filter_map(symbol).collect())
    }

    /// The file offset of the code at an address; `None` unless it is executable and in the file.
    pub(crate) fn code_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let executable =
                segment.p_type.get(LE) == elf::PT_LOAD && segment.p_flags.get(LE).contains(elf::PF_X);
            let within = address.checked_sub(segment.p_vaddr.get(LE))?;
            if !executable || within >= segment.p_filesz.get(LE) {
                return None;
            }
            segment.p_offset.get(LE).checked_add(within).filter(|&offset| offset < self.file.stamp.size)
        })
    }

    /// The file offset of a variable at an address; `None` unless it is writable and in the file.
    pub(crate) fn data_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let writable =
                segment.p_type.get(LE) == elf::PT_LOAD && segment.p_flags.get(LE).contains(elf::PF_W);
            let within = address.checked_sub(segment.p_vaddr.get(LE))?;
            (writable && within < segment.p_filesz.get(LE))
                .then(|| segment.p_offset.get(LE).wrapping_add(within))
        })
    }

    /// The inverse of [`Elf::code_offset`].
    pub(crate) fn code_address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let loaded =
                segment.p_type.get(LE) == elf::PT_LOAD && segment.p_flags.get(LE).contains(elf::PF_X);
            let within = offset.checked_sub(segment.p_offset.get(LE))?;
            (loaded && within < segment.p_filesz.get(LE))
                .then(|| segment.p_vaddr.get(LE).wrapping_add(within))
        })
    }

    /// The address of the page of code that is mapped from an offset. Code may begin anywhere in its first page.
    pub(crate) fn page_address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let loaded =
                segment.p_type.get(LE) == elf::PT_LOAD && segment.p_flags.get(LE).contains(elf::PF_X);
            let begin = segment.p_offset.get(LE);
            let end = begin.checked_add(segment.p_filesz.get(LE))?;
            let pages = begin & !0xfff..end;
            (loaded && pages.contains(&offset))
                .then(|| segment.p_vaddr.get(LE).wrapping_sub(begin).wrapping_add(offset))
        })
    }

    /// The address and size of the search table of the unwind information (`.eh_frame_hdr`).
    pub(crate) fn unwind_header(&self) -> Option<(u64, u64)> {
        let found = self.segments.iter().find(|s| s.p_type.get(LE) == elf::PT_GNU_EH_FRAME)?;
        Some((found.p_vaddr.get(LE), found.p_filesz.get(LE)))
    }

    /// At most `size` bytes loaded at an address, fewer at the end of the segment.
    pub(crate) fn loaded(&self, address: u64, size: u64, what: &'static str) -> Result<Vec<u8>, Defect> {
        let found = self.segments.iter().find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr.get(LE))?;
            let rest = segment.p_filesz.get(LE).checked_sub(within).filter(|&rest| rest > 0)?;
            let offset = segment.p_offset.get(LE).checked_add(within)?;
            (segment.p_type.get(LE) == elf::PT_LOAD).then_some((offset, rest))
        });
        let Some((offset, rest)) = found else {
            return Err(Defect::malformed(format!("{what} is outside the loaded segments")));
        };
        self.file.read_some(offset, size.min(rest), what)
    }

    /// The build id, which is the same for every copy of the file.
    pub(crate) fn build_id(&self) -> Result<Option<Vec<u8>>, Defect> {
        // layout: size of the name, size of the id, type, name, id
        let Some(note) = self.section(b".note.gnu.build-id")? else { return Ok(None) };
        let size = note.get(4..8).map_or(0, |b| usize::from(b[0]));
        let is_id = note.get(..4) == Some(&[4, 0, 0, 0]) && note.get(8..16) == Some(b"\x03\0\0\0GNU\0");
        Ok(note.get(16..16 + size).filter(|id| is_id && !id.is_empty()).map(<[u8]>::to_vec))
    }

    /// The contents of a section; `None` if there is no such section or it is compressed.
    pub(crate) fn section(&self, name: &[u8]) -> Result<Option<Vec<u8>>, Defect> {
        self.section_up_to(name, u64::MAX).map(|found| found.map(|(_, bytes)| bytes))
    }

    /// As [`Elf::section`], with its address; `None` if it is larger than `limit`.
    pub(crate) fn section_up_to(&self, name: &[u8], limit: u64) -> Result<Option<(u64, Vec<u8>)>, Defect> {
        let plain = |s: &&SectionHeader64<LE>| {
            s.sh_type.get(LE) != elf::SHT_NOBITS
                && !s.sh_flags.get(LE).contains(elf::SHF_COMPRESSED)
                && s.sh_size.get(LE) <= limit
        };
        let Some(found) = self.section_named(name)?.filter(plain) else { return Ok(None) };
        Ok(Some((found.sh_addr.get(LE), self.contents(found, "a section")?)))
    }

    /// The address of a section; `None` if there is no such section.
    pub(crate) fn section_address(&self, name: &[u8]) -> Result<Option<u64>, Defect> {
        Ok(self.section_named(name)?.map(|section| section.sh_addr.get(LE)))
    }

    fn section_named(&self, name: &[u8]) -> Result<Option<&SectionHeader64<LE>>, Defect> {
        let Some(strings) = self.sections.get(self.section_names) else { return Ok(None) };
        let strings = self.contents(strings, "the names of the sections")?;
        Ok(self.sections.iter().find(|s| string(&strings, s.sh_name.get(LE)) == Some(name)))
    }

    fn section_of_type(&self, kind: elf::SectionType) -> Option<&SectionHeader64<LE>> {
        self.sections.iter().find(|section| section.sh_type.get(LE) == kind)
    }

    fn linked(&self, section: &SectionHeader64<LE>) -> Result<&SectionHeader64<LE>, Defect> {
        let strings = self.sections.get(section.sh_link.get(LE) as usize);
        strings
            .filter(|strings| strings.sh_type.get(LE) == elf::SHT_STRTAB)
            .ok_or_else(|| Defect::malformed("a table has no string table"))
    }

    fn contents(&self, section: &SectionHeader64<LE>, what: &'static str) -> Result<Vec<u8>, Defect> {
        // A file that only has debug information keeps its section headers, with this type and no contents.
        if section.sh_type.get(LE) == elf::SHT_NOBITS {
            return Ok(Vec::new());
        }
        self.file.read(section.sh_offset.get(LE), section.sh_size.get(LE), what)
    }
}

fn identify(header: &[u8]) -> Result<Machine, Defect> {
    if header.get(..4) != Some(&elf::ELFMAG[..]) {
        return Err(Defect::NotElf);
    }
    let unsupported = |text: String| Err(Defect::Unsupported(text));
    match header.get(4).copied().map(elf::FileClass) {
        Some(elf::ELFCLASS64) => {}
        Some(elf::ELFCLASS32) => return unsupported("32-bit ELF file".into()),
        _ => return Err(Defect::malformed("the file header is cut off or of no known class")),
    }
    if header.get(5).copied().map(elf::DataEncoding) != Some(elf::ELFDATA2LSB) {
        return unsupported("not a little-endian ELF file".into());
    }
    let Some(machine) = header.get(18..20) else {
        return Err(Defect::malformed("the file header is cut off"));
    };
    match elf::Machine(u16::from_le_bytes([machine[0], machine[1]])) {
        elf::EM_X86_64 => Ok(Machine::X86_64),
        elf::EM_AARCH64 => Ok(Machine::Aarch64),
        other => unsupported(format!("ELF file for another machine (number {})", other.0)),
    }
}

fn segments(file: &RegularFile, header: &FileHeader64<LE>) -> Result<Vec<ProgramHeader64<LE>>, Defect> {
    let count = u64::from(header.e_phnum.get(LE));
    let size = size_of::<ProgramHeader64<LE>>() as u64;
    if count != 0 && u64::from(header.e_phentsize.get(LE)) != size {
        return Err(Defect::malformed("the program headers have the wrong size"));
    }
    let bytes = file.read(header.e_phoff.get(LE), count * size, "the program headers")?;
    Ok(all(&bytes).to_vec())
}

/// The section headers, and the index of the one with their names.
fn sections(
    file: &RegularFile,
    header: &FileHeader64<LE>,
) -> Result<(Vec<SectionHeader64<LE>>, usize), Defect> {
    let (start, what) = (header.e_shoff.get(LE), "the section headers");
    let size = size_of::<SectionHeader64<LE>>() as u64;
    if start == 0 {
        return Ok((Vec::new(), 0));
    }
    if u64::from(header.e_shentsize.get(LE)) != size {
        return Err(Defect::malformed("the section headers have the wrong size"));
    }
    let mut count = u64::from(header.e_shnum.get(LE));
    let names_at = header.e_shstrndx.get(LE);
    let mut names = u32::from(names_at.0);
    // Numbers too large for the header are in the first section header.
    if count == 0 || names_at == elf::SHN_XINDEX {
        let bytes = file.read(start, size, what)?;
        let first = all::<SectionHeader64<LE>>(&bytes);
        count = if count == 0 { first[0].sh_size.get(LE) } else { count };
        names = if names_at == elf::SHN_XINDEX { first[0].sh_link.get(LE) } else { names };
    }
    let bytes = file.read(start, count.saturating_mul(size), what)?;
    Ok((all(&bytes).to_vec(), names as usize))
}

/// The complete entries in the bytes.
fn all<T: Pod>(bytes: &[u8]) -> &[T] {
    pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>()).map_or(&[], |(entries, _)| entries)
}

fn string(strings: &[u8], start: u32) -> Option<&[u8]> {
    let rest = strings.get(start as usize..)?;
    let rest = &rest[..rest.len().min(NAME_LIMIT)];
    Some(&rest[..memchr(0, rest)?])
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::*;
    use crate::testing::{ElfBuilder, Xorshift};

    fn everything(bytes: &[u8]) -> Result<(), Defect> {
        let mut temporary = tempfile::NamedTempFile::new().unwrap();
        temporary.write_all(bytes).unwrap();
        let file = RegularFile::open(temporary.path()).unwrap();
        let elf = Elf::parse(&file)?;
        elf.has_section(&[b".nv_fatbin"])?;
        elf.soname()?;
        for table in [Table::Dynamic, Table::Full] {
            for symbol in elf.symbols(table, &|_| true)? {
                elf.code_offset(symbol.address);
            }
        }
        Ok(())
    }

    #[test]
    fn the_test_executable_is_read() {
        let file = RegularFile::open(Path::new("/proc/self/exe")).unwrap();
        let elf = Elf::parse(&file).unwrap();
        assert!(elf.is_program);
        assert!(elf.has_section(&[b".text"]).unwrap());
        assert!(!elf.has_section(&[b".nv_fatbin"]).unwrap());
        let mains = elf.symbols(Table::Full, &|name| name == b"main").unwrap();
        assert_eq!(mains.len(), 1);
        assert!(mains[0].is_function);
        assert!(elf.code_offset(mains[0].address).is_some());
    }

    #[test]
    fn every_prefix_of_a_file_is_refused_or_read() {
        let bytes = ElfBuilder::new().soname("libcudart.so.12").export("cudaMalloc", &[0x55, 0xc3]).build();
        everything(&bytes).unwrap();
        for length in 0..bytes.len() {
            assert!(everything(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn changed_bytes_never_panic() {
        let good = ElfBuilder::new().soname("libcudart.so.12").export("cudaMalloc", &[0x55, 0xc3]).build();
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        for _ in 0..2000 {
            let mut bytes = good.clone();
            random.damage(&mut bytes);
            // It only has to return: some changes are harmless.
            everything(&bytes).ok();
        }
    }

    #[test]
    fn errors_name_the_defect() {
        let good = ElfBuilder::new().build();
        let patched = |at: usize, with: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            everything(&bytes).unwrap_err().to_string()
        };
        assert_eq!(everything(b"#!/bin/sh").unwrap_err().to_string(), "not an ELF file");
        assert!(patched(4, &[1]).starts_with("32-bit ELF file; only 64-bit"));
        assert!(patched(5, &[2]).starts_with("not a little-endian"));
        assert!(patched(18, &[8, 0]).starts_with("ELF file for another machine (number 8)"));
        assert!(patched(40, &u64::MAX.to_le_bytes()).contains("the section headers"), "e_shoff");
        assert!(patched(56, &u16::MAX.to_le_bytes()).contains("the program headers"), "e_phnum");
    }

    #[test]
    fn a_huge_table_is_refused_by_its_size() {
        let mut bytes = ElfBuilder::new().export("cudaMalloc", &[0xc3]).build();
        let section = ElfBuilder::dynsym_header(&bytes);
        bytes[section + 32..section + 40].copy_from_slice(&(1u64 << 32).to_le_bytes());
        let temporary = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(temporary.path(), &bytes).unwrap();
        temporary.as_file().set_len(10 << 30).unwrap();
        let file = RegularFile::open(temporary.path()).unwrap();
        let elf = Elf::parse(&file).unwrap();
        let text = elf.symbols(Table::Dynamic, &|_| true).unwrap_err().to_string();
        assert_eq!(text, "the dynamic symbol table has 4294967296 bytes, more than the limit of 67108864");
    }
}
