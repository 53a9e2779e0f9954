//! The output proper, on stdout.

use std::fmt;
use std::io::{self, Write};

use anyhow::{Context, Result};

/// Whoever read our output has had enough: a reason to end, and no failure. The pipe to the guard can break too, so the
/// kind of an error does not tell this.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output was closed")
    }
}

impl std::error::Error for Closed {}

/// Writes all of it, or fails with [`Closed`].
pub(crate) fn print(text: &str) -> Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        written => written.context("cannot write the output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_told_from_a_disk_that_is_full() {
        let (reader, mut pipe) = io::pipe().unwrap();
        print_to(&mut pipe, "read").unwrap();
        drop(reader);
        assert!(print_to(&mut pipe, "not read").unwrap_err().is::<Closed>());
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = print_to(&mut full, "no room").unwrap_err();
        assert!(!error.is::<Closed>(), "{error:#}");
        assert_eq!(error.to_string(), "cannot write the output");
    }
}
