//! Pages of the documentation that are generated, or have generated parts.

use super::check;

#[test]
fn the_reference_page_of_metrics() {
    check("../../../../docs/reference/metrics.md", &gpuprobe_output::metrics::reference());
}

/// The page is written by hand, except for its tables of names.
#[test]
fn the_names_in_opentelemetry() {
    let name = "../../../../docs/guides/otlp.md";
    let page =
        std::fs::read_to_string(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (before, rest) = page.split_once("so names in this table may change.\n\n").unwrap();
    let (_, after) = rest.split_once("\nOther labels keep").unwrap();
    let mapping = gpuprobe_output::otlp::mapping();
    check(
        name,
        &format!("{before}so names in this table may change.\n\n{mapping}\nOther labels keep{after}"),
    );
}
