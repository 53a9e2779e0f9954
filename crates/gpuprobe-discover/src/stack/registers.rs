//! The registers at a call, and why unwinding stops.

/// The registers of a caller as they will be when the call has returned. `lr` is of aarch64 alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The return address.
    pub ip: u64,
    pub sp: u64,
    pub fp: u64,
    pub lr: u64,
}

/// Why a stack has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// The thread began here.
    Complete,
    /// There are more than are told.
    TooDeep,
    /// The copy of the stack is shorter than the stack.
    CopyEnds,
    /// There was too much to be read for one stack; the next one goes on with it.
    NotYet,
    /// The caller cannot be told: code without unwind information and frame pointer, a file that cannot be read
    /// (any more), or a stack that makes no sense.
    Lost,
}
