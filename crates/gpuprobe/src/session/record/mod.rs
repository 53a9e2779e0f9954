//! Records events into a trace file and a summary, and compares the summary with the counters of the BPF programs.

pub(crate) mod recording;
mod verification;
