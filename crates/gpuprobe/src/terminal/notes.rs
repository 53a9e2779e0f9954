//! Messages on stderr.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most messages that are stored while a full-screen view covers the terminal.
const MOST_STORED: usize = 100;

/// How long the last stored message is shown in a full-screen view.
const SHOWN_FOR: Duration = Duration::from_secs(10);

/// Messages that wait until the terminal is free, with the time of each; `None` if it is.
static STORED: Mutex<Option<VecDeque<(Instant, String)>>> = Mutex::new(None);

fn stored() -> MutexGuard<'static, Option<VecDeque<(Instant, String)>>> {
    STORED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to stderr. A closed stderr is not an error: `eprintln!` would panic.
pub(crate) fn print_stderr(text: fmt::Arguments<'_>) {
    if let Some(notes) = &mut *stored() {
        if notes.len() == MOST_STORED {
            notes.pop_front();
        }
        notes.push_back((Instant::now(), text.to_string()));
        return;
    }
    io::stderr().write_fmt(text).ok();
}

/// Stores messages from now on: a full-screen view covers the terminal.
pub(crate) fn store_notes() {
    stored().get_or_insert_default();
}

/// The last message that was stored, if that was a moment ago. All are printed when the view ends.
pub(crate) fn last_stored_note() -> Option<String> {
    let stored = stored();
    let (at, note) = stored.as_ref()?.back()?;
    (at.elapsed() < SHOWN_FOR).then(|| note.trim_end().to_owned())
}

/// Prints the stored messages, and prints others at once from now on.
pub(crate) fn print_stored_notes() {
    let notes = stored().take();
    notes.into_iter().flatten().for_each(|(_, note)| print_stderr(format_args!("{note}")));
}

/// Prints a line on stderr.
macro_rules! note {
    ($($word:tt)*) => { $crate::terminal::notes::print_stderr(format_args!("{}\n", format_args!($($word)*))) };
}

pub(crate) use note;
