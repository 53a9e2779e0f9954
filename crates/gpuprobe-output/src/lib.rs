//! Writes reports, snapshots and events: text for people, metrics, JSON, HTML, trace formats and the HTTP endpoint.
//!
//! Nothing here touches BPF or opens a file, with these exceptions: [`http`], [`http_client`] and [`otlp`] use sockets,
//! a clock and a runtime, and read the web config and certificates.
#![forbid(unsafe_code)]

mod agent_text;
pub mod classic;
mod collective_text;
pub mod convert;
pub mod cost;
mod curve;
pub mod diff;
mod filter_text;
mod gpu_op_text;
mod gpu_time_text;
pub mod http;
pub mod http_client;
pub mod kernel_name;
mod kmod_text;
pub mod live;
mod memory_json;
mod memory_view;
pub mod metrics;
pub mod otlp;
mod out_of_memory;
mod prediction;
mod proto;
pub mod report;
mod report_json;
mod sampled;
mod stacks;
pub mod summary;
pub mod support;
mod table;
mod tensor_view;
#[cfg(test)]
mod test_processes;
pub mod timeline;
pub mod timestamp;
pub mod top;
pub mod units;
mod xid;

pub use classic::{Classic, Sections, gpus_compared};
pub use collective_text::collective_sentences;
pub use convert::{Conversion, Converted, Target, Weight};
pub use cost::cost;
pub use curve::Strokes;
pub use filter_text::filter_line;
pub use http::{
    Endpoint, HttpError, HttpSettings, Latest, OnRequest, RecordOnDemand, RecordRefusal, RecordRequest,
    RecordingInfo, ServerHandle, StacksRequests, StacksSource, StoredInfo, StoredRecordings, WaitingClients,
    stacks_requests,
};
pub use live::{EarlyCall, Live, LiveOptions, early_pending, pending};
pub use memory_json::memory_json;
pub use memory_view::{MemoryOptions, memory};
pub use metrics::{Aggregate, Format, SeriesSettings, encode};
pub use out_of_memory::{holders as out_of_memory_holders, line as out_of_memory_line};
pub use prediction::prediction;
pub use report_json::report_json;
pub use sampled::sampled_lines;
pub use stacks::{Architecture, StacksOptions, stacks, stacks_json};
pub use summary::{SummaryOptions, summary};
pub use tensor_view::tensors;
pub use timeline::timeline;
pub use xid::line as xid_line;
