//! The registers at a call, and why an unwound stack ends.

/// The registers of a caller as they will be when the call has returned. `lr` is only for aarch64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The return address.
    pub ip: u64,
    pub sp: u64,
    pub fp: u64,
    pub lr: u64,
}

/// How many registers a called function preserves, besides the frame pointer and the stack pointer: x86-64 has rbx and
/// r12 to r15, aarch64 has x19 to x28.
pub const PRESERVED_REGISTERS: usize = 10;

/// The registers of a thread at any instruction, not only at a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadRegisters {
    /// `ip` is the next instruction.
    pub registers: Registers,
    /// In the order of their numbers.
    pub preserved: [u64; PRESERVED_REGISTERS],
}

/// A return address that a return probe of the Linux kernel has replaced by that of its trampoline. On x86-64 it is on
/// the stack, at the stack pointer that the function was entered with. On aarch64 it was in a register, and the function
/// may have stored it anywhere in its frame, signed; then only the stack pointer shows whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacedReturn {
    /// The stack pointer with which the function was entered.
    pub entered_at: u64,
    pub address: u64,
}

/// Why a stack has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// The outermost frame of the thread was reached.
    Complete,
    /// There are more frames than [`super::FRAME_LIMIT`].
    TooDeep,
    /// The copy of the stack is shorter than the stack.
    CopyEnds,
    /// The read limit for one stack was reached; unwinding the next one continues from there.
    NotYet,
    /// The caller cannot be determined: code without unwind information and frame pointer, a file that cannot be read
    /// (any more), or an invalid stack.
    Lost,
}
