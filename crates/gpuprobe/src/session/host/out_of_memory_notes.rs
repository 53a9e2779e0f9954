//! Limits how many out-of-memory errors are written to the log: a program that goes on after one may report thousands.

use std::time::{Duration, Instant};

use gpuprobe_event::OutOfMemoryEvent;

const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Most errors that are written at once.
const MOST_NOTED: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct OutOfMemoryNotes {
    noted_at: Option<Instant>,
    suppressed: usize,
}

/// The result of [`OutOfMemoryNotes::take`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// Errors since the last time that are not written.
    pub(crate) suppressed: usize,
}

impl OutOfMemoryNotes {
    /// Leaves the errors that are written now; `None` if there are none.
    pub(crate) fn take(&mut self, errors: &mut Vec<OutOfMemoryEvent>) -> Option<Noted> {
        if errors.is_empty() {
            return None;
        }
        if self.noted_at.is_some_and(|at| at.elapsed() < NOTE_EVERY) {
            self.suppressed = self.suppressed.saturating_add(errors.len());
            return None;
        }
        self.noted_at = Some(Instant::now());
        let more = errors.len().saturating_sub(MOST_NOTED);
        errors.truncate(MOST_NOTED);
        Some(Noted { suppressed: std::mem::take(&mut self.suppressed).saturating_add(more) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_errors_are_written_and_the_others_counted() {
        let mut notes = OutOfMemoryNotes::default();
        let errors = |n| vec![OutOfMemoryEvent::default(); n];
        assert_eq!(notes.take(&mut errors(0)), None);
        let mut first = errors(6);
        assert_eq!((notes.take(&mut first), first.len()), (Some(Noted { suppressed: 2 }), 4));
        assert_eq!(notes.take(&mut errors(5)), None, "so soon after the first");
        notes.noted_at = Instant::now().checked_sub(NOTE_EVERY);
        let mut later = errors(1);
        assert_eq!((notes.take(&mut later), later.len()), (Some(Noted { suppressed: 5 }), 1));
    }
}
