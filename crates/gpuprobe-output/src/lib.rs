//! Reports and snapshots for people and for machines: text, metrics, HTTP. Nothing here touches BPF or reads a clock;
//! sockets are opened by the caller, and only [`http`] has a runtime.
#![forbid(unsafe_code)]

pub mod classic;
pub mod cost;
pub mod http;
pub mod live;
pub mod metrics;
pub mod summary;
mod table;
pub mod timestamp;
pub mod units;

pub use classic::{Classic, Sections};
pub use cost::cost;
pub use http::{HttpError, Latest, ServerHandle, serve};
pub use live::{Live, LiveOptions, pending};
pub use metrics::{Format, encode};
pub use summary::summary;
