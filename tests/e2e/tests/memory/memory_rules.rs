//! The rules that decide what memory is live, each in a program that tests only this rule.

use std::process::Command;

use gpuprobe_e2e::memory_ledger::{self, ALLOCATED, LIVE_ALLOCATIONS, LIVE_BYTES};
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::PATIENCE;
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

/// The program of a rule, and a daemon that watches it.
fn watched(rule: &str) -> (tempfile::TempDir, Daemon, Talk) {
    let folder = fixtures::folder();
    let files = ["libcuda.so.1", "libcudart.so.12", "rules"];
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &files);
    let daemon = Daemon::start(&folder.path().join("libcuda.so.1"));
    let talk = Talk::start(Command::new(folder.path().join("rules")).arg(rule));
    (folder, daemon, talk)
}

/// Compares after each step of the rule, and after the exit of the program.
fn assert_steps(rule: &str, steps: u64) {
    let (_folder, daemon, mut talk) = watched(rule);
    let mut last = None;
    for step in 1..=steps {
        let ledger = talk.json();
        assert_eq!(number(&ledger["snapshot"]), step);
        println!("step {step}");
        memory_ledger::assert_equal(&daemon, &ledger);
        talk.go_on();
        last = Some(ledger);
    }
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    memory_ledger::assert_ended(&daemon, PATIENCE, &last.unwrap());
}

#[bpf_test(alone)]
fn an_address_may_be_reused_before_its_free_returns() {
    assert_steps("reuse", 2);
}

#[bpf_test(alone)]
fn a_thread_may_free_what_another_allocated() {
    assert_steps("cross", 3);
}

#[bpf_test(alone)]
fn one_unmap_may_remove_several_mappings() {
    assert_steps("unmap", 4);
}

#[bpf_test(alone)]
fn physical_memory_stays_while_it_is_mapped_or_has_references() {
    assert_steps("retain", 4);
}

#[bpf_test(alone)]
fn the_last_release_of_a_primary_context_frees_what_is_in_it() {
    assert_steps("primary", 3);
}

#[bpf_test(alone)]
fn a_reset_frees_what_is_in_the_primary_context() {
    assert_steps("reset", 3);
}

#[bpf_test(alone)]
fn the_end_of_a_context_frees_what_is_in_it() {
    assert_steps("context", 4);
}

#[bpf_test(alone)]
fn a_context_handle_may_be_reused_before_its_destruction_returns() {
    assert_steps("hurry", 1);
}

#[bpf_test(alone)]
fn memory_is_on_the_device_of_its_context_or_properties() {
    assert_steps("devices", 1);
}

#[bpf_test(alone)]
fn a_free_that_fails_frees_nothing() {
    assert_steps("refused", 1);
}

/// The GPU of imported memory is not known, so only its sums are compared.
#[bpf_test(alone)]
fn imported_memory_is_live_from_its_first_mapping() {
    let (_folder, daemon, mut talk) = watched("import");
    for _ in 0..4 {
        let ledger = talk.json();
        let pid = pid_of(&ledger);
        let vmm = &ledger["memory"]["vmm"];
        let wanted = [number(&vmm["live_bytes"]), number(&vmm["live"])];
        daemon.until(PATIENCE, &format!("{wanted:?} are live"), |m| {
            let of = |name| m.by(name, pid, "kind").get("vmm").copied().unwrap_or_default();
            [of(LIVE_BYTES), of(LIVE_ALLOCATIONS)] == wanted
                && m.of(ALLOCATED, pid) == Some(number(&ledger["allocated_bytes"]))
        });
        talk.go_on();
    }
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
}

/// The process continues under another name: live memory is the new program's, total allocations are those of both.
#[bpf_test(alone)]
fn an_executed_program_has_no_live_memory_of_the_previous_one() {
    let (_folder, daemon, mut talk) = watched("exec");
    let first = talk.json();
    memory_ledger::assert_equal(&daemon, &first);
    talk.go_on();
    let second = talk.json();
    let pid = pid_of(&second);
    assert_eq!(pid, pid_of(&first));
    let both = number(&first["allocated_bytes"]) + number(&second["allocated_bytes"]);
    daemon.until(PATIENCE, "only the second program's memory is live", |m| {
        let sum = |name| m.by(name, pid, "kind").values().sum::<u64>();
        [sum(LIVE_BYTES), sum(LIVE_ALLOCATIONS)] == [number(&second["live_bytes"]), number(&second["live"])]
            && m.of(ALLOCATED, pid) == Some(both)
    });
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
}

#[bpf_test(alone)]
fn a_child_has_no_live_memory_of_its_parent() {
    let (_folder, daemon, mut talk) = watched("fork");
    let child = talk.json();
    let parent = talk.json();
    memory_ledger::assert_equal(&daemon, &child);
    memory_ledger::assert_equal(&daemon, &parent);
    talk.go_on();
    let parent = talk.json();
    memory_ledger::assert_ended(&daemon, PATIENCE, &child);
    memory_ledger::assert_equal(&daemon, &parent);
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
}
