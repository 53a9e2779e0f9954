//! Output to people: results on stdout, messages and progress on stderr.

pub(crate) mod full_screen;
pub(crate) mod live_printer;
pub(crate) mod notes;
pub(crate) mod progress;
pub(crate) mod stdout;
pub(crate) mod strokes;
