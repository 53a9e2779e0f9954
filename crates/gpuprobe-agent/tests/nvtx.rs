//! Ranges of NVTX, with the agent inside of a program.

mod common;

use std::collections::BTreeMap;

use common::{Finished, Host, number, standins};
use gpuprobe_event::agent::{RangeKind, RangeRecord};
use serde_json::Value;

fn program(arguments: &[&str]) -> Host {
    Host::new(&standins().workload("nvtx_ranges"), arguments)
}

/// Name, domain, kind, color.
type Key = (String, String, String, u64);

fn lines(finished: &Finished) -> Vec<Value> {
    finished.stdout.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
}

fn expected(finished: &Finished) -> BTreeMap<Key, u64> {
    let text = |line: &Value, name: &str| line[name].as_str().expect("a text").to_owned();
    let kinds = lines(finished).into_iter().skip(1);
    kinds
        .map(|line| {
            let key =
                (text(&line, "name"), text(&line, "domain"), text(&line, "kind"), number(&line["color"]));
            (key, number(&line["count"]))
        })
        .collect()
}

fn found(finished: &Finished) -> BTreeMap<Key, u64> {
    let names = finished.names();
    let mut counts = BTreeMap::new();
    for range in finished.ranges() {
        let name = |id: u64| if id == 0 { String::new() } else { names[&id].to_owned() };
        let kind = match range.kind {
            RangeKind::Nested => "nested",
            RangeKind::Process => "process",
            RangeKind::Mark => "mark",
        };
        let key = (name(range.name), name(range.domain), kind.to_owned(), u64::from(range.color));
        *counts.entry(key).or_insert(0) += 1;
    }
    counts
}

fn of_name<'f>(finished: &'f Finished, name: &str) -> Vec<&'f RangeRecord> {
    let names = finished.names();
    finished.ranges().into_iter().filter(|range| names.get(&range.name) == Some(&name)).collect()
}

#[test]
fn every_range_is_emitted_with_its_name_domain_and_thread() {
    let finished = program(&["--threads", "4", "--rounds", "100"]).env("TAP_BEFORE", "collect").run();
    assert_eq!(lines(&finished)[0]["attached"], true);
    assert_eq!(found(&finished), expected(&finished));
    finished.assert_complete();
    let (steps, inner) = (of_name(&finished, "step"), of_name(&finished, "vorwärts"));
    for range in &inner {
        let around = steps.iter().filter(|step| step.tid == range.tid);
        let around = around.filter(|step| step.start_ns <= range.start_ns && range.end_ns <= step.end_ns);
        assert_eq!(around.count(), 1);
    }
    assert!(finished.ranges().iter().all(|range| range.start_ns <= range.end_ns && range.tid > 0));
    assert!(of_name(&finished, "half").iter().all(|mark| mark.start_ns == mark.end_ns));
    let tids: std::collections::BTreeSet<u32> = steps.iter().map(|step| step.tid).collect();
    assert_eq!(tids.len(), 4);
}

#[test]
fn ranges_that_began_before_the_probe_are_not_guessed() {
    let host = program(&["--threads", "1", "--rounds", "800", "--pause", "2000"]);
    let finished = host.env("TAP_STEPS", "300:collect:1,600:collect:0").run();
    let rounds = of_name(&finished, "step").len();
    // few, if the machine is busy
    assert!((1..700).contains(&rounds), "{rounds}");
    for name in ["vorwärts", "backward", "fetch"] {
        assert!(of_name(&finished, name).len().abs_diff(rounds) <= 1, "{name}");
    }
    // no range is longer than its round took, as it would be if it was taken for another one
    let longest = finished.ranges().into_iter().filter(|range| range.kind == RangeKind::Nested);
    let longest = longest.map(|range| range.end_ns - range.start_ns).max();
    assert!(longest.is_some_and(|longest| longest < 250_000_000), "{longest:?}");
    // those that end after the probe was removed are not emitted
    assert!(of_name(&finished, "batch").is_empty());
}

#[test]
fn ranges_for_which_there_is_no_room_are_counted() {
    // a thousand ranges can be open at once
    let finished = program(&["--threads", "2", "--rounds", "2000"]).env("TAP_BEFORE", "collect").run();
    let all: u64 = expected(&finished).values().sum();
    let emitted: u64 = found(&finished).values().sum();
    let dropped = finished.headers.last().map_or(0, |header| header.dropped);
    assert_eq!(emitted + dropped, all);
    // how many depends on how fast the agent's thread is
    assert!(dropped > 0);
}

#[test]
fn without_a_probe_nothing_is_recorded() {
    let finished = program(&[]).run();
    assert_eq!(lines(&finished)[0]["attached"], true);
    assert!(finished.records.is_empty());
}
