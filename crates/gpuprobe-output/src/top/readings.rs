//! Readings for the view model, from a snapshot of this process or from the answer of a daemon.

use gpuprobe_analysis::Snapshot;
use gpuprobe_analysis::view::Reading;
use serde::Deserialize;

/// The answer to `/api/snapshot`.
#[derive(Deserialize)]
struct Answer {
    snapshot: Reading,
}

/// The reading of a snapshot. It takes the way of a daemon's answer, so that both show the same.
pub fn reading_of(snapshot: &Snapshot) -> serde_json::Result<Reading> {
    serde_json::from_slice(&serde_json::to_vec(snapshot)?)
}

/// The reading of a daemon's answer to `/api/snapshot`.
pub fn reading_of_answer(answer: &[u8]) -> serde_json::Result<Reading> {
    serde_json::from_slice::<Answer>(answer).map(|answer| answer.snapshot)
}
