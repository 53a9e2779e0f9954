//! Messages on stderr.

use std::fmt;
use std::io::{self, Write};

/// Writes to stderr. A closed stderr is not an error: `eprintln!` would panic.
pub(crate) fn print_stderr(text: fmt::Arguments<'_>) {
    io::stderr().write_fmt(text).ok();
}

/// Prints a line on stderr.
macro_rules! note {
    ($($word:tt)*) => { $crate::terminal::notes::print_stderr(format_args!("{}\n", format_args!($($word)*))) };
}

pub(crate) use note;
