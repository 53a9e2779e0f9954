//! Where to probe a function. The instruction under a probe decides its cost: what the kernel can emulate is
//! about six times cheaper than what it must single-step. So the probe goes to the first emulated instruction
//! that every call passes with the stack pointer and the arguments as they were at the entry; if there is
//! none, to the entry. Works on bytes alone; `branches` looks at the rest of the function.

use super::point::ProbePoint;
use super::{aarch64, x86_64};
use crate::elf::Machine;

/// How much of a function is looked at for its probe point. Compilers save registers well before this.
pub(crate) const PROLOGUE_BYTES: u64 = 64;

/// The best point by the function's beginning alone, or why no probe can be put there. Whether other code
/// jumps to the point is still to be checked unless it is the entry.
pub(crate) fn candidate(machine: Machine, code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    match machine {
        Machine::X86_64 => x86_64::candidate(code, entry),
        Machine::Aarch64 => aarch64::candidate(code, entry),
    }
}

/// The entry as a probe point, at whatever cost.
pub(crate) fn at_entry(machine: Machine, code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    match machine {
        Machine::X86_64 => x86_64::at_entry(code, entry),
        Machine::Aarch64 => aarch64::at_entry(code, entry),
    }
}
