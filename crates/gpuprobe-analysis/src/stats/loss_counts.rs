//! Counts of lost records by cause, in a form that can be serialized.

use gpuprobe_event::{LossCause, Losses};
use serde::Serialize;

/// The records lost for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LossCount {
    pub cause: LossCause,
    pub count: u64,
}

/// Every cause with its count, including zeros: Prometheus can only compute a rate for a series that existed before.
pub(crate) fn every_cause(losses: &Losses) -> Vec<LossCount> {
    LossCause::ALL.iter().map(|&cause| LossCount { cause, count: losses.get(cause) }).collect()
}

/// The causes with a count above zero.
pub(crate) fn happened(losses: &Losses) -> Vec<LossCount> {
    losses.iter().map(|(cause, count)| LossCount { cause, count }).collect()
}
