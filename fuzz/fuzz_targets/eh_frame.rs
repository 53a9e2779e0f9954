//! Any bytes as the unwind information of a library, used to unwind a stack.
//!
//! An input is: the kind of section (one byte), the address of the instruction (two), the contents of the stack (one), and
//! the section.
#![no_main]

use std::sync::LazyLock;

use gpuprobe_discover::{FRAME_LIMIT, Registers, Unwinder};
use gpuprobe_fuzz::elf_builder::{CODE, library};
use gpuprobe_fuzz::{BASE, FakeProc, PID};
use libfuzzer_sys::fuzz_target;

const STACK: u64 = 0x7ffc_0000_0000;
const STACK_WORDS: u64 = 64;

static PROC: LazyLock<FakeProc> = LazyLock::new(|| FakeProc::new().expect("a folder and memory for a file"));

/// Addresses of code and of the stack itself, so that many frames can be found.
fn stack(mut seed: u64) -> Vec<u8> {
    let word = |index: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match seed >> 61 {
            0 => STACK + 8 * (index + (seed >> 33) % 8),
            1 => 0,
            _ => BASE + CODE + (seed >> 33) % 0x100,
        }
    };
    (0..STACK_WORDS).map(word).flat_map(u64::to_le_bytes).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[kind, low, high, seed], section)) = bytes.split_first_chunk() else { return };
    let is_searched = kind % 3 == 0;
    let name = if kind % 3 == 2 { ".debug_frame" } else { ".eh_frame" };
    PROC.file().set(&library(&[(name, section)], is_searched)).expect("memory for the input");
    let ip = BASE + u64::from(u16::from_le_bytes([low, high]));
    let registers = Registers { ip, sp: STACK, fp: STACK + 16, lr: 0 };
    let found = Unwinder::new().unwind(PROC.path(), PID, registers, &stack(seed.into()));
    assert!(found.addresses.first() == Some(&ip) && found.addresses.len() <= FRAME_LIMIT, "{found:?}");
    assert_eq!(found.addresses.len(), found.slots.len());
});
