//! The output proper, on stdout.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use anyhow::{Context, Error, Result};
use gpuprobe_output::units::count;

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

/// Prints on a thread of its own: who does not read our output must not hold us up.
#[derive(Debug)]
pub(crate) struct Printer {
    texts: SyncSender<String>,
    failures: Receiver<Error>,
    /// Texts that there was no room for, since one was printed last.
    left_out: u64,
}

impl Printer {
    pub(crate) fn start() -> io::Result<Self> {
        let (texts, taken) = sync_channel::<String>(1);
        let (failed, failures) = channel();
        std::thread::Builder::new().name("display".to_owned()).spawn(move || {
            for text in taken {
                if let Err(error) = print(&text) {
                    // who asked for it may have ended meanwhile
                    drop(failed.send(error));
                    return;
                }
            }
        })?;
        Ok(Self { texts, failures, left_out: 0 })
    }

    /// Prints this, unless there is still so much to be read that nobody would see it. Fails where printing failed before.
    /// How many were left out is told with the next.
    pub(crate) fn print(&mut self, text: String) -> Result<()> {
        if let Ok(error) = self.failures.try_recv() {
            return Err(error);
        }
        let text = match self.left_out {
            0 => text,
            n => format!("{} nobody read left out\n{text}", count(n, "display that", "displays that")),
        };
        self.left_out = if self.texts.try_send(text).is_ok() { 0 } else { self.left_out + 1 };
        Ok(())
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
