use std::collections::HashMap;

use gpuprobe_analysis::budget::ProcessCost;
use gpuprobe_analysis::{
    BudgetReport, LibraryProbes, LiveMemory, ProcessInfo, ProcessSnapshot, Rules, SampledFunction,
};
use gpuprobe_event::counters::{LiveTotals, ProcessKey, SiteMemory};
use gpuprobe_event::{Api, Frame, Losses, SiteId, Tgid};

use super::*;
use crate::test_processes::process;

fn snapshot(paths: &[&str]) -> Snapshot {
    let library = |path: &&str| LibraryProbes { path: (*path).to_owned(), attached: 2, ..Default::default() };
    Snapshot { libraries: paths.iter().map(library).collect(), ..Snapshot::default() }
}

fn attached(paths: &[&str]) -> Vec<String> {
    let text = encode(&snapshot(paths), Format::OpenMetrics);
    text.lines().filter(|l| l.contains("state=\"attached\"")).map(str::to_owned).collect()
}

#[test]
fn hostile_label_values_are_escaped() {
    let cases = [
        ("a\"} 1\nfake 2", r#"a\"} 1\nfake 2"#),
        (r"back\slash\", r"back\\slash\\"),
        ("nul\0esc\x1bcr\rdel\x7f", "nul\u{fffd}esc\u{fffd}cr\u{fffd}del\u{fffd}"),
        ("\u{85}next", "\u{fffd}next"),
        ("größe 🦀", "größe 🦀"),
    ];
    for (path, escaped) in cases {
        let expected = format!("gpuprobe_probes{{library=\"{escaped}\",state=\"attached\"}} 2");
        assert_eq!(attached(&[path]), [expected], "{path:?}");
    }
}

#[test]
fn the_same_labels_become_one_series() {
    let expected = "gpuprobe_probes{library=\"/a\u{fffd}\",state=\"attached\"} 4";
    assert_eq!(attached(&["/a\x01", "/a\x02"]), [expected]);
}

#[test]
fn the_metrics_follow_the_rules_of_both_formats() {
    let name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut families: Vec<_> = metrics().map(|m| m.family).collect();
    for metric in metrics() {
        let ours = ["gpuprobe_", "process_"].iter().any(|start| metric.family.starts_with(start));
        assert!(name(metric.family) && ours, "{}", metric.family);
        assert!(metric.labels.iter().all(|l| name(l) && *l != "le"));
        assert!(!["_total", "_info", "_count", "_sum", "_bucket"].iter().any(|s| metric.family.ends_with(s)));
        assert!(metric.unit.is_none_or(|unit| metric.family.ends_with(&format!("_{unit}"))));
        assert!(!metric.help.contains(['\n', '\\', '"']) && metric.help.ends_with('.'));
    }
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), metrics().count());
}

#[test]
fn an_empty_snapshot_has_only_the_build_info() {
    let info = format!("gpuprobe_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
    let help = metrics().last().unwrap().help;
    let expected = format!("# HELP gpuprobe_build_info {help}\n# TYPE gpuprobe_build_info gauge\n{info}");
    assert_eq!(encode(&Snapshot::default(), Format::Prometheus), expected);
    let expected = format!("# HELP gpuprobe_build {help}\n# TYPE gpuprobe_build info\n{info}# EOF\n");
    assert_eq!(encode(&Snapshot::default(), Format::OpenMetrics), expected);
}

/// Names that differ only in a part that is shortened, or in characters that are replaced.
#[test]
fn no_two_call_sites_share_a_label() {
    let stack = |function: String| {
        vec![Frame { function: Some(function), module: Some("app".to_owned()), ..Frame::default() }]
    };
    let long = |middle: &str| format!("{}{middle}{}", "a".repeat(200), "z".repeat(200));
    let names = [long("one"), long("two"), "put\x01".to_owned(), "put\x02".to_owned()];
    let process = ProcessKey { tgid: Tgid(1), instance: 1 };
    let row = |site: u32| SiteMemory {
        process,
        site: SiteId(site),
        gpu: None,
        live: LiveTotals { live_bytes: 1 << site, live_allocations: 1 },
        allocations: 1,
        allocated_bytes: 1 << site,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
    };
    let mut live_memory = LiveMemory::new(Rules { warm_up_ns: 1 }, false);
    let rows: Vec<_> = (0..4).map(row).collect();
    live_memory.feed(&rows, &HashMap::from([(process, ProcessInfo::default())]), 1);
    (0..4).zip(names).for_each(|(site, name)| live_memory.name(SiteId(site), stack(name)));
    let call_sites = live_memory.report(&Losses::default(), 1).processes;
    let text = encode(&Snapshot { call_sites, ..Snapshot::default() }, Format::Prometheus);
    let mut values: Vec<u64> = text
        .lines()
        .filter(|line| line.starts_with("gpuprobe_memory_site_live_bytes{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    values.sort_unstable();
    assert_eq!(values, [0, 1, 2, 4, 8], "{text}");
}

#[test]
fn a_budget_reports_its_share_the_sampled_functions_and_the_cost_of_each_process() {
    let process = ProcessSnapshot { instance: 3, ..process(7, "app") };
    let sampled = |function, ratio| SampledFunction {
        api: Api::Driver,
        function,
        ratio,
        estimated_calls: 1000.0,
        standard_error: 30.0,
        variance: 899.0,
        current_variance: 1.0,
    };
    let budget = BudgetReport {
        share: Some(0.02),
        sampled: vec![sampled("cuLaunchKernel", 0.125), sampled("cuMemcpyHtoD_v2", 1.0)],
        processes: vec![ProcessCost { pid: 7, instance: 3, share: 0.0123456 }],
    };
    let snapshot = Snapshot { processes: vec![process.into()], budget: Some(budget), ..Snapshot::default() };
    let text = encode(&snapshot, Format::Prometheus);
    for line in [
        "gpuprobe_budget_ratio 0.020000",
        "gpuprobe_probe_time_ratio{pid=\"7\",process=\"app\"} 0.012346",
        "gpuprobe_functions_sampled 1",
        "gpuprobe_function_probed_ratio{api=\"driver\",function=\"cuLaunchKernel\"} 0.125000",
        "gpuprobe_function_probed_ratio{api=\"driver\",function=\"cuMemcpyHtoD_v2\"} 1.000000",
        "gpuprobe_calls_estimated_total{api=\"driver\",function=\"cuLaunchKernel\"} 1000",
        "gpuprobe_calls_standard_error{api=\"driver\",function=\"cuLaunchKernel\"} 30",
        "gpuprobe_calls_variance_total{api=\"driver\",function=\"cuLaunchKernel\"} 899",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}:\n{text}");
    }
    let display = crate::Classic::new(crate::Sections::ALL, 0).render(&snapshot);
    let line = "cuLaunchKernel: probed 12.5% of the time: its figures (~) are estimates";
    assert!(display.lines().any(|l| l.starts_with(line)), "{display}");
    assert!(
        !encode(&Snapshot::default(), Format::Prometheus).contains("_estimated"),
        "none without a budget"
    );
}
