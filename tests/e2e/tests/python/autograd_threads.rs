//! Threads of PyTorch's backward pass run no Python. Their stacks say so also where their outermost frames are not known.

use std::process::Command;

use gpuprobe_e2e::process::{at_once, shown};
use gpuprobe_e2e::python;
use gpuprobe_e2e::{bpf_test, compile, fixtures};

const LABEL: &str = "... (autograd thread)";
/// What the threads of `deep_threads.py` allocate.
const AUTOGRAD: u64 = 4096;
const WORKER: u64 = 8192;
const PYTHON: u64 = 12288;
const ROUNDS: usize = 3;

/// The stacks of the threads are equal as far as they are known; only the names of the threads differ.
#[bpf_test(tiers, alone)]
fn stacks_of_autograd_threads_that_are_cut_off_are_labelled_and_no_others(tier: &str) {
    let folder = fixtures::folder();
    let library = folder.path().join("libdeep.so");
    let options = ["-O1", "-fno-optimize-sibling-calls", "-shared", "-fPIC", "-pthread", "-o"];
    compile::run(Command::new("cc").args(options).arg(&library).arg(compile::source("deep_threads.c")));
    at_once(&python::on_tier(tier), |python| {
        let (ledger, trace) = python.recorded(tier, "deep_threads.py", &[&shown(&library)]);
        let traced = python::traced(&trace, ledger.pid);
        assert_eq!(traced.len(), 3 * ROUNDS);
        for call in &traced {
            let is_labelled = call.stack.iter().any(|frame| frame == LABEL);
            assert_eq!(is_labelled, call.bytes == AUTOGRAD, "3.{}: {:#?}", python.minor, call.stack);
            let has_lines = call.stack.iter().any(|frame| frame.starts_with("of_python ("));
            assert_eq!(has_lines, call.bytes == PYTHON, "3.{}: {:#?}", python.minor, call.stack);
        }
        let of = |bytes: u64| traced.iter().filter(|call| call.bytes == bytes).count();
        assert_eq!([AUTOGRAD, WORKER, PYTHON].map(of), [ROUNDS; 3]);
    });
}
