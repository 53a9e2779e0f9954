//! Where to probe an aarch64 function, and the aarch64 instructions that uprobes distinguish.
//!
//! The Linux kernel simulates branches, `adr`, `adrp` and (from 6.13 on) `nop`. All other instructions that it
//! accepts run in a copy, single-stepped: `arm_probe_decode_insn` and `aarch64_insn_is_steppable` of
//! <https://elixir.bootlin.com/linux/v6.18/source/arch/arm64/kernel/probes/decode-insn.c>.
//!
//! Compilers begin a function with `stp x29, x30, [sp, #-N]!` or `sub sp, sp, #N` (all but one of the exports of
//! libcudart 12.9 and 13.4 do). Both move the stack pointer, so a cheaper instruction after them cannot be used. Nor
//! may a probe go after `paciasp`: at the probe the Linux kernel puts the address of its trampoline into x30 to see
//! the return, and only the value that x30 has before `paciasp` is signed and passes the check before the function's
//! `ret`. Only `bti` can be skipped: it changes no register, so x30, the stack pointer and the arguments are still
//! those of the caller.

use super::point::{ProbeCost, ProbePoint};

/// Bytes of an instruction.
pub(crate) const WORD: u64 = 4;

const NOP: u32 = 0xd503_201f;

/// The entry, or the instruction after a `bti` if that one is simulated.
pub(crate) fn candidate(code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    let at_entry = at_entry(code, entry)?;
    let mut words = words(code);
    match (words.next(), words.next()) {
        (Some(first), Some(second)) if is_bti(first) && is_simulated(second) => {
            Ok(ProbePoint { offset: entry + WORD, entry, cost: ProbeCost::Emulated })
        }
        _ => Ok(at_entry),
    }
}

/// The entry, or why it cannot be probed.
pub(crate) fn at_entry(code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    let word = words(code).next().ok_or("its first bytes are not an instruction")?;
    if let Some(reason) = refused(word) {
        return Err(reason);
    }
    let cost = if is_simulated(word) { ProbeCost::Emulated } else { ProbeCost::SingleStepped };
    Ok(ProbePoint { offset: entry, entry, cost })
}

pub(crate) fn words(code: &[u8]) -> impl Iterator<Item = u32> {
    code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// Where execution continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// `b.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`: at the target or at the next instruction.
    Conditional(u64),
    /// `b`
    Jump(u64),
    /// `br`, with or without a check of the address.
    IndirectJump,
    /// `ret`, with or without a check of the address.
    Return,
}

pub(crate) fn flow(word: u32, at: u64) -> Flow {
    // a signed number of words in the bits from `low` on
    let target = |low: u32, bits: u32| {
        let shifted = (word << (32 - low - bits)).cast_signed();
        at.wrapping_add_signed(i64::from(shifted >> (32 - bits)) * WORD.cast_signed())
    };
    if is(word, 0xfc00_0000, 0x1400_0000) {
        Flow::Jump(target(0, 26))
    } else if is(word, 0xff00_0000, 0x5400_0000) || is(word, 0x7e00_0000, 0x3400_0000) {
        Flow::Conditional(target(5, 19))
    } else if is(word, 0x7e00_0000, 0x3600_0000) {
        Flow::Conditional(target(5, 14))
    } else if is(word, 0xfeff_f000, 0xd61f_0000) {
        Flow::IndirectJump
    } else if is(word, 0xffff_f000, 0xd65f_0000) {
        Flow::Return
    } else {
        Flow::Next
    }
}

fn is(word: u32, mask: u32, value: u32) -> bool {
    word & mask == value
}

/// `bti` alone or with `c`, `j` or both.
fn is_bti(word: u32) -> bool {
    is(word, 0xffff_ff3f, 0xd503_241f)
}

fn is_simulated(word: u32) -> bool {
    word == NOP
        || is(word, 0x7c00_0000, 0x1400_0000) // b, bl
        || is(word, 0xff00_0010, 0x5400_0000) // b.cond
        || is(word, 0x7c00_0000, 0x3400_0000) // cbz, cbnz, tbz, tbnz
        || is(word, 0x1f00_0000, 0x1000_0000) // adr, adrp
        || is(word, 0xff9f_fc1f, 0xd61f_0000) && !is(word, 0x0060_0000, 0x0060_0000) // br, blr, ret
}

/// Why the Linux kernel would refuse a probe here, or why the copy would have another result than the original. One
/// refused point fails the attachment of a whole library, so such functions must not be requested.
fn refused(word: u32) -> Option<&'static str> {
    let is_hint = is(word, 0xffff_f01f, 0xd503_201f);
    if word == 0 {
        Some("its first bytes are not an instruction")
    } else if is(word, 0xff00_0000, 0xd400_0000) {
        Some("it begins with an instruction that traps")
    } else if is_hint && !is_steppable_hint(word)
        || is(word, 0xfff0_0000, 0xd510_0000) // msr of a register
        || is(word, 0xfff8_f01f, 0xd500_401f)
    // msr of a constant
    {
        Some("it begins with a system instruction that the Linux kernel cannot probe")
    } else if is(word, 0xfe00_0000, 0xd600_0000) && !is_simulated(word) || is(word, 0xff00_0010, 0x5400_0010)
    {
        Some("it begins with a branch that the Linux kernel cannot probe")
    } else if is(word, 0x3b00_0000, 0x1800_0000) {
        Some("it begins with a load relative to its own address, which the Linux kernel cannot probe")
    } else if is(word, 0x3f00_0000, 0x0800_0000) || is(word, 0x3b20_0c00, 0x1900_0400) {
        Some("it begins with a part of a sequence that the Linux kernel cannot probe")
    } else {
        None
    }
}

/// Hints that do nothing, mark a branch target or sign an address. The others wait, or check an address and may trap.
fn is_steppable_hint(word: u32) -> bool {
    // xpaclri; pacia1716, pacib1716; paciaz, paciasp, pacibz, pacibsp
    matches!(word >> 5 & 0x7f, 0x07 | 0x08 | 0x0a | 0x18..=0x1b) || word == NOP || is_bti(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: u64 = 0x1000;
    const BTI_C: u32 = 0xd503_245f;
    const PACIASP: u32 = 0xd503_233f;
    const PUSH: u32 = 0xa9bf_7bfd; // stp x29, x30, [sp, #-16]!
    const CBZ: u32 = 0xb400_0040; // cbz x0, .+8
    const ADRP: u32 = 0x9000_0010; // adrp x16, .
    const RET: u32 = 0xd65f_03c0;
    const CHEAP: ProbeCost = ProbeCost::Emulated;
    const EXPENSIVE: ProbeCost = ProbeCost::SingleStepped;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn point(words: &[u32]) -> (u64, ProbeCost) {
        let point = candidate(&bytes(words), ENTRY).unwrap();
        assert_eq!(point.entry, ENTRY);
        (point.offset - ENTRY, point.cost)
    }

    #[test]
    fn usual_first_instructions_are_probed_at_the_entry() {
        assert_eq!(point(&[PUSH, 0x9100_03fd]), (0, EXPENSIVE), "stp x29, x30; mov x29, sp");
        assert_eq!(point(&[0xd103_43ff, 0xa901_7bfd]), (0, EXPENSIVE), "sub sp, sp, #208; stp");
        assert_eq!(point(&[PACIASP, PUSH]), (0, EXPENSIVE));
        assert_eq!(point(&[0x5280_0000, RET]), (0, EXPENSIVE), "mov w0, 0");
        assert_eq!(point(&[PUSH, 0xf94]), (0, EXPENSIVE), "what follows is not examined");
    }

    #[test]
    fn simulated_instructions_are_cheap() {
        for (word, name) in [
            (0x1400_0004, "b"),
            (0x9400_0004, "bl"),
            (0x5400_0040, "b.eq"),
            (CBZ, "cbz x0"),
            (0x3500_0041, "cbnz w1"),
            (0x3600_0042, "tbz w2, 0"),
            (0xb7f8_0043, "tbnz x3, 63"),
            (0x1000_0000, "adr x0"),
            (ADRP, "adrp x16"),
            (0xd61f_0200, "br x16"),
            (0xd63f_0200, "blr x16"),
            (RET, "ret"),
            (NOP, "nop"),
        ] {
            assert_eq!(point(&[word, RET]), (0, CHEAP), "{name}");
            assert_eq!(point(&[BTI_C, word]), (4, CHEAP), "bti c; {name}");
        }
    }

    #[test]
    fn bti_is_skipped_only_before_a_simulated_instruction() {
        assert_eq!(point(&[BTI_C, PUSH]), (0, EXPENSIVE));
        assert_eq!(point(&[BTI_C]), (0, EXPENSIVE), "the function ends");
        assert_eq!(point(&[BTI_C, BTI_C, CBZ]), (0, EXPENSIVE), "only one is skipped");
        for bti in [0xd503_241f, 0xd503_245f, 0xd503_249f, 0xd503_24df] {
            assert_eq!(point(&[bti, ADRP]), (4, CHEAP), "{bti:x}");
        }
    }

    #[test]
    fn nothing_is_probed_after_a_signed_return_address() {
        for signs in [PACIASP, 0xd503_237f, 0xd503_231f, 0xd503_235f] {
            assert_eq!(point(&[signs, CBZ]), (0, EXPENSIVE), "{signs:x}");
            assert_eq!(point(&[BTI_C, signs, CBZ]), (0, EXPENSIVE), "bti c; {signs:x}");
        }
    }

    #[test]
    fn instructions_that_the_linux_kernel_refuses_are_errors() {
        for (word, name) in [
            (0, "udf 0"),
            (0xd420_0000, "brk 0"),
            (0xd400_0001, "svc 0"),
            (0xd503_203f, "yield"),
            (0xd503_205f, "wfe"),
            (0xd503_23bf, "autiasp"),
            (0xd503_219f, "autia1716"),
            (0xd51b_4200, "msr nzcv, x0"),
            (0xd65f_0bff, "retaa"),
            (0xd61f_081f, "braaz x0"),
            (0xd71f_0801, "braa x0, x1"),
            (0xd69f_03e0, "eret"),
            (0x5400_0050, "bc.eq"),
            (0x5800_0040, "ldr x0, .+8"),
            (0x9800_0040, "ldrsw x0, .+8"),
            (0x1c00_0040, "ldr s0, .+8"),
            (0xc85f_7c20, "ldxr x0, [x1]"),
            (0x1901_0440, "cpyfp [x0]!, [x1]!, x2!"),
        ] {
            assert!(candidate(&bytes(&[word, RET]), ENTRY).is_err(), "{name}");
        }
        assert!(candidate(&[1, 2], ENTRY).is_err(), "half an instruction");
        for (word, name) in [
            (PACIASP, "paciasp"),
            (0xd53b_d041, "mrs x1, tpidr_el0"),
            (0xd503_3bbf, "dmb ish"),
            (0xb940_0000, "ldr w0, [x0]"),
        ] {
            assert_eq!(point(&[word, RET]), (0, EXPENSIVE), "{name}");
        }
    }

    #[test]
    fn branch_targets_are_decoded() {
        assert_eq!(flow(0x1400_0004, ENTRY), Flow::Jump(ENTRY + 16));
        assert_eq!(flow(0x17ff_ffff, ENTRY), Flow::Jump(ENTRY - 4));
        assert_eq!(flow(CBZ, ENTRY), Flow::Conditional(ENTRY + 8));
        assert_eq!(flow(0x54ff_ffe1, ENTRY), Flow::Conditional(ENTRY - 4), "b.ne .-4");
        assert_eq!(flow(0x3607_ffe0, ENTRY), Flow::Conditional(ENTRY - 4), "tbz w0, 0, .-4");
        assert_eq!(flow(0x37f8_0040, ENTRY), Flow::Conditional(ENTRY + 8), "tbnz w0, 31, .+8");
        for jump in [0xd61f_0200, 0xd61f_081f, 0xd71f_0801] {
            assert_eq!(flow(jump, ENTRY), Flow::IndirectJump, "{jump:x}");
        }
        for back in [RET, 0xd65f_0bff, 0xd65f_0fff] {
            assert_eq!(flow(back, ENTRY), Flow::Return, "{back:x}");
        }
        for on in [0x9400_0004, 0xd63f_0200, PUSH, NOP, BTI_C] {
            assert_eq!(flow(on, ENTRY), Flow::Next, "{on:x}");
        }
    }
}
