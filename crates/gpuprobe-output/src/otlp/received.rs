//! What a receiver gets, read by the official messages.

use std::io::Read;

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;

fn unpacked(body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    GzDecoder::new(body).read_to_end(&mut message).unwrap();
    message
}

/// The same bytes must result from writing the message again: nothing is unknown or left out.
pub(super) fn metrics_of(body: &[u8]) -> ExportMetricsServiceRequest {
    let message = ExportMetricsServiceRequest::decode(unpacked(body).as_slice()).unwrap();
    assert_eq!(message.encode_to_vec().len(), unpacked(body).len());
    message
}

pub(super) fn logs_of(body: &[u8]) -> ExportLogsServiceRequest {
    let message = ExportLogsServiceRequest::decode(unpacked(body).as_slice()).unwrap();
    assert_eq!(message.encode_to_vec().len(), unpacked(body).len());
    message
}
