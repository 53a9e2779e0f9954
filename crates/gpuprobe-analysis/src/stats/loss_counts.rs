//! What was lost, as data that can be written out.

use gpuprobe_event::{LossCause, Losses};
use serde::Serialize;

/// How much one cause lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LossCount {
    /// Why.
    pub cause: LossCause,
    /// How many.
    pub count: u64,
}

/// Every cause with its count, also those that are 0: a rate can only be taken of a series that was there before.
pub(crate) fn every_cause(losses: &Losses) -> Vec<LossCount> {
    LossCause::ALL.iter().map(|&cause| LossCount { cause, count: losses.get(cause) }).collect()
}

/// The causes that happened.
pub(crate) fn happened(losses: &Losses) -> Vec<LossCount> {
    losses.iter().map(|(cause, count)| LossCount { cause, count }).collect()
}
