//! A small ELF file around generated sections. File offsets are also addresses, so that inputs do not depend on the
//! headers.

/// The address of code.
pub const CODE: u64 = 0x1000;
/// The address of the first section.
pub const SECTIONS: u64 = 0x2000;
/// The size of the code mapping: larger than any input.
pub const LOADED_BYTES: u64 = 0x10_0000;

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SECTION: usize = 64;
const PROGBITS: u32 = 1;
const STRTAB: u32 = 3;
const LOAD: u32 = 1;
const EH_FRAME: u32 = 0x6474_e550;

/// An x86-64 library with these sections, one after the other. `is_searched`: the first section begins with the search
/// table of the unwind information.
pub fn library(sections: &[(&str, &[u8])], is_searched: bool) -> Vec<u8> {
    let mut out = vec![0; SECTIONS as usize];
    let mut names = vec![0];
    let mut headers = vec![0; SECTION];
    for (name, contents) in sections {
        out.resize(out.len().next_multiple_of(8), 0);
        headers.extend(section(names.len(), PROGBITS, out.len(), contents.len()));
        names.extend(name.as_bytes());
        names.push(0);
        out.extend(*contents);
    }
    let name = names.len();
    names.extend(b".shstrtab\0");
    headers.extend(section(name, STRTAB, out.len(), names.len()));
    out.extend(names);
    let headers_at = out.len();
    let count = (headers.len() / SECTION) as u16;
    out.extend(headers);

    let first = sections.first().map_or(0, |(_, contents)| contents.len());
    let size = out.len();
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &3u16.to_le_bytes());
    put(18, &62u16.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(32, &(HEADER as u64).to_le_bytes());
    put(40, &(headers_at as u64).to_le_bytes());
    put(52, &(HEADER as u16).to_le_bytes());
    put(54, &(SEGMENT as u16).to_le_bytes());
    put(56, &(1 + u16::from(is_searched)).to_le_bytes());
    put(58, &(SECTION as u16).to_le_bytes());
    put(60, &count.to_le_bytes());
    put(62, &(count - 1).to_le_bytes());
    put(HEADER, &segment(LOAD, 0, size));
    if is_searched {
        put(HEADER + SEGMENT, &segment(EH_FRAME, SECTIONS as usize, first));
    }
    out
}

/// The header of an executable segment.
fn segment(kind: u32, offset: usize, size: usize) -> Vec<u8> {
    let (offset, size) = (offset as u64, size as u64);
    let mut out = kind.to_le_bytes().to_vec();
    out.extend(5u32.to_le_bytes());
    for word in [offset, offset, offset, size, size, 0x1000] {
        out.extend(word.to_le_bytes());
    }
    out
}

fn section(name: usize, kind: u32, offset: usize, size: usize) -> Vec<u8> {
    let mut out = (name as u32).to_le_bytes().to_vec();
    out.extend(kind.to_le_bytes());
    for word in [0, offset, offset, size, 0, 1, 0] {
        out.extend((word as u64).to_le_bytes());
    }
    out
}
