//! Processes with several Python interpreters: a call has the lines of the interpreter that its thread ran in, or no
//! line where that is not certain, and then it is counted.

use std::collections::BTreeMap;

use gpuprobe_e2e::bpf_test;
use gpuprobe_e2e::process::at_once;
use gpuprobe_e2e::python::{self, Allocation, Python};
use gpuprobe_event::LossCause;

const SCRIPT: &str = "several_interpreters.py";
/// What runs in other interpreters than the main one.
const MODULE: &str = "/in_interpreter.py";
/// The allocations of the main interpreter while another thread is inside another interpreter.
const AT_THE_SAME_TIME: [u64; 2] = [64 * 256, 74 * 256];

#[bpf_test(tiers, alone)]
fn calls_have_the_lines_of_the_interpreter_that_they_were_made_in(tier: &str) {
    at_once(&python::on_tier(tier), |python| assert_lines(python, tier, "shared"));
}

/// Only new interpreters have a GIL of their own.
#[bpf_test(tiers(best), alone)]
fn interpreters_with_a_lock_of_their_own_have_their_lines(tier: &str) {
    for python in python::all().iter().filter(|python| python.minor >= 13) {
        assert_lines(python, tier, "own");
    }
}

fn assert_lines(python: &Python, tier: &str, kind: &str) {
    let (ledger, trace) = python.recorded(tier, SCRIPT, &[kind]);
    let lost = trace.assert_ended().lost.clone();
    let expected: BTreeMap<u64, &Allocation> =
        ledger.allocations.iter().map(|row| (row.bytes, row)).collect();
    assert_eq!(expected.len(), ledger.allocations.len(), "each has a size of its own");
    let traced = python::traced(&trace, ledger.pid);
    assert_eq!(traced.len(), expected.len());
    let mut without = 0;
    for call in &traced {
        let row = expected[&call.bytes];
        if is_uncertain(python, row) {
            let shown: Vec<_> = call.stack.iter().filter(|frame| frame.contains("(Python")).collect();
            assert_eq!((python::lines(&call.stack), shown), (vec![], vec![]), "{row:?}");
            without += 1;
        } else {
            assert_eq!(python::lines(&call.stack), row.stack, "3.{}: {:#?}", python.minor, call.stack);
        }
    }
    let counted = lost.get(LossCause::UnassignedPython.as_str()).copied().unwrap_or(0);
    assert_eq!(counted, without, "3.{}: {lost:?}", python.minor);
    assert_eq!(lost.get(LossCause::UnreadPython.as_str()), None, "3.{}", python.minor);
}

/// In 3.9 nothing tells in which of several interpreters a thread runs, if more than one runs code.
fn is_uncertain(python: &Python, row: &Allocation) -> bool {
    let is_other = row.stack.iter().any(|line| line.file.ends_with(MODULE));
    python.minor == 9 && (is_other || AT_THE_SAME_TIME.contains(&row.bytes))
}
