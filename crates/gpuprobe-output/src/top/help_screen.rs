//! The keys and the columns, on one screen.

use super::canvas::{Canvas, Ink};

const KEYS: [(&str, &str); 15] = [
    ("Up Down PgUp PgDn", "move; Home and End for the first and the last"),
    ("Enter", "open the process: kernels, call sites, copies, calls, errors"),
    ("Esc Backspace", "back; in the overview, show all processes again"),
    ("/", "filter by name, pid, container, pending function or host"),
    ("< >", "sort by the column before or after; or click on a heading"),
    ("r", "reverse the order"),
    ("t", "group by container"),
    ("e", "hide exited processes"),
    ("p Space", "pause"),
    ("? F1", "this help; any key goes back"),
    ("Ctrl-Z", "back to the shell, which continues it with fg"),
    ("q Ctrl-C", "quit"),
    ("", ""),
    ("LIVE GROWTH/s", "memory allocated and not freed; red: a call site may leak"),
    ("CALLS% COST%", "time in calls, of all threads; of the probes, with --budget"),
];

/// The column at which the meanings begin.
const MEANING: u16 = 19;

pub(super) fn draw(canvas: &mut Canvas<'_>) {
    canvas.text(0, 0, canvas.width(), "gpuprobe top: keys and columns", Ink::Strong);
    for (y, (key, meaning)) in (2..).zip(KEYS) {
        canvas.text(0, y, MEANING - 1, key, Ink::Strong);
        canvas.text(MEANING, y, canvas.width(), meaning, Ink::Plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_fits_into_80_by_24() {
        assert!(KEYS.len() + 2 <= 24);
        for (key, meaning) in KEYS {
            assert!(key.len() < usize::from(MEANING) && meaning.len() <= 80 - usize::from(MEANING), "{key}");
        }
    }
}
