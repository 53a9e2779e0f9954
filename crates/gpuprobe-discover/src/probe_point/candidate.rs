//! Chooses the probe point by the beginning of a function. The instruction under a probe decides its cost: an
//! instruction that the Linux kernel can emulate is about six times cheaper than one that it must single-step. So the
//! probe goes to the first emulated instruction that every call reaches with the stack pointer and the arguments as
//! they were at the entry; if there is none, to the entry. Only the bytes at the beginning are examined here;
//! `branches` examines the rest of the function.

use super::point::ProbePoint;
use super::{aarch64, x86_64};
use crate::elf::Machine;

/// How much of a function is examined for its probe point. Compilers save registers well before this.
pub(crate) const PROLOGUE_BYTES: u64 = 64;

/// The best point by the beginning of the function, or why it cannot be probed. Unless the point is the entry, the
/// caller must still check that no other code jumps to it.
pub(crate) fn candidate(machine: Machine, code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    match machine {
        Machine::X86_64 => x86_64::candidate(code, entry),
        Machine::Aarch64 => aarch64::candidate(code, entry),
    }
}

/// The entry as a probe point, at any cost.
pub(crate) fn at_entry(machine: Machine, code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    match machine {
        Machine::X86_64 => x86_64::at_entry(code, entry),
        Machine::Aarch64 => aarch64::at_entry(code, entry),
    }
}
