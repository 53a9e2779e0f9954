//! Headings, lines and names of the summary, and where it is shown.

use std::fmt::Write;

use crate::units::{fitted, printable};

/// Longer names are shortened, for readability.
pub(super) const LONGEST_NAME: usize = 120;

/// Where the summary is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// On a terminal: names of CUDA kernels are shortened so that tables fit.
    Terminal,
    /// In a file or another program: names are complete.
    File,
}

/// The name of a function, a process or an error, made safe for a terminal: a trace may contain any name.
pub(super) fn name(text: &str) -> String {
    fitted(&printable(text), LONGEST_NAME).into_owned()
}

/// Appends a heading with an empty line before it.
pub(super) fn heading(out: &mut String, text: &str) {
    out.push('\n');
    out.push_str(text);
    out.push('\n');
}

/// Appends a line under a heading. Writing into a `String` cannot fail.
pub(super) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = writeln!(out, "  {text}");
    debug_assert!(written.is_ok());
}
