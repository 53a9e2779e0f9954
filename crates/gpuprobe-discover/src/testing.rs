//! Small ELF files and fake /proc trees for the tests of this crate.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Changes some bytes, few of them in the empty part between headers and code.
    pub(crate) fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..1 + self.next() % 4 {
            let at = self.next() as usize % bytes.len();
            let at = if (256..CODE_OFFSET as usize).contains(&at) { at % 256 } else { at };
            bytes[at] = self.next() as u8;
        }
    }
}

struct TestSymbol {
    name: String,
    info: u8,
    section: u16,
    address: u64,
    size: u64,
}

/// File offset and address of the code. They differ, so that a mix-up makes a test fail.
pub(crate) const CODE_OFFSET: u64 = 0x1000;
const CODE_ADDRESS: u64 = 0x41000;
const TEXT: u16 = 1;

#[derive(Default)]
pub(crate) struct ElfBuilder {
    machine: u16,
    code: Vec<u8>,
    dynamic: Vec<TestSymbol>,
    full: Vec<TestSymbol>,
    soname: Option<String>,
    interpreter: Option<String>,
    extra_sections: Vec<(&'static str, Vec<u8>)>,
}

impl ElfBuilder {
    pub(crate) fn new() -> Self {
        Self { machine: 62, ..Self::default() }
    }

    pub(crate) fn aarch64(mut self) -> Self {
        self.machine = 183;
        self
    }

    pub(crate) fn soname(mut self, name: &str) -> Self {
        self.soname = Some(name.into());
        self
    }

    pub(crate) fn interpreter(mut self, path: &str) -> Self {
        self.interpreter = Some(path.into());
        self
    }

    pub(crate) fn section(self, name: &'static str) -> Self {
        self.section_with(name, b"x")
    }

    pub(crate) fn section_with(mut self, name: &'static str, contents: &[u8]) -> Self {
        self.extra_sections.push((name, contents.to_vec()));
        self
    }

    /// A global function in the dynamic table.
    pub(crate) fn export(mut self, name: &str, code: &[u8]) -> Self {
        let symbol = self.add_code(name, code);
        self.dynamic.push(symbol);
        self
    }

    /// A local function in the full table.
    pub(crate) fn local(mut self, name: &str, code: &[u8]) -> Self {
        let symbol = TestSymbol { info: 0x02, ..self.add_code(name, code) };
        self.full.push(symbol);
        self
    }

    /// Another name for the last exported function.
    pub(crate) fn alias(mut self, name: &str) -> Self {
        let last = self.dynamic.last().unwrap();
        let symbol = TestSymbol { name: name.into(), ..*last };
        self.dynamic.push(symbol);
        self
    }

    /// Any entry of the dynamic table.
    pub(crate) fn raw(mut self, name: &str, info: u8, section: u16, address: u64) -> Self {
        self.dynamic.push(TestSymbol { name: name.into(), info, section, address, size: 1 });
        self
    }

    fn add_code(&mut self, name: &str, code: &[u8]) -> TestSymbol {
        while !self.code.len().is_multiple_of(16) {
            self.code.push(0xcc);
        }
        let address = CODE_ADDRESS + self.code.len() as u64;
        self.code.extend_from_slice(code);
        TestSymbol { name: name.into(), info: 0x12, section: TEXT, address, size: code.len() as u64 }
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = vec![0; CODE_OFFSET as usize];
        out.extend_from_slice(&self.code);
        // (name, type, offset, size, link, entry size)
        let mut sections: Vec<(&str, u32, usize, usize, u32, u64)> = vec![("", 0, 0, 0, 0, 0)];
        sections.push((".text", 1, CODE_OFFSET as usize, self.code.len(), 0, 0));
        let mut append = |out: &mut Vec<u8>, name, kind, bytes: &[u8], link, entry| {
            sections.push((name, kind, out.len(), bytes.len(), link, entry));
            out.extend_from_slice(bytes);
        };
        let soname = self.soname.as_deref().unwrap_or("");
        let (symbols, strings) = table(&self.dynamic, soname);
        append(&mut out, ".dynsym", 11, &symbols, 3, 24);
        append(&mut out, ".dynstr", 3, &strings, 0, 0);
        let mut tags = Vec::new();
        if self.soname.is_some() {
            tags.extend_from_slice(&14u64.to_le_bytes());
            tags.extend_from_slice(&1u64.to_le_bytes());
        }
        tags.extend_from_slice(&[0; 16]);
        append(&mut out, ".dynamic", 6, &tags, 3, 16);
        let (symbols, strings) = table(&self.full, "");
        append(&mut out, ".symtab", 2, &symbols, 6, 24);
        append(&mut out, ".strtab", 3, &strings, 0, 0);
        for (name, contents) in &self.extra_sections {
            append(&mut out, name, 1, contents, 0, 0);
        }
        let interpreter = out.len();
        out.extend_from_slice(self.interpreter.as_deref().unwrap_or("").as_bytes());
        let shstrtab = out.len();
        let mut names = Vec::new();
        sections.push((".shstrtab", 3, shstrtab, 0, 0, 0));
        let starts: Vec<usize> = sections
            .iter()
            .map(|section| {
                names.extend_from_slice(section.0.as_bytes());
                names.push(0);
                names.len() - section.0.len() - 1
            })
            .collect();
        sections.last_mut().unwrap().3 = names.len();
        out.extend_from_slice(&names);
        let headers = out.len();
        for (section, start) in sections.iter().zip(starts) {
            out.extend(section_header(section, start));
        }
        self.header(&mut out, headers, sections.len(), interpreter);
        out
    }

    fn header(&self, out: &mut [u8], section_headers: usize, sections: usize, interpreter: usize) {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &3u16.to_le_bytes());
        put(18, &self.machine.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(40, &(section_headers as u64).to_le_bytes());
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        let segments = 1 + u16::from(self.interpreter.is_some());
        put(56, &segments.to_le_bytes());
        put(58, &64u16.to_le_bytes());
        put(60, &(sections as u16).to_le_bytes());
        put(62, &(sections as u16 - 1).to_le_bytes());
        let size = self.code.len() as u64;
        put(64, &segment(1, 5, CODE_OFFSET, CODE_ADDRESS, size));
        if let Some(name) = &self.interpreter {
            put(64 + 56, &segment(3, 4, interpreter as u64, 0, name.len() as u64));
        }
    }

    /// Where in the file the section header of .dynsym begins.
    pub(crate) fn dynsym_header(bytes: &[u8]) -> usize {
        u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize + 2 * 64
    }

    pub(crate) fn write(&self, path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, self.build()).unwrap();
    }
}

fn segment(kind: u32, flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(kind.to_le_bytes());
    out.extend(flags.to_le_bytes());
    for word in [offset, address, address, size, size, 0x1000] {
        out.extend(word.to_le_bytes());
    }
    out
}

fn section_header(section: &(&str, u32, usize, usize, u32, u64), name: usize) -> Vec<u8> {
    let &(_, kind, offset, size, link, entry) = section;
    let mut out = Vec::new();
    out.extend((name as u32).to_le_bytes());
    out.extend(kind.to_le_bytes());
    for word in [0, 0, offset as u64, size as u64] {
        out.extend(word.to_le_bytes());
    }
    out.extend(link.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend(entry.to_le_bytes());
    out
}

/// Symbols and their names; the first name of the strings is `first`.
fn table(symbols: &[TestSymbol], first: &str) -> (Vec<u8>, Vec<u8>) {
    let mut strings = vec![0];
    strings.extend_from_slice(first.as_bytes());
    strings.push(0);
    let mut out = vec![0; 24];
    for symbol in symbols {
        out.extend((strings.len() as u32).to_le_bytes());
        out.extend([symbol.info, 0]);
        out.extend(symbol.section.to_le_bytes());
        out.extend(symbol.address.to_le_bytes());
        out.extend(symbol.size.to_le_bytes());
        strings.extend_from_slice(symbol.name.as_bytes());
        strings.push(0);
    }
    (out, strings)
}

/// A fake /proc with processes that have the given mappings.
pub(crate) struct FakeProc {
    pub(crate) root: tempfile::TempDir,
}

impl FakeProc {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// The first mapping is the executable. `shown` is the name as written in /proc/PID/maps.
    pub(crate) fn process(&self, pid: u32, mapped: &[(&str, &Path)]) -> PathBuf {
        let folder = self.path().join(pid.to_string());
        fs::create_dir_all(folder.join("map_files")).unwrap();
        let mut maps = String::new();
        for (index, (shown, file)) in mapped.iter().enumerate() {
            let start = 0x7f00_0000_0000u64 + (index as u64) * 0x10000;
            let inode = fs::metadata(file).map_or(1, |meta| meta.ino());
            let range = format!("{start:x}-{:x}", start + 0x1000);
            maps += &format!("{range} r-xp 00001000 fe:00 {inode}                 {shown}\n");
            maps += &format!("{:x}-{:x} rw-p 00000000 00:00 0 \n", start + 0x1000, start + 0x2000);
            symlink(file, folder.join("map_files").join(range)).unwrap();
        }
        maps += "7fff00000000-7fff00001000 r-xp 00000000 00:00 0                          [vdso]\n";
        fs::write(folder.join("maps"), maps).unwrap();
        if let Some((_, exe)) = mapped.first() {
            symlink(exe, folder.join("exe")).unwrap();
        }
        folder
    }
}
