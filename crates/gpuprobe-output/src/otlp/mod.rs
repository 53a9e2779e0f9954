//! Pushes snapshots as OpenTelemetry metrics and logs (OTLP over HTTP), on a thread of its own: a receiver that is slow
//! or down delays nothing else. Requests wait in a bounded queue, and what is not delivered is counted.

mod baselines;
mod failures;
mod label_text;
mod lane;
mod message;
mod names;
mod payload;
mod points;
mod post;
mod push;
mod push_counts;
#[cfg(test)]
mod push_tests;
#[cfg(test)]
mod received;
mod records;
mod reply;

pub use baselines::Temporality;
pub use message::Resource;
pub use names::mapping;
pub use post::{Headers, Receiver};
pub use push::{Push, PushError, PushSettings};
pub use records::LogEvents;
pub use reply::PartialSuccess;
