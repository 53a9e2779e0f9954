//! The progress of a recording: one line on the terminal that is overwritten.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use gpuprobe_capture::terminal_size;
use gpuprobe_output::units::count;

use super::notes::print_stderr;

const EVERY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Progress {
    /// `None` with `--quiet` or without a terminal.
    shown: Option<Shown>,
}

#[derive(Debug)]
struct Shown {
    start: Instant,
    last: Instant,
    calls: u64,
    is_visible: bool,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let now = Instant::now();
        let shown = Shown { start: now, last: now, calls: 0, is_visible: false };
        Self { shown: (!quiet && stderr().is_terminal()).then_some(shown) }
    }

    /// Whether it is time to update the line.
    pub(crate) fn is_due(&self) -> bool {
        self.shown.as_ref().is_some_and(|shown| shown.last.elapsed() >= EVERY)
    }

    /// Writes the line; `written` is the size of the trace and its limits. The cursor returns to its start, so that
    /// output of the command overwrites it.
    pub(crate) fn show(&mut self, calls: u64, written: &str, lost: u64) {
        let Some(shown) = &mut self.shown else { return };
        let now = Instant::now();
        let line = line(now - shown.start, calls - shown.calls, now - shown.last, written, lost);
        // a line that wraps could not be overwritten
        let columns = terminal_size(stderr()).map_or(usize::MAX, |(columns, _)| columns.into());
        let line: String = line.chars().take(columns.saturating_sub(1)).collect();
        print_stderr(format_args!("{line}\x1b[K\r"));
        (shown.last, shown.calls, shown.is_visible) = (now, calls, true);
    }
}

fn line(elapsed: Duration, calls: u64, span: Duration, written: &str, lost: u64) -> String {
    let rate = calls as f64 / span.as_secs_f64().max(1e-3);
    let seconds = elapsed.as_secs();
    let calls = count(rate as u64, "call/s", "calls/s");
    let time = format!("{}:{:02}", seconds / 60, seconds % 60);
    format!("recording {time}  {calls}  {written}  {lost} lost")
}

/// Clears the line.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.as_ref().is_some_and(|shown| shown.is_visible) {
            print_stderr(format_args!("\r\x1b[K"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_time_rate_size_and_losses() {
        let text =
            line(Duration::from_secs(75), 5000, Duration::from_millis(500), "3.0 MiB (max 4.0 GiB)", 2);
        assert_eq!(text, "recording 1:15  10000 calls/s  3.0 MiB (max 4.0 GiB)  2 lost");
    }
}
