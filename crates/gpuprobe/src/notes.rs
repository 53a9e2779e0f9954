//! What people are told beside the output proper, on stderr.

use std::fmt;
use std::io::{self, Write};

/// Writes to stderr. Whoever closed it does not want to know, and that is no reason to fail: `eprintln!` would panic.
pub(crate) fn tell(text: fmt::Arguments<'_>) {
    io::stderr().write_fmt(text).ok();
}

/// A line on stderr.
macro_rules! note {
    ($($word:tt)*) => { $crate::notes::tell(format_args!("{}\n", format_args!($($word)*))) };
}

pub(crate) use note;
