//! Values that change seldom are read seldom, because every query costs the driver time.

use std::time::{Duration, Instant};

/// How long a value is kept before it is read again.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// A value and when it was read.
#[derive(Debug, Default)]
pub(super) struct Seldom<T> {
    at: Option<Instant>,
    value: T,
}

impl<T> Seldom<T> {
    /// The value, which is read again if it is too old.
    pub(super) fn get(&mut self, now: Instant, read: impl FnOnce() -> T) -> &mut T {
        if self.at.is_none_or(|at| now.saturating_duration_since(at) >= KEPT_FOR) {
            self.value = read();
            self.at = Some(now);
        }
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_at_once_and_again_after_its_time() {
        let (start, mut seldom, mut reads) = (Instant::now(), Seldom::default(), 0);
        let mut at = |seconds| {
            let read = || {
                reads += 1;
                reads
            };
            *seldom.get(start + Duration::from_secs(seconds), read)
        };
        assert_eq!([0, 1, 29, 30, 31, 59, 60, 200].map(&mut at), [1, 1, 1, 2, 2, 2, 3, 4]);
    }
}
