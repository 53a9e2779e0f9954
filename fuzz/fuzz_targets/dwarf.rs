//! Any bytes as debug information, used to name addresses.
//!
//! An input is the address (two bytes), then sections: kind (one byte), length (two), contents.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use gpuprobe_discover::{Symbolizer, Unwinder};
use gpuprobe_fuzz::elf_builder::{CODE, library};
use gpuprobe_fuzz::{BASE, FakeProc, PID};
use libfuzzer_sys::fuzz_target;

const SECTIONS: [&str; 12] = [
    ".debug_info",
    ".debug_abbrev",
    ".debug_line",
    ".debug_str",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_addr",
    ".debug_str_offsets",
    ".debug_aranges",
    ".debug_loclists",
    ".debug_types",
];
/// One address is that of a call in the seeds, as `addr2line` resolves it.
const FIXED: u64 = BASE + CODE + 8;

static PROC: LazyLock<FakeProc> = LazyLock::new(|| FakeProc::new().expect("a folder and memory for a file"));

fn sections(mut bytes: &[u8]) -> Vec<(&'static str, &[u8])> {
    let mut found = Vec::new();
    while let Some((&[which, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (contents, after) = rest.split_at(length);
        found.push((SECTIONS[usize::from(which) % SECTIONS.len()], contents));
        bytes = after;
    }
    found
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&offset, rest)) = bytes.split_first_chunk() else { return };
    PROC.file().set(&library(&sections(rest), false)).expect("memory for the input");
    let address = BASE + u64::from(u16::from_le_bytes(offset));
    let mut symbolizer = Symbolizer::new();
    for address in [address, FIXED] {
        if let Ok(Some(found)) = symbolizer.name(PROC.path(), PID, address) {
            assert_eq!(found.module, Path::new("/fuzz/lib.so"));
        }
    }
    let frames = Unwinder::new().frames(&mut symbolizer, PROC.path(), PID, &[address, FIXED]);
    assert!(
        frames.len() >= 2 && frames.iter().all(|frame| [address, FIXED].contains(&frame.address)),
        "{frames:?}"
    );
});
