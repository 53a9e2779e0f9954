//! Which processes have series of their own, from snapshot to snapshot: see [`process_series`](super::process_series).

mod counted;
mod ledger;
mod silent;

pub use ledger::{SeriesLedger, SeriesSettings};

#[cfg(test)]
mod tests;
