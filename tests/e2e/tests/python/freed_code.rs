//! Code objects that are freed at once, while others take their addresses: a line is right, or it is not shown.

use std::collections::BTreeMap;

use gpuprobe_e2e::bpf_test;
use gpuprobe_e2e::python;

/// The code is freed before its names can be read.
#[bpf_test(tiers(best), alone)]
fn no_line_of_freed_code_is_wrong(tier: &str) {
    assert_right(tier, 1500, "0");
}

/// The names are read, and then another code object is at the address.
#[bpf_test(tiers(best), alone)]
fn no_line_of_replaced_code_is_wrong(tier: &str) {
    for (known, minor) in assert_right(tier, 200, "10") {
        assert!(
            known >= 20,
            "3.{minor}: only {known} of the stacks with code that was freed later are known"
        );
    }
}

/// Checks the lines of all calls. Returns how many stacks with code that was freed are known, for each version.
fn assert_right(tier: &str, rounds: usize, milliseconds: &str) -> Vec<(usize, u8)> {
    let mut all = Vec::new();
    for python in python::all() {
        let (ledger, trace) = python.recorded(tier, "freed_code.py", &[&rounds.to_string(), milliseconds]);
        trace.assert_ended();
        // each allocation has a size of its own
        let expected: BTreeMap<u64, _> =
            ledger.allocations.iter().map(|row| (row.bytes, row.stack.clone())).collect();
        assert_eq!(expected.len(), rounds);
        let traced = python::traced(&trace, ledger.pid);
        assert_eq!(traced.len(), rounds);
        let (mut right, mut stays) = (0, 0);
        for call in &traced {
            let (shown, expected) = (python::lines(&call.stack), &expected[&call.bytes]);
            let wrong: Vec<_> = shown.iter().filter(|line| !expected.contains(line)).collect();
            assert!(wrong.is_empty(), "3.{}: {} bytes, {wrong:?} of {expected:?}", python.minor, call.bytes);
            right += usize::from(shown == *expected);
            stays += usize::from(shown == *expected && shown.iter().any(|line| line.function == "stays"));
        }
        println!("3.{}: {right} of {rounds} stacks are known, {stays} without freed code", python.minor);
        assert_eq!(stays, rounds / 10, "3.{}: code that stays is always known", python.minor);
        all.push((right - stays, python.minor));
    }
    all
}
