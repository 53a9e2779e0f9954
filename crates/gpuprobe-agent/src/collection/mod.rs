//! Collecting: when it begins and ends, and what becomes of CUPTI's records.

mod activation;
mod activities;
mod clock;
mod collector;
mod names;
mod outbox;
mod ranges;

pub(crate) use collector::{Collector, look};
