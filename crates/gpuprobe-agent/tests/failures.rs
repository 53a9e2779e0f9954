//! A CUPTI that fails, is missing, belongs to another profiler, or makes records that are not expected.

mod common;

use std::fs;
use std::process::Command;

use common::{Finished, Host, agent, standins};
use gpuprobe_event::agent::{AgentRequest, Collection, EMIT, LIBRARY};

fn work(arguments: &[&str]) -> Host {
    let host = Host::new(&standins().workload("gpu_work"), arguments).env("TAP_BEFORE", "collect");
    // a program that ends at once would end before the agent has answered
    host.env("TAP_ANSWER", "1")
}

/// Everything that was enabled was disabled again.
fn assert_undone(finished: &Finished) {
    assert_eq!(finished.changes("enabled"), finished.changes("disabled"));
}

#[test]
fn each_function_that_fails_is_named_and_nothing_stays_enabled() {
    let refusals = [
        ("cuptiSubscribe", 1),
        ("cuptiUnsubscribe", 1),
        ("cuptiGetTimestamp", 1),
        ("cuptiActivityRegisterCallbacks", 1),
        ("cuptiActivityEnable", 1),
        ("cuptiActivityEnable", 2),
        ("cuptiActivityEnable", 3),
        ("cuptiActivityEnable", 4),
        ("cuptiActivityEnable", 5),
    ];
    for (function, call) in refusals {
        let finished = work(&[]).env("STANDIN_FAIL", &format!("{function}:15:{call}")).run();
        let states = finished.states();
        assert_eq!((states.len(), states[0].collection, states[0].code), (1, Collection::Refused, 15));
        assert!(states[0].text.starts_with(function), "{}", states[0].text);
        assert!(states[0].text.ends_with("CUPTI_ERROR_NOT_INITIALIZED (15)"), "{}", states[0].text);
        assert_undone(&finished);
        assert!(finished.activities().is_empty());
    }
}

#[test]
fn a_failure_while_it_collects_ends_it() {
    let host = work(&["--operations", "500", "--pause", "1000"]);
    let finished = host.env("STANDIN_FAIL", "cuptiActivityFlushAll:999:1").run();
    let states = finished.states();
    assert_eq!(states.len(), 2);
    assert_eq!((states[1].collection, states[1].code), (Collection::Failed, 999));
    assert!(states[1].text.starts_with("cuptiActivityFlushAll failed"), "{}", states[1].text);
    assert_undone(&finished);
}

#[test]
fn failures_that_do_not_matter_change_nothing() {
    for function in ["cuptiActivityDisable", "cuptiActivityGetNumDroppedRecords", "cuptiGetResultString"] {
        let finished = work(&[]).env("STANDIN_FAIL", &format!("{function}:1:1")).run();
        finished.assert_complete();
        assert_eq!(finished.states()[0].collection, Collection::Collecting);
    }
    let finished = work(&[]).env("STANDIN_FAIL", "cuptiActivityGetNextRecord:21:1").run();
    assert!(finished.activities().is_empty());
    // one for each buffer
    assert_eq!(finished.headers.last().map(|header| header.unknown), Some(1));
}

#[test]
fn a_failure_without_a_text_has_its_code() {
    let finished = work(&[]).env("STANDIN_FAIL", "cuptiSubscribe:27:1,cuptiGetResultString:1:1").run();
    assert_eq!(finished.states()[0].text, "cuptiSubscribe failed: unknown error (27)");
}

#[test]
fn another_profiler_keeps_cupti() {
    for (name, value, code) in
        [("STANDIN_CUPTI", "subscriber", 39), ("STANDIN_FAIL", "cuptiSubscribe:12:1", 12)]
    {
        let finished = work(&[]).env(name, value).run();
        let state = finished.states()[0];
        assert_eq!((state.collection, state.code), (Collection::Refused, code));
        assert!(state.text.starts_with("another profiler uses CUPTI"), "{}", state.text);
        assert!(finished.ledger.is_empty());
    }
}

#[test]
fn a_process_without_cupti_is_refused() {
    let (folder, standins) = (tempfile::tempdir().expect("a folder"), standins());
    for name in ["gpu_work", "libcuda.so.1", "libcudart.so.12"] {
        fs::copy(standins.dir.join(name), folder.path().join(name)).expect("a copy");
    }
    let finished = Host::new(&folder.path().join("gpu_work"), &[]).env("TAP_BEFORE", "collect").run();
    let state = finished.states()[0];
    assert_eq!((state.collection, state.code), (Collection::Refused, 0));
    assert!(state.text.starts_with("there is no libcupti.so.12"), "{}", state.text);
}

#[test]
fn longer_unknown_and_late_records_are_no_problem() {
    for wish in ["longer", "late", "unknown"] {
        let finished = work(&["--operations", "20000"]).env("STANDIN_CUPTI", wish).run();
        finished.assert_complete();
        let unknown = finished.headers.last().map(|header| header.unknown);
        // one in front of every third record
        let expected = if wish == "unknown" { finished.ledger.len() as u64 / 3 } else { 0 };
        assert!(unknown.is_some_and(|found| found.abs_diff(expected) < 4), "{unknown:?} {expected}");
    }
}

#[test]
fn dropped_records_are_counted() {
    let dropping = work(&["--operations", "1000"]).env("STANDIN_CUPTI", "drop:3").run();
    // more is recorded than all buffers take
    let full = work(&["--operations", "120000"]).env("STANDIN_CUPTI", "kept").run();
    for finished in [dropping, full] {
        finished.assert_complete();
        let dropped = finished.ledger_records(true).count() as u64;
        assert!(dropped > 100, "{dropped}");
        assert_eq!(finished.headers.last().map(|header| header.dropped), Some(dropped));
    }
}

#[test]
fn the_library_has_what_a_probe_needs() {
    assert!(agent().ends_with(LIBRARY));
    let output = |arguments: &[&str]| {
        let output = Command::new("readelf").args(arguments).arg(agent()).output().expect("readelf");
        String::from_utf8(output.stdout).expect("text")
    };
    let sections = output(&["-SW"]);
    let probes = sections.lines().find(|line| line.contains(" .probes ")).expect("the section");
    assert!(probes.contains("PROGBITS") && probes.contains(" WA "), "{probes}");
    let index =
        probes.trim_start().trim_start_matches('[').trim_start().split(']').next().expect("its number");
    let symbols = output(&["--dyn-syms", "-W"]);
    let symbol = |name: &str| {
        let row = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        row.into_iter().find(|row| row.last() == Some(&name)).unwrap_or_else(|| panic!("{name} is missing"))
    };
    for name in AgentRequest::ALL.map(AgentRequest::semaphore) {
        let row = symbol(name);
        assert_eq!((row[2], row[3], row[6]), ("2", "OBJECT", index), "{row:?}");
    }
    let [collect, nodes, let_go] = AgentRequest::ALL.map(AgentRequest::function);
    let addresses = [EMIT, collect, nodes, let_go].map(|name| {
        let row = symbol(name);
        assert!(row[3] == "FUNC" && row[2] != "0", "{row:?}");
        row[1]
    });
    assert!(addresses[0] != addresses[1] && addresses[1] != addresses[2] && addresses[0] != addresses[2]);
}

#[test]
fn the_semaphores_are_mapped_only_once() {
    let output = |arguments: &[&str]| {
        let output = Command::new("readelf").args(arguments).arg(agent()).output().expect("readelf");
        String::from_utf8(output.stdout).expect("text")
    };
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number");
    let sections = output(&["-SW"]);
    let probes = sections.lines().find_map(|line| line.split_once(" .probes ")).expect("the section").1;
    let offset = hex(probes.split_whitespace().nth(2).expect("its offset"));
    let segments = output(&["-lW"]);
    let rows = segments.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // whole pages are mapped, and the Linux kernel takes the first writable mapping of an offset
    let maps = |row: &Vec<&str>| {
        let page = hex(row[row.len() - 1]);
        let (begin, end) = (hex(row[1]) / page * page, (hex(row[1]) + hex(row[4])).next_multiple_of(page));
        (begin..end).contains(&offset)
    };
    let writable = rows.filter(|row| row.first() == Some(&"LOAD") && row.contains(&"RW"));
    assert_eq!(writable.filter(maps).count(), 1, "{segments}");
}
