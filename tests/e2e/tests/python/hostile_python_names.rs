//! Python functions with escape sequences, line ends and thousands of characters in their names: every output is
//! harmless, and their calls are counted.

use gpuprobe_e2e::process::{at_once, finish, gpuprobe, shown};
use gpuprobe_e2e::{Tracing, bpf_test, python, terminal, tiers};

const SCRIPT: &str = "hostile_names.py";
const CALLS: usize = 9;
/// The beginning of the names, which is harmless.
const NAME: &str = "evil";

#[bpf_test(alone)]
fn names_of_python_functions_reach_no_terminal_as_they_are() {
    at_once(python::all(), |python| {
        let outcome = python.run(tiers::best(), SCRIPT, &[]).outcome();
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        terminal::assert_harmless(&outcome.finished.stderr);
        let mut stacks = outcome.trace.calls.iter().filter_map(|call| call.stack.as_deref()).flatten();
        assert!(stacks.any(|frame| frame.starts_with(NAME)), "it has the names");

        let mut memory = gpuprobe(&["memory", "--sites", "--"]);
        let arguments = python::arguments(SCRIPT, &python::runtime(), &[]);
        let memory = finish(memory.arg(&python.path).args(arguments));
        assert_eq!(memory.status, 0, "{}", memory.stderr);
        assert!(memory.stdout.contains(NAME), "{}", memory.stdout);
        terminal::assert_harmless(&memory.stdout);
        terminal::assert_harmless(&memory.stderr);
    });
}

#[bpf_test(alone)]
fn traced_stacks_of_python_functions_are_harmless() {
    let python = python::newest();
    let (mut program, pid) = python.waiting(&[], SCRIPT, &[]);
    let (library, pid) = (shown(python::runtime()), pid.to_string());
    let trace = Tracing::start(&["-p", &library, "-d", &pid, "-e", "cudaMalloc", "-t", "--stack"]);
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
    let traced = trace.end();
    assert_eq!(traced.status, 0, "{}", traced.stderr);
    assert_eq!(traced.stdout.matches("cudaMalloc(").count(), CALLS, "{}", traced.stdout);
    assert!(traced.stdout.contains(NAME), "{}", traced.stdout);
    // stacks are not shortened
    terminal::assert_no_control(&traced.stdout);
}
