//! Whether anything jumps to the instructions between the entry and a probe point. If so, a loop would be counted as
//! calls, with the arguments of a later iteration, so such a point is not used.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::aarch64::{self, Flow};
use crate::elf::Machine;

/// How many targets outside the function are followed, and how far: compilers move rarely executed parts of a
/// function elsewhere, and those jump back.
const OUTSIDE_TARGETS: usize = 16;
pub(crate) const OUTSIDE_BYTES: u64 = 1024;
/// How many instructions before an indirect jump are searched for the load of its target.
const LOOK_BACK: usize = 4;

/// True unless it is certain enough that the instructions in (entry, point] are reached only from the entry. `code`
/// is the whole function; `outside` reads code at another file offset (empty if it cannot).
pub(crate) fn may_return_to(
    machine: Machine,
    code: &[u8],
    entry: u64,
    point: u64,
    outside: &dyn Fn(u64) -> Vec<u8>,
) -> bool {
    let passed = entry + 1..=point;
    let function = entry..entry + code.len() as u64;
    let mut left = Vec::new();
    // In file order, not along the branches: that covers the cases of a switch without reading its table.
    for step in steps(machine, code, entry) {
        if step.may_be_table_jump || step.target.is_some_and(|target| passed.contains(&target)) {
            return true;
        }
        let leaves = step.target.filter(|target| !function.contains(target));
        if let Some(target) = leaves.filter(|target| left.len() < OUTSIDE_TARGETS && !left.contains(target)) {
            left.push(target);
        }
    }
    left.into_iter().any(|start| {
        let code = outside(start);
        for step in steps(machine, &code, start) {
            if step.target.is_some_and(|target| passed.contains(&target)) {
                return true;
            }
            if !step.falls_through {
                break;
            }
        }
        false
    })
}

/// The targets of the direct branches in this code, in the order of the code.
pub(crate) fn branch_targets(machine: Machine, code: &[u8], start: u64) -> Vec<u64> {
    steps(machine, code, start).filter_map(|step| step.target).collect()
}

/// The control flow of one instruction.
struct Step {
    /// The target of a direct branch. Calls return and are not branches.
    target: Option<u64>,
    /// Whether it may jump anywhere in the function.
    may_be_table_jump: bool,
    /// Whether the next instruction may run after it.
    falls_through: bool,
}

fn steps(machine: Machine, code: &[u8], start: u64) -> Box<dyn Iterator<Item = Step> + '_> {
    match machine {
        Machine::X86_64 => Box::new(steps_x86(code, start)),
        Machine::Aarch64 => Box::new(steps_aarch64(code, start)),
    }
}

/// Every jump through a register counts as one through a table. Little is lost, because only one instruction is
/// skipped, which few functions have.
fn steps_aarch64(code: &[u8], start: u64) -> impl Iterator<Item = Step> {
    let addresses = (start..).step_by(aarch64::WORD as usize);
    aarch64::words(code).zip(addresses).map(|(word, at)| {
        let flow = aarch64::flow(word, at);
        let target = match flow {
            Flow::Conditional(target) | Flow::Jump(target) => Some(target),
            Flow::Next | Flow::IndirectJump | Flow::Return => None,
        };
        let falls_through = matches!(flow, Flow::Next | Flow::Conditional(_));
        Step { target, may_be_table_jump: flow == Flow::IndirectJump, falls_through }
    })
}

fn steps_x86(code: &[u8], start: u64) -> impl Iterator<Item = Step> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut recent: [Instruction; LOOK_BACK] = Default::default();
    let mut index = 0;
    std::iter::from_fn(move || {
        let instruction = decoder.can_decode().then(|| decoder.decode())?;
        let may_be_table_jump = may_be_table_jump(&instruction, &recent, index);
        recent[index % LOOK_BACK] = instruction;
        index += 1;
        let falls_through = matches!(
            instruction.flow_control(),
            FlowControl::Next
                | FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::ConditionalBranch
        );
        Some(Step { target: branch_target(&instruction), may_be_table_jump, falls_through })
    })
}

fn branch_target(instruction: &Instruction) -> Option<u64> {
    match instruction.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            Some(instruction.near_branch_target())
        }
        _ => None,
    }
}

/// An indirect jump is either a tail call through a pointer or a jump through a table of addresses in this function,
/// any of which may be in the skipped part. It counts as a tail call only if the target was loaded from one fixed
/// address (`jmp [rip+x]`, `mov rax, [rbx+8]; jmp rax`): a table needs an index, or an addition to what was loaded.
fn may_be_table_jump(instruction: &Instruction, recent: &[Instruction], index: usize) -> bool {
    if instruction.flow_control() != FlowControl::IndirectBranch {
        return false;
    }
    if instruction.op0_kind() == OpKind::Memory {
        return instruction.memory_index() != Register::None;
    }
    let register = instruction.op0_register();
    let before = (1..=LOOK_BACK.min(index)).map(|back| &recent[(index - back) % LOOK_BACK]);
    let writer = before.take_while(|earlier| earlier.flow_control() == FlowControl::Next).find(|earlier| {
        earlier.op0_kind() == OpKind::Register && earlier.op0_register().full_register() == register
    });
    !writer.is_some_and(|writer| {
        writer.mnemonic() == Mnemonic::Mov
            && writer.op1_kind() == OpKind::Memory
            && writer.memory_index() == Register::None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: u64 = 0x1000;
    /// test rdi, rdi; je +x: the point is at +3, and code continues at +5.
    const START: [u8; 5] = [0x48, 0x85, 0xff, 0x74, 0x10];

    fn returns(rest: &[u8]) -> bool {
        may_return_to(Machine::X86_64, &[&START, rest].concat(), ENTRY, ENTRY + 3, &|_| Vec::new())
    }

    #[test]
    fn a_loop_to_the_point_or_before_it_is_found() {
        assert!(returns(&[0x90, 0xeb, 0xfb]), "jmp to +3");
        assert!(!returns(&[0x90, 0xeb, 0xfd]), "jmp to +5, after the point");
        assert!(!returns(&[0xeb, 0xf9]), "a jump to the entry would be counted there too");
        assert!(returns(&[0x0f, 0x85, 0xf8, 0xff, 0xff, 0xff]), "jne to +3");
        assert!(!returns(&[0xc3]));
    }

    #[test]
    fn a_jump_through_a_table_counts_as_a_loop() {
        assert!(returns(&[0xff, 0x24, 0xc5, 0, 0, 0, 0]), "jmp [rax*8+x]");
        // movsxd rax, [rdx+rax*4]; add rax, rdx; jmp rax
        assert!(returns(&[0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0]));
        assert!(returns(&[0xff, 0xe0]), "jmp rax, from an unknown address");
        // mov rax, [rdx+rax*8]; jmp rax
        assert!(returns(&[0x48, 0x8b, 0x04, 0xc2, 0xff, 0xe0]));
    }

    #[test]
    fn a_tail_call_through_a_pointer_does_not_count_as_a_loop() {
        assert!(!returns(&[0xff, 0x25, 0, 0, 0, 0]), "jmp [rip+x]");
        // mov rax, [rip+x]; nop; jmp rax
        assert!(!returns(&[0x48, 0x8b, 0x05, 0, 0, 0, 0, 0x90, 0xff, 0xe0]));
    }

    #[test]
    fn parts_moved_elsewhere_are_followed() {
        // je to 0x2000, which jumps back to the point.
        let code = [&START[..3], &[0x0f, 0x84, 0xf7, 0x0f, 0, 0, 0xc3]].concat();
        let back = [0x90, 0xe9, 0xfd, 0xef, 0xff, 0xff];
        let read = |at: u64| if at == 0x2000 { back.to_vec() } else { Vec::new() };
        assert!(may_return_to(Machine::X86_64, &code, ENTRY, ENTRY + 3, &read));
        let away = |_: u64| vec![0xc3, 0xe9, 0xfd, 0xef, 0xff, 0xff];
        let returns = may_return_to(Machine::X86_64, &code, ENTRY, ENTRY + 3, &away);
        assert!(!returns, "what follows a return is another function");
    }

    /// bti c; cbz x0, .+8: the point is at +4, and code continues at +8.
    fn returns_on_aarch64(rest: &[u32], outside: &[u32]) -> bool {
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let code = bytes(&[&[0xd503_245f, 0xb400_0040], rest].concat());
        may_return_to(Machine::Aarch64, &code, ENTRY, ENTRY + 4, &|_| bytes(outside))
    }

    #[test]
    fn aarch64_loops_are_found() {
        assert!(returns_on_aarch64(&[0x17ff_ffff], &[]), "b to +4");
        assert!(!returns_on_aarch64(&[0x1400_0000], &[]), "b to itself");
        assert!(!returns_on_aarch64(&[0x17ff_fffe], &[]), "a jump to the entry would be counted there too");
        assert!(returns_on_aarch64(&[0xd503_201f, 0x54ff_ffc1], &[]), "nop; b.ne to +4");
        assert!(returns_on_aarch64(&[0xd61f_0200], &[]), "br x16, to an unknown address");
        assert!(!returns_on_aarch64(&[0x97ff_ffff, 0xd63f_0200, 0xd65f_03c0], &[]), "calls and a return");
    }

    #[test]
    fn aarch64_parts_moved_elsewhere_are_followed() {
        // b to 0x2000, and from there to +4
        let away = 0x1400_03fe;
        let back = 0x17ff_fc00;
        assert!(returns_on_aarch64(&[away], &[0xd503_201f, back]));
        assert!(
            !returns_on_aarch64(&[away], &[0xd65f_03c0, back]),
            "what follows a return is another function"
        );
    }
}
