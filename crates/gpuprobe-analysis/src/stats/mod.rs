//! Bounded containers for numbers: histograms, bins of time, trees of names and counts of lost records.

pub mod bins;
pub mod buckets;
pub mod distribution;
pub mod flame;
pub(crate) mod loss_counts;
pub mod trend;
