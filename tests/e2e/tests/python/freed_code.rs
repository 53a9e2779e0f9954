//! Code objects that are freed at once, while others take their addresses: a line is right, or it is not shown.

use std::collections::BTreeMap;

use gpuprobe_e2e::bpf_test;
use gpuprobe_e2e::python;

const ROUNDS: usize = 1500;

#[bpf_test(tiers(best), alone)]
fn no_line_of_freed_code_is_wrong(tier: &str) {
    for python in python::all() {
        let (ledger, trace) = python.recorded(tier, "freed_code.py", &[&ROUNDS.to_string()]);
        trace.assert_ended();
        // each allocation has a size of its own
        let expected: BTreeMap<u64, _> =
            ledger.allocations.iter().map(|row| (row.bytes, row.stack.clone())).collect();
        assert_eq!(expected.len(), ROUNDS);
        let traced = python::traced(&trace, ledger.pid);
        assert_eq!(traced.len(), ROUNDS);
        let (mut right, mut stays) = (0, 0);
        for call in &traced {
            let (shown, expected) = (python::lines(&call.stack), &expected[&call.bytes]);
            let wrong: Vec<_> = shown.iter().filter(|line| !expected.contains(line)).collect();
            assert!(wrong.is_empty(), "3.{}: {} bytes, {wrong:?} of {expected:?}", python.minor, call.bytes);
            right += usize::from(shown == *expected);
            stays += usize::from(shown == *expected && shown.iter().any(|line| line.function == "stays"));
        }
        println!("3.{}: {right} of {ROUNDS} stacks are known, {stays} without freed code", python.minor);
        assert_eq!(stays, ROUNDS / 10, "3.{}: code that stays is always known", python.minor);
    }
}
