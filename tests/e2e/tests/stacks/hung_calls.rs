//! A call that does not return: its function, the line that made it, and what it waits for.

use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::python::Python;
use gpuprobe_e2e::sampled::{
    FOR_EVER, Started, compiled, functions, line_of, list, only_group, process, python_frames,
};
use gpuprobe_e2e::{bpf_test, compile, fixtures, python};
use gpuprobe_standin::{Cuda, Library};
use serde_json::{Value, json};

const SCRIPT: &str = "hung_stream.py";
/// Variables of the stand-ins: how a call waits, the state of the thread, and the system call it is in.
const WAITS: [(&str, &str, Option<&str>); 4] = [
    ("STANDIN_WAIT", "S", Some("futex")),
    ("STANDIN_SPIN", "R", None),
    ("STANDIN_POLL", "S", Some("poll")),
    ("STANDIN_DELAY", "S", Some("clock_nanosleep")),
];

/// All lines of the script that are on the stack.
fn assert_at_line(group: &Value, method: &str) {
    let script = python::script(SCRIPT);
    let file = shown(&script);
    let frames = [
        ("wait_for_stream", "cuda.cuStreamSynchronize(None)"),
        (method, "return wait_for_stream()"),
        ("<module>", "Model().forward()"),
    ];
    let expected = frames.map(|(function, text)| (function, &*file, line_of(&script, text)));
    assert_eq!(python_frames(group), expected, "{group}");
    let at = |wanted: &str| functions(group).iter().position(|function| *function == wanted);
    assert!(at("cuStreamSynchronize").is_some_and(|call| Some(call) < at("wait_for_stream")), "{group}");
    assert!(at("<module>") < at("_start"), "{group}");
}

fn assert_hung(python: &Python, (variable, state, system_call): (&str, &str, Option<&str>)) {
    let wait = format!("{variable}=cuStreamSynchronize:{FOR_EVER}");
    let program = Started::python(&python.path, SCRIPT, Library::Driver, &[], &[&wait]);
    let shown = process(program.pid, &[]);
    let group = only_group(&shown);
    let expected = json!({
        "verdict": "stuck", "function": "cuStreamSynchronize", "state": state, "system_call": system_call,
        "main": true, "tids": [program.pid], "threads": 1, "incomplete": null, "open_call": null,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&group[field], value, "{field} of {group}");
    }
    // from 3.11 on, code knows the class that it is in
    assert_at_line(group, if python.minor >= 11 { "Model.forward" } else { "forward" });
}

#[bpf_test]
fn every_kind_of_wait_is_stuck_at_its_python_line() {
    // that of the distribution is built in another way than others
    let system = python::all().iter().find(|python| python.path.starts_with("/usr/bin"));
    for python in system.into_iter().chain([python::newest()]) {
        WAITS.iter().for_each(|wait| assert_hung(python, *wait));
    }
}

#[bpf_test]
fn every_interpreter_is_stuck_at_its_line() {
    for python in python::all() {
        assert_hung(python, WAITS[0]);
    }
}

/// Each thread is in another interpreter than the main one.
#[bpf_test]
fn threads_of_several_interpreters_are_stuck_at_the_line_of_theirs() {
    for python in python::all() {
        let wait = format!("STANDIN_WAIT=cuStreamSynchronize:{FOR_EVER}");
        let program = Started::python(&python.path, "hung_interpreters.py", Library::Driver, &[], &[&wait]);
        let shown = process(program.pid, &[]);
        for (is_main, function) in [(true, "wait_in_first"), (false, "wait_in_thread")] {
            let of_thread = |group: &&Value| group["main"] == is_main;
            let group = list(&shown["groups"]).iter().find(of_thread).unwrap_or_else(|| panic!("{shown}"));
            assert_eq!(group["function"], "cuStreamSynchronize", "{group}");
            // in 3.9 nothing tells in which interpreter a thread runs
            let (expected, incomplete) = match python.minor {
                9 => (vec![], json!("not all Python frames could be read")),
                _ => (vec![(function, "<string>", 3), ("<module>", "<string>", 4)], Value::Null),
            };
            assert_eq!(python_frames(group), expected, "3.{}: {group}", python.minor);
            assert_eq!(group["incomplete"], incomplete, "3.{}: {group}", python.minor);
        }
    }
}

#[bpf_test]
fn the_outermost_of_nested_calls_is_shown_with_its_caller() {
    const SOURCE: &str = "hung_nested.cpp";
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), SOURCE, &["-O2"], Library::Runtime(Cuda::Cuda12)));
    for (variable, state, system_call) in WAITS {
        let wait = format!("{variable}=cuStreamSynchronize:{FOR_EVER}");
        let started = Started::new(&[&program], &[&wait]);
        let shown = process(started.pid, &[]);
        let group = only_group(&shown);
        let found = (&group["verdict"], &group["function"], &group["state"], &group["system_call"]);
        let expected = (&json!("stuck"), &json!("cudaStreamSynchronize"), &json!(state), &json!(system_call));
        assert_eq!(found, expected, "{group}");
        let functions = functions(group);
        let outermost = functions.iter().position(|function| *function == "cudaStreamSynchronize").unwrap();
        assert!(functions[..outermost].contains(&"cuStreamSynchronize"), "{functions:?}");
        let callers = ["training::Epoch::wait_for_stream()", "main"];
        assert_eq!(functions[outermost + 1..outermost + 3], callers, "{functions:?}");
        let line = line_of(&compile::source(SOURCE), "cudaStreamSynchronize(nullptr)");
        assert_eq!(list(&group["stack"])[outermost + 1]["line"], line, "{group}");
    }
}
