//! Which register has the status of a failed call, and whether it is certain that it is not 0, which would be a
//! success.

use std::cell::RefCell;
use std::collections::HashSet;

use iced_x86::{
    Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

use super::function_flow::FunctionFlow;

/// Registers that calls preserve, in the order of their numbers in BPF (`gp_status_register`).
pub(super) const PRESERVED: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
/// How many instructions before a comparison are searched for a copy of its register.
const LOOK_BACK: usize = 4;
/// How many instructions are examined for one register.
const MOST_STEPS: usize = 4096;

thread_local! {
    /// Reused, because it allocates.
    static INFO: RefCell<InstructionInfoFactory> = RefCell::new(InstructionInfoFactory::new());
}

pub(super) fn full(register: Register) -> Register {
    register.full_register()
}

/// Whether an instruction may change a register. Calls change those that they do not preserve.
pub(super) fn changes(instruction: &Instruction, register: Register) -> bool {
    if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        return !PRESERVED.contains(&register);
    }
    INFO.with_borrow_mut(|info| {
        info.info(instruction).used_registers().iter().any(|used| {
            full(used.register()) == register
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
        })
    })
}

/// The source of `mov target, source` between registers of 32 or 64 bits.
pub(super) fn copied(instruction: &Instruction) -> Option<(Register, Register)> {
    let is_copy = matches!(
        instruction.code(),
        Code::Mov_rm32_r32 | Code::Mov_r32_rm32 | Code::Mov_rm64_r64 | Code::Mov_r64_rm64
    ) && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register;
    is_copy.then(|| (full(instruction.op0_register()), full(instruction.op1_register())))
}

/// Why a register may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayBeZero {
    /// It is the result of this function, whose argument was copied from a result.
    ResultOf(u64),
    Unknown,
}

/// Whether a register is certainly not 0 whenever execution reaches this instruction. All ways to it are followed
/// back to a comparison with 0, or to where the register gets a constant. The function `translate` turns a status of
/// the CUDA driver into one of the runtime: its result is 0 only if its argument is.
pub(super) fn is_never_zero(
    flow: &FunctionFlow,
    at: u64,
    register: Register,
    translate: Option<u64>,
) -> Result<(), MayBeZero> {
    let mut seen = HashSet::from([(at, register)]);
    let mut open = vec![(at, register)];
    while let Some((at, register)) = open.pop() {
        let node = flow.get(at).filter(|_| at != flow.entry).ok_or(MayBeZero::Unknown)?;
        if seen.len() > MOST_STEPS {
            return Err(MayBeZero::Unknown);
        }
        for before in node.before() {
            match way(flow, before, at, register, translate) {
                Way::NotZero => {}
                Way::MayBeZero(why) => return Err(why),
                Way::Before(register) if seen.insert((before, register)) => open.push((before, register)),
                Way::Before(_) => {}
            }
        }
    }
    Ok(())
}

/// What one instruction says about a register that is needed after it.
enum Way {
    NotZero,
    MayBeZero(MayBeZero),
    /// This register must not be 0 before it.
    Before(Register),
}

/// `after` is the instruction that is reached.
fn way(flow: &FunctionFlow, at: u64, after: u64, register: Register, translate: Option<u64>) -> Way {
    let Some(node) = flow.get(at) else { return Way::MayBeZero(MayBeZero::Unknown) };
    let instruction = &node.instruction;
    if instruction.flow_control() == FlowControl::ConditionalBranch {
        let is_shown = branch_shows(flow, at, after, register);
        return if is_shown { Way::NotZero } else { Way::Before(register) };
    }
    if !changes(instruction, register) {
        return Way::Before(register);
    }
    match copied(instruction) {
        Some((target, source)) if target == register => return Way::Before(source),
        _ => {}
    }
    if instruction.code() == Code::Call_rel32_64 && register == Register::RAX {
        let function = instruction.near_branch_target();
        return match node.only_before().and_then(|before| flow.get(before)) {
            _ if translate == Some(function) => Way::Before(Register::RDI),
            Some(before) if passes_result(&before.instruction) => {
                Way::MayBeZero(MayBeZero::ResultOf(function))
            }
            _ => Way::MayBeZero(MayBeZero::Unknown),
        };
    }
    let is_constant = matches!(instruction.code(), Code::Mov_r32_imm32 | Code::Mov_rm32_imm32)
        && instruction.op0_kind() == OpKind::Register
        && instruction.immediate32() != 0;
    if is_constant { Way::NotZero } else { Way::MayBeZero(MayBeZero::Unknown) }
}

/// Whether an instruction passes the result of a call on as the argument of the next.
fn passes_result(instruction: &Instruction) -> bool {
    copied(instruction) == Some((Register::RDI, Register::RAX))
}

/// Whether a branch to `after` is taken only if a register is not 0.
fn branch_shows(flow: &FunctionFlow, at: u64, after: u64, mut register: Register) -> bool {
    let Some(branch) = flow.get(at).map(|node| &node.instruction) else { return false };
    let (taken, next) = (branch.near_branch_target() == after, branch.next_ip() == after);
    let equal = match branch.condition_code() {
        ConditionCode::e => taken,
        ConditionCode::ne => next,
        _ => return false,
    };
    let mut last = at;
    for _ in 0..LOOK_BACK {
        let Some((before, instruction)) = only_before(flow, last).filter(|_| taken != next) else {
            return false;
        };
        if instruction.rflags_modified() != 0 {
            return compared(instruction, equal)
                .is_some_and(|tested| tested == register || is_copy_of(flow, before, tested, register));
        }
        match copied(instruction) {
            Some((target, source)) if target == register => register = source,
            _ if changes(instruction, register) => return false,
            _ => {}
        }
        last = before;
    }
    false
}

/// The instruction before this one, if there is only one way to it.
fn only_before(flow: &FunctionFlow, at: u64) -> Option<(u64, &Instruction)> {
    let before = flow.get(at)?.only_before()?;
    let instruction = &flow.get(before)?.instruction;
    (instruction.next_ip() == at).then_some((before, instruction))
}

/// The register that is not 0 if the two sides of a comparison are equal, or if they are not.
fn compared(comparison: &Instruction, equal: bool) -> Option<Register> {
    if comparison.op0_kind() != OpKind::Register {
        return None;
    }
    let not_zero = match (comparison.mnemonic(), comparison.op1_kind()) {
        (Mnemonic::Test, OpKind::Register) => {
            !equal && comparison.op0_register() == comparison.op1_register()
        }
        (Mnemonic::Cmp, OpKind::Immediate8to32 | OpKind::Immediate32) => {
            equal == (comparison.immediate(1) != 0)
        }
        _ => false,
    };
    // a status has 32 bits
    (not_zero && comparison.op0_register().size() == 4).then(|| full(comparison.op0_register()))
}

/// Whether two registers have the same value at an instruction because one was copied to the other shortly before.
fn is_copy_of(flow: &FunctionFlow, mut at: u64, one: Register, other: Register) -> bool {
    for _ in 0..LOOK_BACK {
        let Some((before, instruction)) = only_before(flow, at) else { return false };
        match copied(instruction) {
            Some(pair) if pair == (one, other) || pair == (other, one) => return true,
            _ if changes(instruction, one) || changes(instruction, other) => return false,
            _ => at = before,
        }
    }
    false
}
