//! Programs that make the same call again and again move, however short or long it is.

use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::sampled::{Started, compiled, only_group, process};
use gpuprobe_e2e::{bpf_test, fixtures, python};
use gpuprobe_standin::Library;

/// Short calls that keep a CPU busy, and calls that sleep for most of the time.
const CALLS: [&str; 2] = ["STANDIN_SPIN=cuStreamSynchronize:40", "STANDIN_DELAY=cuStreamSynchronize:4000"];
const TIMES: usize = 3;

/// Whether it is moving must not depend on where the samples hit.
fn assert_moving(program: &Started) {
    for _ in 0..TIMES {
        let shown = process(program.pid, &[]);
        let group = only_group(&shown);
        assert_eq!((&group["verdict"], &group["main"]), (&"moving".into(), &true.into()), "{group}");
        assert_eq!(group["function"], "cuStreamSynchronize", "{group}");
    }
}

#[bpf_test]
fn a_python_loop_moves() {
    let python = &python::newest().path;
    for calls in CALLS {
        assert_moving(&Started::python(python, "busy_stream.py", Library::Driver, &[], &[calls]));
    }
}

/// The counter of its loop is on the stack, or only in a register.
#[bpf_test]
fn a_native_loop_moves() {
    for optimization in ["-O0", "-O2"] {
        let folder = fixtures::folder();
        let program = shown(compiled(folder.path(), "busy_stream.c", &[optimization], Library::Driver));
        for calls in CALLS {
            assert_moving(&Started::new(&[&program], &[calls]));
        }
    }
}
