//! Unwinds copied user stacks into return addresses, and resolves the addresses to functions and source lines.

mod address_space;
mod registers;
mod symbolize;
mod unwind_row;
mod unwind_table;
mod unwinder;

pub use registers::{Registers, StackEnd};
pub use symbolize::{ResolvedAddress, Symbolizer};
pub use unwinder::{FRAME_LIMIT, Stack, Unwinder};
