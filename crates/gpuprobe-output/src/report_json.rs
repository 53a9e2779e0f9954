//! The summary of a recording for programs: one JSON object on one line.

use gpuprobe_analysis::{Filtered, SummaryReport};
use serde_json::json;

use crate::report::Source;

/// The summary as a line of JSON, with its line feed. Times are in nanoseconds, names are complete.
pub fn report_json(report: &SummaryReport, source: &Source<'_>, filtered: Option<&Filtered>) -> String {
    let object = json!({
        "trace": source.name,
        "meta": source.meta,
        "seconds": source.end.map(|end| end.seconds),
        "exit_status": source.end.and_then(|end| end.exit_status),
        "missing": source.missing,
        "filter": filtered,
        "summary": report,
    });
    format!("{object}\n")
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::Summary;
    use gpuprobe_event::trace::Meta;

    use super::*;

    #[test]
    fn an_empty_recording_is_one_line_with_every_key() {
        let source = Source { name: "t\n", meta: &Meta::default(), end: None, missing: &["x".to_owned()] };
        let line = report_json(&Summary::default().report(), &source, None);
        assert_eq!(line.lines().count(), 1, "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["trace"], &value["missing"]), (&json!("t\n"), &json!(["x"])));
        assert_eq!((&value["summary"]["calls"], &value["filter"]), (&json!(0), &json!(null)));
    }
}
