//! Whether anything jumps into the part of a function that a probe point passed over. If so, a loop would be
//! counted as calls, and the arguments would be those of a later round: such a point is not used. x86-64.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// How many places outside the function are followed, and how far: compilers move rarely run parts of a
/// function elsewhere, and those jump back.
const OUTSIDE_PLACES: usize = 16;
pub(crate) const OUTSIDE_BYTES: u64 = 1024;
/// How many instructions before an indirect jump may have loaded its target.
const LOOK_BACK: usize = 4;

/// True unless it is certain enough that only the entry leads to the instructions in (entry, point].
/// `code` is the whole function, `outside` reads code at another file offset (empty when it cannot).
pub(crate) fn may_return_to(code: &[u8], entry: u64, point: u64, outside: &dyn Fn(u64) -> Vec<u8>) -> bool {
    let passed = entry + 1..=point;
    let function = entry..entry + code.len() as u64;
    let mut left = Vec::new();
    let mut recent: [Instruction; LOOK_BACK] = Default::default();
    // Straight through, not along the branches: that way the cases of a switch are seen without its table.
    for (index, instruction) in Decoder::with_ip(64, code, entry, DecoderOptions::NONE).iter().enumerate() {
        if let Some(target) = branch_target(&instruction) {
            if passed.contains(&target) {
                return true;
            }
            if !function.contains(&target) && left.len() < OUTSIDE_PLACES && !left.contains(&target) {
                left.push(target);
            }
        } else if may_be_table_jump(&instruction, &recent, index) {
            return true;
        }
        recent[index % LOOK_BACK] = instruction;
    }
    left.into_iter().any(|start| {
        let code = outside(start);
        let mut instructions = Decoder::with_ip(64, &code, start, DecoderOptions::NONE);
        while instructions.can_decode() {
            let instruction = instructions.decode();
            if branch_target(&instruction).is_some_and(|target| passed.contains(&target)) {
                return true;
            }
            if !matches!(
                instruction.flow_control(),
                FlowControl::Next
                    | FlowControl::Call
                    | FlowControl::IndirectCall
                    | FlowControl::ConditionalBranch
            ) {
                break;
            }
        }
        false
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

/// An indirect jump is either a call in last place, through a pointer, or a jump through a table of places in
/// this function, of which any may be the wrong one. It is taken for the first only where the target was
/// loaded from one fixed place (`jmp [rip+x]`, `mov rax, [rbx+8]; jmp rax`): a table needs an index, or an
/// addition to what was loaded.
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
    /// test rdi, rdi; je +x: the point is at +3, and code goes on at +5.
    const START: [u8; 5] = [0x48, 0x85, 0xff, 0x74, 0x10];

    fn returns(rest: &[u8]) -> bool {
        may_return_to(&[&START, rest].concat(), ENTRY, ENTRY + 3, &|_| Vec::new())
    }

    #[test]
    fn a_loop_to_the_point_or_before_it_is_seen() {
        assert!(returns(&[0x90, 0xeb, 0xfb]), "jmp to +3");
        assert!(!returns(&[0x90, 0xeb, 0xfd]), "jmp to +5, behind the point");
        assert!(!returns(&[0xeb, 0xf9]), "jmp to the entry is what the entry would count too");
        assert!(returns(&[0x0f, 0x85, 0xf8, 0xff, 0xff, 0xff]), "jne to +3");
        assert!(!returns(&[0xc3]));
    }

    #[test]
    fn a_jump_through_a_table_is_taken_for_a_return() {
        assert!(returns(&[0xff, 0x24, 0xc5, 0, 0, 0, 0]), "jmp [rax*8+x]");
        // movsxd rax, [rdx+rax*4]; add rax, rdx; jmp rax
        assert!(returns(&[0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0]));
        assert!(returns(&[0xff, 0xe0]), "jmp rax, from who knows where");
        // mov rax, [rdx+rax*8]; jmp rax
        assert!(returns(&[0x48, 0x8b, 0x04, 0xc2, 0xff, 0xe0]));
    }

    #[test]
    fn a_call_through_a_pointer_in_last_place_is_not() {
        assert!(!returns(&[0xff, 0x25, 0, 0, 0, 0]), "jmp [rip+x]");
        // mov rax, [rip+x]; nop; jmp rax
        assert!(!returns(&[0x48, 0x8b, 0x05, 0, 0, 0, 0, 0x90, 0xff, 0xe0]));
    }

    #[test]
    fn parts_moved_elsewhere_are_followed() {
        // je to 0x2000, where there is a jump back to the point.
        let code = [&START[..3], &[0x0f, 0x84, 0xf7, 0x0f, 0, 0, 0xc3]].concat();
        let back = [0x90, 0xe9, 0xfd, 0xef, 0xff, 0xff];
        let read = |at: u64| if at == 0x2000 { back.to_vec() } else { Vec::new() };
        assert!(may_return_to(&code, ENTRY, ENTRY + 3, &read));
        let away = |_: u64| vec![0xc3, 0xe9, 0xfd, 0xef, 0xff, 0xff];
        assert!(!may_return_to(&code, ENTRY, ENTRY + 3, &away), "what follows a return is another function");
    }
}
