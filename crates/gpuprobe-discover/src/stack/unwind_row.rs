//! One row of unwind information: how to compute the registers of the caller from those of a frame.

use gimli::{
    CfaRule, Encoding, EndianSlice, Evaluation, EvaluationResult, Expression, Format, FrameDescriptionEntry,
    LittleEndian, Location, Piece, Reader, RegisterRule, UnwindExpression, UnwindSection, UnwindTableRow,
    Value,
};

use super::registers::{PRESERVED_REGISTERS, Registers, ReplacedReturn, StackEnd, ThreadRegisters};
use crate::elf::Machine;

/// Registers by DWARF number: x86-64 has 16 and the return address, aarch64 31 and the stack pointer.
const REGISTERS: usize = 33;
/// The most steps of one expression; those of signal frames and jump tables have under ten.
const EXPRESSION_STEPS: u32 = 256;
/// aarch64 code may sign return addresses in the bits above those of user space.
const AARCH64_ADDRESS: u64 = (1 << 48) - 1;

/// The return address in a word of a stack of this machine. On aarch64 the upper bits may sign it.
pub fn return_address_in(word: u64) -> u64 {
    if cfg!(target_arch = "aarch64") { word & AARCH64_ADDRESS } else { word }
}

impl Machine {
    /// DWARF numbers of the frame pointer and of the stack pointer.
    fn frame_and_stack(self) -> (usize, usize) {
        match self {
            Self::X86_64 => (6, 7),
            Self::Aarch64 => (29, 31),
        }
    }

    /// DWARF numbers of the registers that a called function preserves.
    fn preserved(self) -> impl Iterator<Item = usize> {
        let x86_64 = [3, 12, 13, 14, 15].into_iter();
        let aarch64 = (0..PRESERVED_REGISTERS).map(|number| 19 + number);
        let (of_x86_64, of_aarch64) = match self {
            Self::X86_64 => (5, 0),
            Self::Aarch64 => (0, PRESERVED_REGISTERS),
        };
        x86_64.take(of_x86_64).chain(aarch64.take(of_aarch64))
    }

    /// The register with the return address until it is saved.
    fn link(self) -> Option<usize> {
        match self {
            Self::X86_64 => None,
            Self::Aarch64 => Some(30),
        }
    }
}

/// The known registers of one frame.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    machine: Machine,
    values: [Option<u64>; REGISTERS],
    pub(crate) ip: u64,
    /// The address on the stack that `ip` was read from; `None` if it was in a register or computed.
    pub(crate) slot: Option<u64>,
    /// The frame was interrupted by a signal at `ip`, as opposed to a call, which is before `ip`.
    pub(crate) interrupted: bool,
}

impl Known {
    pub(crate) fn new(machine: Machine, registers: Registers) -> Self {
        let mut known =
            Self { machine, values: [None; REGISTERS], ip: registers.ip, slot: None, interrupted: false };
        let (frame, stack) = machine.frame_and_stack();
        known.values[frame] = Some(registers.fp);
        known.values[stack] = Some(registers.sp);
        if let Some(link) = machine.link() {
            known.values[link] = Some(registers.lr);
        }
        known
    }

    /// The innermost frame of a thread, which may be at any instruction.
    pub(crate) fn of_thread(machine: Machine, thread: &ThreadRegisters) -> Self {
        let mut known = Self { interrupted: true, ..Self::new(machine, thread.registers) };
        for (number, value) in machine.preserved().zip(thread.preserved) {
            known.values[number] = Some(value);
        }
        known
    }

    /// The registers that calls preserve; `None` for one that is not known.
    pub(crate) fn preserved(&self) -> impl Iterator<Item = Option<u64>> {
        let frame = self.machine.frame_and_stack().0;
        self.machine.preserved().chain([frame]).map(|number| self.values[number])
    }

    /// The address to look up: that of the call itself, because a call may be the last instruction of its function,
    /// and then the return address belongs to another one.
    pub(crate) fn lookup(&self) -> u64 {
        if self.interrupted { self.ip } else { self.ip.wrapping_sub(1) }
    }

    fn get(&self, register: u16) -> Option<u64> {
        self.values.get(usize::from(register)).copied().flatten()
    }

    fn stack_pointer(&self) -> u64 {
        self.values[self.machine.frame_and_stack().1].unwrap_or(0)
    }

    /// The caller by the frame pointer, for code without unwind information. The other registers are unknown after
    /// that.
    pub(crate) fn by_frame_pointer(&self, stack: &StackCopy<'_>) -> Result<Self, StackEnd> {
        let (frame, stack_pointer) = self.machine.frame_and_stack();
        let pointer = self.values[frame].unwrap_or(0);
        if pointer == 0 {
            return Err(StackEnd::Complete);
        }
        if pointer < self.stack_pointer() || !pointer.is_multiple_of(8) {
            return Err(StackEnd::Lost);
        }
        let slot = pointer.wrapping_add(8);
        let mut caller =
            Self { values: [None; REGISTERS], interrupted: false, slot: Some(slot), ..self.clone() };
        caller.values[frame] = Some(stack.word(pointer)?);
        caller.values[stack_pointer] = Some(pointer.wrapping_add(16));
        caller.arrive(stack.word(slot)?, self, stack)
    }

    /// Sets the return address and checks that this can be the caller of `callee`.
    fn arrive(mut self, address: u64, callee: &Self, stack: &StackCopy<'_>) -> Result<Self, StackEnd> {
        self.ip = match self.machine {
            Machine::X86_64 => address,
            Machine::Aarch64 => stack.replaced(self.stack_pointer()).unwrap_or(address & AARCH64_ADDRESS),
        };
        if self.ip == 0 {
            return Err(StackEnd::Complete);
        }
        // Each frame is above the one it called; otherwise unwinding could loop. The innermost function of a thread may
        // have no frame on aarch64.
        let has_frame = self.stack_pointer() > callee.stack_pointer();
        let may_have_none = self.machine == Machine::Aarch64 && callee.interrupted && self.slot.is_none();
        let is_above = has_frame || may_have_none && self.stack_pointer() == callee.stack_pointer();
        if is_above { Ok(self) } else { Err(StackEnd::Lost) }
    }
}

/// A copy of the stack from the stack pointer upwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackCopy<'s> {
    pub(crate) start: u64,
    pub(crate) bytes: &'s [u8],
    pub(crate) replaced: &'s [ReplacedReturn],
}

impl StackCopy<'_> {
    /// The real return address of the function that was entered with this stack pointer, if a probe has replaced it.
    fn replaced(&self, stack_pointer: u64) -> Option<u64> {
        self.replaced
            .iter()
            .find(|replaced| replaced.entered_at == stack_pointer)
            .map(|replaced| replaced.address)
    }

    fn word(&self, address: u64) -> Result<u64, StackEnd> {
        let within = address.checked_sub(self.start).ok_or(StackEnd::Lost)?;
        let word = usize::try_from(within).ok().and_then(|at| self.bytes.get(at..)?.first_chunk());
        word.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(StackEnd::CopyEnds)
    }
}

#[derive(Clone, Debug)]
enum Rule {
    /// The caller's value is not recoverable.
    Undefined,
    Same,
    /// Stored at this offset from the frame address (CFA).
    StoredAt(i64),
    /// The frame address plus this offset.
    Is(i64),
    InRegister(u16),
    StoredAtExpression(Box<[u8]>),
    IsExpression(Box<[u8]>),
}

#[derive(Clone, Debug)]
enum FrameAddress {
    Register(u16, i64),
    Expression(Box<[u8]>),
}

/// How to unwind at one instruction.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    frame_address: FrameAddress,
    return_register: u16,
    rules: Vec<(u16, Rule)>,
    signal: bool,
}

impl Row {
    /// `None` if it uses something that no compiler writes.
    pub(crate) fn new<'b, S>(
        section: &S,
        fde: &FrameDescriptionEntry<EndianSlice<'b, LittleEndian>>,
        row: &UnwindTableRow<usize>,
    ) -> Option<Self>
    where
        S: UnwindSection<EndianSlice<'b, LittleEndian>>,
    {
        let expression = |found: &UnwindExpression<usize>| bytes_of(section, found);
        let frame_address = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => FrameAddress::Register(register.0, *offset),
            CfaRule::Expression(found) => FrameAddress::Expression(expression(found)?),
        };
        let mut rules = Vec::new();
        for (register, rule) in row.registers() {
            let rule = match rule {
                RegisterRule::Undefined => Rule::Undefined,
                RegisterRule::SameValue => Rule::Same,
                RegisterRule::Offset(offset) => Rule::StoredAt(*offset),
                RegisterRule::ValOffset(offset) => Rule::Is(*offset),
                RegisterRule::Register(other) => Rule::InRegister(other.0),
                RegisterRule::Expression(found) => Rule::StoredAtExpression(expression(found)?),
                RegisterRule::ValExpression(found) => Rule::IsExpression(expression(found)?),
                // the state of signed return addresses, whose signature bits are removed anyway
                _ => continue,
            };
            if usize::from(register.0) < REGISTERS {
                rules.push((register.0, rule));
            }
        }
        let return_register = fde.cie().return_address_register().0;
        Some(Self { frame_address, return_register, rules, signal: fde.is_signal_trampoline() })
    }

    /// The registers of the caller.
    pub(crate) fn step(&self, known: &Known, stack: &StackCopy<'_>) -> Result<Known, StackEnd> {
        let frame_address = match &self.frame_address {
            FrameAddress::Register(register, offset) => {
                known.get(*register).ok_or(StackEnd::Lost)?.wrapping_add_signed(*offset)
            }
            FrameAddress::Expression(bytes) => evaluate(bytes, None, known, stack)?,
        };
        let mut caller = Known { interrupted: self.signal, slot: None, ..known.clone() };
        caller.values[known.machine.frame_and_stack().1] = Some(frame_address);
        let mut address = known.machine.link().and_then(|link| known.values[link]).ok_or(StackEnd::Lost);
        for (register, rule) in &self.rules {
            let value = rule.value(*register, frame_address, known, stack);
            if *register == self.return_register {
                if matches!(rule, Rule::Undefined) {
                    return Err(StackEnd::Complete);
                }
                address = value;
                caller.slot = rule.slot(frame_address);
            }
            // a register that cannot be restored may never be needed
            caller.values[usize::from(*register)] = value.ok();
        }
        caller.arrive(address?, known, stack)
    }
}

impl Rule {
    /// The address that the value is stored at, if it is a plain offset.
    fn slot(&self, frame_address: u64) -> Option<u64> {
        match self {
            Self::StoredAt(offset) => Some(frame_address.wrapping_add_signed(*offset)),
            _ => None,
        }
    }

    fn value(
        &self,
        register: u16,
        frame_address: u64,
        known: &Known,
        stack: &StackCopy<'_>,
    ) -> Result<u64, StackEnd> {
        match self {
            Self::Undefined => Err(StackEnd::Lost),
            Self::Same => known.get(register).ok_or(StackEnd::Lost),
            Self::StoredAt(offset) => stack.word(frame_address.wrapping_add_signed(*offset)),
            Self::Is(offset) => Ok(frame_address.wrapping_add_signed(*offset)),
            Self::InRegister(other) => known.get(*other).ok_or(StackEnd::Lost),
            Self::StoredAtExpression(bytes) => {
                stack.word(evaluate(bytes, Some(frame_address), known, stack)?)
            }
            Self::IsExpression(bytes) => evaluate(bytes, Some(frame_address), known, stack),
        }
    }
}

fn bytes_of<'b, S>(section: &S, found: &UnwindExpression<usize>) -> Option<Box<[u8]>>
where
    S: UnwindSection<EndianSlice<'b, LittleEndian>>,
{
    let expression: Expression<_> = found.get(section).ok()?;
    Some(expression.0.to_slice().ok()?.into())
}

fn evaluate(bytes: &[u8], first: Option<u64>, known: &Known, stack: &StackCopy<'_>) -> Result<u64, StackEnd> {
    let lost = |_: gimli::Error| StackEnd::Lost;
    let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
    let mut evaluation = Evaluation::new(EndianSlice::new(bytes, LittleEndian), encoding);
    evaluation.set_max_iterations(EXPRESSION_STEPS);
    if let Some(value) = first {
        evaluation.set_initial_value(value);
    }
    let mut result = evaluation.evaluate().map_err(lost)?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, size: 8, space: None, .. } => {
                evaluation.resume_with_memory(Value::Generic(stack.word(address)?)).map_err(lost)?
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                // in jump tables the number of the return address means the instruction pointer
                let value = if known.machine == Machine::X86_64 && register.0 == 16 {
                    known.ip
                } else {
                    known.get(register.0).ok_or(StackEnd::Lost)?
                };
                evaluation.resume_with_register(Value::Generic(value)).map_err(lost)?
            }
            _ => return Err(StackEnd::Lost),
        };
    }
    match evaluation.as_result() {
        [Piece { location: Location::Address { address }, .. }] => Ok(*address),
        _ => Err(StackEnd::Lost),
    }
}
