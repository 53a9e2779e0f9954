//! AMD's own libamdhip64, from Debian, without a GPU: every call fails or answers as it does, and arguments, results,
//! names of errors and counts are exact.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::arguments::assert_equal;
use gpuprobe_e2e::recording::Counts;
use gpuprobe_e2e::{Run, bpf_test, compile, fixtures, needs};
use gpuprobe_event::Api;

/// Where Debian's package libamdhip64-5 has it.
fn library() -> Option<PathBuf> {
    let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    let mut paths = folders.iter().map(|folder| Path::new("/usr/lib").join(folder).join("libamdhip64.so.5"));
    let found = paths.find(|path| path.exists());
    if found.is_none() {
        needs::missing("bpf", "libamdhip64-5 is not installed");
    }
    found
}

#[bpf_test(together)]
fn the_real_hip_is_traced_exactly_without_a_gpu() {
    let Some(library) = library() else { return };
    let folder = fixtures::folder();
    let program = folder.path().join("hip_calls");
    let source = compile::source("hip_calls.c");
    compile::run(Command::new("cc").arg("-O1").arg(source).arg(&library).arg("-o").arg(&program));
    let outcome = Run::new(&program).options(&["-e", "hip*"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let printed = outcome.finished.json();
    let compared = assert_equal(&outcome.trace, &printed, 5);
    assert_eq!((compared, outcome.trace.calls.len()), (44, 44), "nothing else was called");

    let mut errors = Counts::new();
    for call in &outcome.trace.calls {
        assert_eq!(call.api, Api::Hip);
        *errors.entry(call.error.as_deref().unwrap_or("none").to_owned()).or_default() += 1;
    }
    // the versions; the number of GPUs; everything else names a GPU that does not exist, or needs one
    let expected = [("hipErrorInvalidDevice", 41), ("hipErrorNoDevice", 1), ("none", 2)];
    assert_eq!(errors, expected.map(|(name, n)| (name.to_owned(), n)).into());
}
