//! The options of the daemon for pushing to a receiver of OpenTelemetry.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gpuprobe_output::otlp::Temporality;

use super::value_parsers::{attribute, one_second_or_more};

#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct OtlpArgs {
    /// Also push the metrics to a receiver of OpenTelemetry, such as http://host:4318, and failed calls, out-of-memory
    /// errors and XIDs as logs (OTLP over HTTP, to URL/v1/metrics and URL/v1/logs)
    #[arg(long = "otlp", value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Time between two pushes
    #[arg(long = "otlp-interval", value_name = "TIME", default_value = "15s", value_parser = one_second_or_more)]
    pub(crate) interval: Duration,
    /// A file with headers for each push, such as `Authorization: Bearer TOKEN`, one per line
    #[arg(long = "otlp-headers-file", value_name = "FILE")]
    pub(crate) headers_file: Option<PathBuf>,
    /// A file with the certificates that the receiver's certificate may be signed by [default: those of the system]
    #[arg(long = "otlp-ca-file", value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Whether counters are pushed as totals or as what was added since the push before
    #[arg(long = "otlp-temporality", value_name = "WHICH", default_value = "cumulative", value_parser = temporality())]
    pub(crate) temporality: Temporality,
    /// An attribute of all metrics and logs, such as deployment.environment.name=test (repeatable)
    #[arg(long = "otlp-attribute", value_name = "KEY=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,
}

fn temporality() -> impl TypedValueParser<Value = Temporality> {
    PossibleValuesParser::new(["cumulative", "delta"]).map(|word| match word.as_str() {
        "delta" => Temporality::Delta,
        _ => Temporality::Cumulative,
    })
}
