use gpuprobe_analysis::LibraryProbes;

use super::*;

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
fn the_table_keeps_to_the_rules_of_both_formats() {
    let name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut families: Vec<_> = metrics().map(|m| m.family).collect();
    for metric in metrics() {
        assert!(name(metric.family) && metric.family.starts_with("gpuprobe_"), "{}", metric.family);
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
fn an_empty_snapshot_says_who_serves_it() {
    let info = format!("gpuprobe_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
    let help = metrics().last().unwrap().help;
    let expected = format!("# HELP gpuprobe_build_info {help}\n# TYPE gpuprobe_build_info gauge\n{info}");
    assert_eq!(encode(&Snapshot::default(), Format::Prometheus), expected);
    let expected = format!("# HELP gpuprobe_build {help}\n# TYPE gpuprobe_build info\n{info}# EOF\n");
    assert_eq!(encode(&Snapshot::default(), Format::OpenMetrics), expected);
}
