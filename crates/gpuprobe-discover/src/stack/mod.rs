//! Unwinds copied user stacks into return addresses, and resolves the addresses to functions and source lines.
//!
//! gimli parses the unwind information, but the unwinder is our own: crates such as framehop want whole sections in
//! memory, and here the bytes that are read for one stack have a limit.

mod address_space;
mod export_thunks;
mod registers;
mod symbolize;
mod unwind_row;
mod unwind_table;
mod unwinder;

pub use registers::{PRESERVED_REGISTERS, Registers, ReplacedReturn, StackEnd, ThreadRegisters};
pub use symbolize::{ResolvedAddress, Symbolizer};
pub use unwind_row::return_address_in;
pub use unwinder::{FRAME_LIMIT, Stack, Unwinder};
