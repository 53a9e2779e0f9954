//! The out-of-memory errors of a recording.

use gpuprobe_event::OutOfMemoryEvent;
use serde::Serialize;

/// Errors that are stored; further ones are only counted.
const MOST_ERRORS: usize = 64;

/// The out-of-memory errors of a recording, in bounded memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutOfMemoryLog {
    /// The first ones.
    pub errors: Vec<OutOfMemoryEvent>,
    /// The number of further ones.
    pub others: u64,
}

impl OutOfMemoryLog {
    pub(crate) fn add(&mut self, event: &OutOfMemoryEvent) {
        match self.errors.len() {
            MOST_ERRORS.. => self.others = self.others.saturating_add(1),
            _ => self.errors.push(event.clone()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_stored_and_the_others_counted() {
        let mut log = OutOfMemoryLog::default();
        assert!(log.is_empty());
        (0..70).for_each(|id| log.add(&OutOfMemoryEvent { id, ..OutOfMemoryEvent::default() }));
        assert_eq!((log.errors.len(), log.others, log.errors[63].id), (64, 6, 63));
    }
}
