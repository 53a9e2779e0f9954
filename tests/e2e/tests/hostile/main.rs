//! Bad input and hostile users: files, names, quotas, stalled file systems.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod bad_input;
mod fake_libraries;
mod hostile_names;
mod quota;
mod stalled_files;
mod trust;
