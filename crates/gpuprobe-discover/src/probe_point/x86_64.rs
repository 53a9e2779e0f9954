//! Where to probe an x86-64 function.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};

use super::point::{ProbeCost, ProbePoint};

const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// The first byte of AVX-512 instructions.
const EVEX: u8 = 0x62;

/// The nop that Linux kernels from 6.18 on replace by a call to make a probe cheaper. The call writes its return
/// address below the stack pointer, where a function may keep data without moving the pointer (the red zone), and
/// some of these kernels do not skip it. So it is probed only as a function's first instruction, where the red zone
/// is still empty.
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Emulation {
    Always,
    /// Long nops from Linux 6.17 on, `66 90` from 6.2 on and in the later fixes of older ones: used if nothing better
    /// is found.
    Newer,
    Never,
}

/// The entry as a probe point, or why it cannot be probed.
pub(super) fn at_entry(code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    let mut decoder = Decoder::with_ip(64, code, entry, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let bytes = code.get(..instruction.len()).unwrap_or_default();
    if let Some(reason) = refused(&instruction, bytes) {
        return Err(reason);
    }
    let cost = match emulation(bytes) {
        Emulation::Always | Emulation::Newer => ProbeCost::Emulated,
        Emulation::Never => ProbeCost::SingleStepped,
    };
    Ok(ProbePoint { offset: entry, entry, cost })
}

/// The first emulated instruction that every call reaches with the stack and the arguments unchanged, else the entry.
pub(super) fn candidate(code: &[u8], entry: u64) -> Result<ProbePoint, &'static str> {
    let fallback = at_entry(code, entry)?;
    let mut decoder = Decoder::with_ip(64, code, entry, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut newer = None;
    while decoder.can_decode() {
        let start = decoder.position();
        let instruction = decoder.decode();
        let bytes = &code[start..decoder.position()];
        let point = ProbePoint { offset: instruction.ip(), entry, cost: ProbeCost::Emulated };
        match emulation(bytes) {
            Emulation::Always => return Ok(point),
            // see NOP5
            Emulation::Newer if bytes == NOP5 && start > 0 => {}
            Emulation::Newer => newer = newer.or(Some(point)),
            Emulation::Never if harmless(&instruction, &mut info) => {}
            Emulation::Never => break,
        }
    }
    Ok(newer.unwrap_or(fallback))
}

/// What uprobes emulate on x86-64: `push` of a register with no prefix but REX.B, `nop`, and relative jumps without
/// an operand-size prefix. Calls are emulated too, but a function cannot be probed after one. See
/// `push_setup_xol_ops` and `branch_setup_xol_ops` of
/// <https://elixir.bootlin.com/linux/v6.12/source/arch/x86/kernel/uprobes.c>.
fn emulation(bytes: &[u8]) -> Emulation {
    match bytes {
        [0x50..=0x57] | [0x41, 0x50..=0x57] => Emulation::Always,
        [0x90] => Emulation::Always,
        [0x70..=0x7f | 0xeb, _] | [0xe9, _, _, _, _] | [0x0f, 0x80..=0x8f, _, _, _, _] => Emulation::Always,
        [0x66, 0x90] | [0x0f, 0x1f, ..] | [0x66, 0x0f, 0x1f, ..] => Emulation::Newer,
        _ => Emulation::Never,
    }
}

/// Why the Linux kernel would refuse a probe here. One refused point fails the attachment of a whole library, so such
/// functions must not be requested. See `is_prefix_bad` and `uprobe_init_insn` of the same file.
fn refused(instruction: &Instruction, bytes: &[u8]) -> Option<&'static str> {
    let prefix = |b: &&u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let segment_or_lock = |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0xf0);
    if instruction.is_invalid() {
        Some("its first bytes are not an instruction")
    } else if matches!(instruction.mnemonic(), Mnemonic::Int3 | Mnemonic::Int1 | Mnemonic::Int)
        || instruction.is_privileged()
    {
        Some("it begins with an instruction that traps")
    } else if bytes.iter().take_while(prefix).any(segment_or_lock) {
        Some("it begins with a prefix that the Linux kernel cannot probe")
    } else if bytes.iter().find(|b| !prefix(b)) == Some(&EVEX) {
        Some("it begins with an AVX-512 instruction, which the Linux kernel cannot probe")
    } else {
        None
    }
}

/// Whether the instruction leaves the stack, the arguments and memory unchanged. Memory counts because arguments
/// beyond the sixth are on the stack. An allow-list: unknown instructions are not harmless.
fn harmless(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    use Mnemonic::{Add, And, Cmp, Endbr64, Lea, Mov, Movsx, Movsxd, Movzx, Nop, Or, Sub, Test, Xor};
    let known = matches!(
        instruction.mnemonic(),
        Add | And | Cmp | Endbr64 | Lea | Mov | Movsx | Movsxd | Movzx | Nop | Or | Sub | Test | Xor
    );
    if !known || instruction.flow_control() != FlowControl::Next || instruction.is_privileged() {
        return false;
    }
    let used = info.info(instruction);
    let writes = |access| {
        matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    };
    let keeps_memory = !used.used_memory().iter().any(|memory| writes(memory.access()));
    let keeps_registers = !used.used_registers().iter().any(|register| {
        let full = register.register().full_register();
        writes(register.access()) && (full == Register::RSP || !full.is_gpr64() || ARGUMENTS.contains(&full))
    });
    keeps_memory && keeps_registers
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: u64 = 0x1000;

    fn point(code: &[u8]) -> (u64, ProbeCost) {
        let point = candidate(code, ENTRY).unwrap();
        assert_eq!(point.entry, ENTRY);
        (point.offset - ENTRY, point.cost)
    }

    const CHEAP: ProbeCost = ProbeCost::Emulated;
    const EXPENSIVE: ProbeCost = ProbeCost::SingleStepped;

    #[test]
    fn a_push_at_the_entry_is_probed() {
        assert_eq!(point(&[0x55, 0x48, 0x89, 0xe5, 0xc3]), (0, CHEAP));
        assert_eq!(point(&[0x41, 0x57, 0xc3]), (0, CHEAP), "push r15");
        assert_eq!(point(&[0x48, 0x55, 0xc3]), (0, EXPENSIVE), "a push with REX.W is not emulated");
    }

    #[test]
    fn a_nop_of_five_bytes_is_probed_only_at_the_entry() {
        let nop5 = [0x0f, 0x1f, 0x44, 0, 0];
        assert_eq!(point(&[&nop5[..], &[0xc3]].concat()), (0, CHEAP));
        // endbr64; nop5: skipped, the next instruction or the entry is used
        assert_eq!(point(&[&[0xf3, 0x0f, 0x1e, 0xfa], &nop5[..], &[0x55, 0xc3]].concat()), (9, CHEAP));
        assert_eq!(point(&[&[0xf3, 0x0f, 0x1e, 0xfa], &nop5[..], &[0xc3]].concat()), (0, EXPENSIVE));
        assert_eq!(
            point(&[&[0x31, 0xc0], &nop5[..], &[0xc3]].concat()),
            (0, EXPENSIVE),
            "xor %eax, %eax; nop5"
        );
        // a nop of four bytes is probed
        assert_eq!(point(&[0x31, 0xc0, 0x0f, 0x1f, 0x40, 0x00, 0xc3]), (2, CHEAP));
    }

    #[test]
    fn a_push_after_endbr64_is_probed() {
        assert_eq!(point(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3]), (4, CHEAP));
    }

    #[test]
    fn a_branch_after_a_comparison_is_probed() {
        // cmp dword [rip+x], imm32; je: the beginning of functions in CUDA drivers 535 and 550
        let compare = [0x81, 0x3d, 0x10, 0x20, 0x30, 0x00, 0x00, 0xba, 0x1c, 0x32];
        assert_eq!(point(&[&compare[..], &[0x74, 0x10, 0xc3]].concat()), (10, CHEAP));
        assert_eq!(point(&[&compare[..], &[0x0f, 0x84, 0, 1, 0, 0, 0xc3]].concat()), (10, CHEAP));
    }

    #[test]
    fn without_a_cheap_instruction_the_entry_is_probed() {
        // mov eax, 3; ret
        assert_eq!(point(&[0xb8, 3, 0, 0, 0, 0xc3]), (0, EXPENSIVE));
        // A prologue cut off by the end of what was read.
        assert_eq!(point(&[0x31, 0xc0, 0x0f]), (0, EXPENSIVE));
    }

    #[test]
    fn a_push_after_a_stack_pointer_change_is_not_used() {
        assert_eq!(point(&[0x48, 0x83, 0xec, 0x08, 0x55, 0xc3]), (0, EXPENSIVE), "sub rsp, 8");
        assert_eq!(point(&[0xff, 0x35, 0, 0, 0, 0, 0x55, 0xc3]), (0, EXPENSIVE), "push [rip]");
    }

    #[test]
    fn a_push_after_an_argument_change_is_not_used() {
        assert_eq!(point(&[0x31, 0xd2, 0x55, 0xc3]), (0, EXPENSIVE), "xor edx, edx");
        assert_eq!(point(&[0x40, 0xb7, 0x01, 0x55, 0xc3]), (0, EXPENSIVE), "mov dil, 1");
        assert_eq!(point(&[0x49, 0x89, 0xf9, 0x55, 0xc3]), (0, EXPENSIVE), "mov r9, rdi");
        assert_eq!(point(&[0x48, 0x89, 0x7c, 0x24, 0x10, 0x55, 0xc3]), (0, EXPENSIVE), "mov [rsp+16], rdi");
        assert_eq!(point(&[0x0f, 0x57, 0xc0, 0x55, 0xc3]), (0, EXPENSIVE), "xorps xmm0, xmm0");
    }

    #[test]
    fn a_push_after_harmless_instructions_is_used() {
        // mov rax, rsp; xor r10d, r10d; lea r11, [rip]; test rdi, rdi; push rbp
        let code =
            [0x48, 0x89, 0xe0, 0x45, 0x31, 0xd2, 0x4c, 0x8d, 0x1d, 0, 0, 0, 0, 0x48, 0x85, 0xff, 0x55, 0xc3];
        assert_eq!(point(&code), (16, CHEAP));
    }

    #[test]
    fn a_call_or_return_ends_the_search() {
        assert_eq!(point(&[0xe8, 0, 0, 0, 0, 0x55]), (0, EXPENSIVE));
        assert_eq!(point(&[0x31, 0xc0, 0xc3, 0x55]), (0, EXPENSIVE));
    }

    #[test]
    fn a_jump_at_the_entry_is_probed() {
        assert_eq!(point(&[0xe9, 0, 1, 0, 0]), (0, CHEAP));
        assert_eq!(point(&[0x66, 0xe9, 0, 1, 0, 0]), (0, EXPENSIVE), "processors differ on this one");
    }

    #[test]
    fn a_nop_is_cheap_and_a_long_one_second_choice() {
        assert_eq!(point(&[0x90, 0xc3]), (0, CHEAP));
        assert_eq!(point(&[0x66, 0x90, 0xc3]), (0, CHEAP));
        assert_eq!(point(&[0x66, 0x90, 0x55, 0xc3]), (2, CHEAP));
        assert_eq!(point(&[0x0f, 0x1f, 0x44, 0, 0, 0x55, 0xc3]), (5, CHEAP), "the push is cheap everywhere");
        assert_eq!(point(&[0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x00, 0xc3]), (4, CHEAP));
        // nop word cs:[rax+rax] has a prefix that the Linux kernel refuses.
        let padding = [0x31, 0xc0, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xc3];
        assert_eq!(point(&padding), (0, EXPENSIVE));
    }

    #[test]
    fn instructions_that_the_linux_kernel_refuses_are_errors() {
        // vpxord zmm0, zmm0, zmm0
        const AVX512: [u8; 6] = [0x62, 0xf1, 0x7d, 0x48, 0xef, 0xc0];
        for code in [&[][..], &[0x06], &[0xcc], &[0xf4], &[0xf0, 0x0f, 0xb1, 0x0f], &[0x2e, 0x90], &AVX512] {
            assert!(candidate(code, ENTRY).is_err(), "{code:x?}");
        }
    }
}
