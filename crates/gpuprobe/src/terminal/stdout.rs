//! Results on stdout.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use anyhow::{Context, Error, Result};
use gpuprobe_output::units::count;

/// The reader of stdout has closed it: a reason to end, not a failure. The pipe to the attach helper can break too, so
/// `ErrorKind::BrokenPipe` is not enough to recognize this.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output was closed")
    }
}

impl std::error::Error for Closed {}

/// Writes a text. Fails with [`Closed`] if the reader has closed stdout.
pub(crate) fn print(text: &str) -> Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        written => written.context("cannot write the output"),
    }
}

/// Prints on its own thread, so that a slow reader of stdout does not block the daemon.
#[derive(Debug)]
pub(crate) struct Printer {
    texts: SyncSender<String>,
    failures: Receiver<Error>,
    /// Displays not printed since the last printed one.
    suppressed: u64,
}

impl Printer {
    pub(crate) fn start() -> io::Result<Self> {
        let (texts, taken) = sync_channel::<String>(1);
        let (failed, failures) = channel();
        std::thread::Builder::new().name("display".to_owned()).spawn(move || {
            for text in taken {
                if let Err(error) = print(&text) {
                    // the daemon may be ending meanwhile
                    drop(failed.send(error));
                    return;
                }
            }
        })?;
        Ok(Self { texts, failures, suppressed: 0 })
    }

    /// Prints a text, unless the reader has not read the previous ones. Fails if printing failed before. The next
    /// printed display says how many were suppressed.
    pub(crate) fn print(&mut self, text: String) -> Result<()> {
        if let Ok(error) = self.failures.try_recv() {
            return Err(error);
        }
        let text = match self.suppressed {
            0 => text,
            n => format!(
                "{} suppressed because the output was not read\n{text}",
                count(n, "display", "displays")
            ),
        };
        self.suppressed = if self.texts.try_send(text).is_ok() { 0 } else { self.suppressed + 1 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_distinguished_from_a_full_disk() {
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
