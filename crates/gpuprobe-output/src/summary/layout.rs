//! Headings, lines and names of the summary, and where it is shown.

use std::fmt::Write;

use crate::units::{fitted, printable};

/// A name that is longer would not be read to its end.
pub(super) const LONGEST_NAME: usize = 120;

/// What the summary is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// A terminal: names of kernels are cut so that tables fit it.
    Terminal,
    /// A file or another program: names are whole.
    File,
}

/// A name of a function, a process or an error. A trace can claim any.
pub(super) fn name(text: &str) -> String {
    fitted(&printable(text), LONGEST_NAME).into_owned()
}

/// A heading with an empty line before it.
pub(super) fn heading(out: &mut String, text: &str) {
    out.push('\n');
    out.push_str(text);
    out.push('\n');
}

/// A line under a heading. Writing into a `String` cannot fail.
pub(super) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = writeln!(out, "  {text}");
    debug_assert!(written.is_ok());
}
