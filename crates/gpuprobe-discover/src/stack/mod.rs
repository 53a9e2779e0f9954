//! Unwinds copied user stacks into return addresses, and resolves the addresses to functions and source lines.

mod address_space;
mod registers;
mod symbolize;
mod unwind;
mod unwind_row;
mod unwind_table;

pub use registers::{Registers, StackEnd};
pub use symbolize::{Place, Symbolizer};
pub use unwind::{FRAME_LIMIT, Stack, Unwinder};
