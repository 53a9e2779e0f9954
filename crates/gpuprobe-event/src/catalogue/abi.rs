//! Where the calling conventions put arguments: System V on x86-64, AAPCS64 on aarch64.
//!
//! Only the classes that CUDA's prototypes use are here: integers and pointers, structs of integers by value, and
//! floats (which are skipped over, for a probe does not see vector registers).

use super::types::ArgKind;

/// Integer argument registers on x86-64: rdi, rsi, rdx, rcx, r8, r9.
pub const X86_64_REGISTERS: u8 = 6;
/// Integer argument registers on aarch64: x0 to x7.
pub const AARCH64_REGISTERS: u8 = 8;

/// Where an argument lies when its function is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this many integer registers, from this one on.
    Register { first: u8, count: u8 },
    /// On the stack: byte offset from the first stack argument (past the return address on x86-64).
    Stack { offset: u16, bytes: u16 },
    /// In memory that this integer register points to.
    Indirect { register: u8 },
    /// In a vector register, which a probe does not see.
    Vector,
}

impl Place {
    /// As the processor's manual calls it: `rdi`, `[rsp+8]`, `x0`.
    pub fn describe(self, aarch64: bool) -> String {
        const NAMES: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];
        let register = |i: u8| {
            if aarch64 { format!("x{i}") } else { (*NAMES.get(usize::from(i)).unwrap_or(&"?")).to_owned() }
        };
        match self {
            Self::Register { first, count } => {
                (first..first + count).map(register).collect::<Vec<_>>().join("+")
            }
            Self::Stack { offset, .. } if aarch64 => format!("[sp+{offset}]"),
            Self::Stack { offset, .. } => format!("[rsp+{}]", offset + 8),
            Self::Indirect { register: r } => format!("*{}", register(r)),
            Self::Vector => "vector".to_owned(),
        }
    }
}

/// Places the arguments of one function on x86-64. A result struct in memory takes the first register.
pub(crate) fn place_x86_64(kinds: &[ArgKind], hidden_result: bool) -> Vec<Place> {
    let mut registers = Registers { next: u8::from(hidden_result), limit: X86_64_REGISTERS, stack: 0 };
    kinds
        .iter()
        .map(|kind| match kind {
            ArgKind::Float => Place::Vector,
            // over two eightbytes is class MEMORY: always on the stack
            ArgKind::Struct { bytes, .. } if *bytes > 16 => registers.push_stack(*bytes),
            kind => registers.take(kind.bytes(), false),
        })
        .collect()
}

/// Places the arguments of one function on aarch64. The hidden result goes to x8, which is no argument register.
pub(crate) fn place_aarch64(kinds: &[ArgKind]) -> Vec<Place> {
    let mut registers = Registers { next: 0, limit: AARCH64_REGISTERS, stack: 0 };
    kinds
        .iter()
        .map(|kind| match kind {
            ArgKind::Float => Place::Vector,
            // larger structs are copied by the caller, which passes a pointer to the copy
            ArgKind::Struct { bytes, .. } if *bytes > 16 => match registers.take(8, true) {
                Place::Register { first, .. } => Place::Indirect { register: first },
                on_stack => on_stack,
            },
            kind => registers.take(kind.bytes(), true),
        })
        .collect()
}

struct Registers {
    next: u8,
    limit: u8,
    stack: u16,
}

impl Registers {
    fn take(&mut self, bytes: u16, exhaust: bool) -> Place {
        let count = u8::try_from(bytes.div_ceil(8)).unwrap_or(u8::MAX);
        if self.next + count <= self.limit {
            let first = self.next;
            self.next += count;
            return Place::Register { first, count };
        }
        if exhaust {
            // AAPCS64 C.13: once an argument went to the stack, no later one uses a register
            self.next = self.limit;
        }
        self.push_stack(bytes)
    }

    fn push_stack(&mut self, bytes: u16) -> Place {
        let offset = self.stack;
        self.stack += bytes.div_ceil(8) * 8;
        Place::Stack { offset, bytes }
    }
}
