//! Arguments and results of one call of each kind: the decoded values are those that were passed.

use gpuprobe_e2e::arguments::{assert_equal, runtime_calls};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures, tiers};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;

/// Functions that cover all ways to pass an argument: integers, handles, structs in registers, on the stack and by
/// pointer.
const KINDS: [&str; 7] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMalloc3D",
    "cudaMemcpy2D",
    "cudaMemcpy3D",
    "cudaMemset3D",
    "cudaSetDevice",
];

fn outcome(cuda: Cuda, options: &[&str]) -> Outcome {
    let outcome = Run::new(fixtures::standins(cuda).workload("args")).options(options).outcome();
    outcome.trace.assert_whole();
    outcome
}

fn assert_decoded(cuda: Cuda, options: &[&str]) {
    let outcome = outcome(cuda, options);
    let printed = outcome.finished.json();
    let compared = assert_equal(&outcome.trace, &printed, cuda.major());
    assert_eq!(compared, runtime_calls(&printed) + 2, "two are the driver's");
    assert!(compared >= 50, "{compared}");
    let runtime = outcome.trace.calls.iter().filter(|c| c.api == Api::Runtime).count();
    let inner = outcome.trace.calls.iter().filter(|c| c.parent.is_some()).count();
    assert_eq!(inner, runtime + 1, "each runtime call makes one driver call, the choice of a device two");
}

#[bpf_test(tiers)]
fn every_argument_of_cuda_12_is_decoded_as_it_was_passed(tier: &str) {
    if tier != "perf" {
        assert_decoded(Cuda::Cuda12, &tiers::options(tier, &[]));
        return;
    }
    let outcome = outcome(Cuda::Cuda12, &tiers::options(tier, &KINDS));
    let mut printed = outcome.finished.json();
    printed.retain(|p| KINDS.iter().any(|kind| p["function"] == *kind));
    let compared = assert_equal(&outcome.trace, &printed, 12);
    assert!(compared >= KINDS.len(), "{compared}");
}

#[bpf_test]
fn every_argument_of_cuda_13_is_decoded_as_it_was_passed() {
    assert_decoded(Cuda::Cuda13, &["-e", "*"]);
}
