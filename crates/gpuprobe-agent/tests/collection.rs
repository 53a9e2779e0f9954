//! The agent inside of a program on the stand-ins: what it emits is what the stand-in CUPTI recorded.

mod common;

use std::fs;

use common::{Finished, Host, agent, number, standins};
use gpuprobe_event::agent::{AgentRecord, Collection, GraphRecords};
use serde_json::Value;

fn work(arguments: &[&str]) -> Host {
    Host::new(&standins().workload("gpu_work"), arguments)
}

fn printed(stdout: &str) -> Value {
    serde_json::from_str(stdout).expect("what the program printed")
}

#[test]
fn from_cu_init_on_every_operation_is_emitted() {
    let finished = work(&["--threads", "4", "--operations", "2000"]).env("TAP_BEFORE", "collect").run();
    finished.assert_complete();
    let states = finished.states();
    assert_eq!(states.len(), 1);
    assert_eq!((states[0].collection, states[0].graphs), (Collection::Collecting, GraphRecords::Whole));
    assert!(states[0].text.ends_with("/libcupti.so.12"), "{}", states[0].text);
    assert!(states[0].tid > 0 && states[0].begin_ns <= states[0].end_ns);
    let totals = printed(&finished.stdout);
    let of_kind =
        |kind: u64| finished.ledger_records(false).filter(|line| line["kind"] == kind).count() as u64;
    assert_eq!(of_kind(10), number(&totals["kernels"]));
    assert_eq!(of_kind(1), number(&totals["copies"]));
    assert_eq!(of_kind(2), number(&totals["memsets"]));
    assert_eq!(of_kind(51), number(&totals["graph_launches"]));
    assert_eq!(finished.headers.last().map(|header| (header.dropped, header.unknown)), Some((0, 0)));
}

#[test]
fn each_node_is_emitted_if_that_is_asked_for() {
    let finished = work(&["--operations", "200"]).env("TAP_BEFORE", "collect,nodes").run();
    finished.assert_complete();
    assert_eq!(finished.states()[0].graphs, GraphRecords::Nodes);
    let totals = printed(&finished.stdout);
    let in_graphs = finished.activities().into_iter().filter(|activity| activity.graph != 0).count() as u64;
    assert_eq!(in_graphs, 4 * number(&totals["graph_launches"]));
}

#[test]
fn nodes_can_be_asked_for_later() {
    let host = work(&["--operations", "600", "--pause", "1000"]).env("TAP_BEFORE", "collect");
    let finished = host.env("TAP_STEPS", "200:nodes:1").run();
    finished.assert_complete();
    let graphs: Vec<GraphRecords> = finished.states().iter().map(|state| state.graphs).collect();
    assert_eq!(graphs, [GraphRecords::Whole, GraphRecords::Nodes]);
    assert_eq!(finished.changes("disabled"), [51]);
}

#[test]
fn a_probe_can_be_attached_to_a_running_program() {
    let host = work(&["--operations", "800", "--pause", "1000"]);
    let finished = host.env("TAP_STEPS", "200:collect:1").run();
    finished.assert_complete();
    assert!(finished.ledger_records(false).count() > 100);
    assert_eq!(finished.changes("enabled"), [10, 1, 2, 22]);
    let states = finished.states();
    assert_eq!((states.len(), states[0].graphs), (1, GraphRecords::NodesOfRunning));
}

#[test]
fn the_thread_begins_if_that_is_too_early_during_cu_init() {
    let host = work(&["--operations", "500", "--pause", "1000"]).env("TAP_BEFORE", "collect");
    let finished = host.env("STANDIN_CUPTI", "early").run();
    finished.assert_complete();
    let states = finished.states();
    assert_eq!((states.len(), states[0].collection), (1, Collection::Collecting));
    assert_eq!(states[0].graphs, GraphRecords::NodesOfRunning);
}

#[test]
fn attaching_and_detaching_loses_nothing_and_graphs_are_whole_only_at_first() {
    let steps = ["400:collect:0", "400:collect:1"].repeat(5).join(",");
    let host = work(&["--operations", "4500", "--pause", "1000"]).env("TAP_BEFORE", "collect");
    let finished = host.env("TAP_STEPS", &steps).run();
    finished.assert_complete();
    let states = finished.states();
    let collections: Vec<Collection> = states.iter().map(|state| state.collection).collect();
    let mut expected = vec![Collection::Collecting];
    expected.extend([Collection::Stopped, Collection::Collecting].repeat(5));
    assert_eq!(collections, expected);
    assert_eq!(states[0].graphs, GraphRecords::Whole);
    assert!(states[2..].iter().all(|state| state.graphs == GraphRecords::NodesOfRunning));
    assert_eq!(finished.changes("enabled").iter().filter(|kind| **kind == 51).count(), 1);
}

/// How often the name of a CUDA kernel was sent, and how often it should have been: when it was first used, and with each
/// state that was sent again after a launch of the kernel.
fn times_named(finished: &Finished, kernel: &str) -> (usize, usize) {
    let names = finished.names();
    let (mut named, mut repeated, mut was_launched) = (0, 0, false);
    for record in &finished.records {
        match record {
            AgentRecord::Name { text, .. } if text == kernel => named += 1,
            AgentRecord::Activity(activity) if names.get(&activity.name) == Some(&kernel) => {
                was_launched = true
            }
            AgentRecord::State(_) => repeated += usize::from(std::mem::take(&mut was_launched)),
            _ => {}
        }
    }
    (named, 1 + repeated)
}

#[test]
fn names_and_the_state_come_again() {
    let work =
        |operations| work(&["--operations", operations, "--pause", "1000"]).env("TAP_BEFORE", "collect");
    let for_a_second_probe = work("2000").env("TAP_STEPS", "1000:collect:2").run();
    let after_a_while = work("4000").run();
    for finished in [for_a_second_probe, after_a_while] {
        finished.assert_complete();
        let (named, expected) = times_named(&finished, "gemm");
        assert_eq!((finished.states().len(), named), (1, expected));
        assert!(named > 1 && finished.all_states().len() > 1);
    }
}

#[test]
fn it_lets_go_and_touches_nothing_but_graphs() {
    let host = work(&["--operations", "800", "--pause", "1000"]).env("TAP_BEFORE", "collect");
    let finished = host.env("TAP_STEPS", "300:let_go:1,200:collect:0").run();
    let collections: Vec<Collection> = finished.states().iter().map(|state| state.collection).collect();
    assert_eq!(collections, [Collection::Collecting, Collection::LetGo]);
    assert_eq!(finished.changes("disabled"), [51]);
    let refused = work(&[]).env("TAP_BEFORE", "collect,let_go").run();
    assert_eq!(refused.states()[0].collection, Collection::LetGo);
    assert!(refused.ledger.is_empty());
}

#[test]
fn without_a_probe_it_only_sleeps() {
    let finished = work(&["--hold", "300"]).run();
    assert!(finished.records.is_empty() && finished.ledger.is_empty());
}

#[test]
fn a_child_has_nothing_of_it() {
    let finished =
        work(&["--operations", "500", "--pause", "500", "--fork"]).env("TAP_BEFORE", "collect").run();
    finished.assert_complete();
    assert_eq!(finished.states().len(), 1);
}

#[test]
fn one_agent_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("another.so");
    fs::copy(agent(), &copy).expect("a copy");
    for second in [copy, agent()] {
        let program = standins().workload("gpu_work");
        let host = Host::with_agents(&program, &["--hold", "300"], &[agent(), second]);
        let finished = host.env("TAP_BEFORE", "collect").run();
        finished.assert_complete();
        assert_eq!(finished.states().len(), 1);
    }
}
