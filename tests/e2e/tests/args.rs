//! Arguments and results, one call of each kind: what is decoded is what was passed.

use gpuprobe_e2e::arguments::{assert_equal, runtime_calls};
use gpuprobe_e2e::{Outcome, Run, needs, places, tiers};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;

/// What a program passes in every way: integers, handles, structs in registers, on the stack and behind pointers.
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
    let outcome = Run::new(places::standins(cuda).workload("args")).options(options).outcome();
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
    assert_eq!(inner, runtime, "each runtime call makes one driver call");
}

#[test]
fn every_argument_of_cuda_12_is_decoded_as_it_was_passed_on_every_tier() {
    if !needs::bpf() {
        return;
    }
    for tier in tiers::here() {
        println!("{tier}");
        if *tier != "perf" {
            assert_decoded(Cuda::Cuda12, &tiers::options(tier, &[]));
            continue;
        }
        let outcome = outcome(Cuda::Cuda12, &tiers::options(tier, &KINDS));
        let mut printed = outcome.finished.json();
        printed.retain(|p| KINDS.iter().any(|kind| p["function"] == *kind));
        let compared = assert_equal(&outcome.trace, &printed, 12);
        assert!(compared >= KINDS.len(), "{compared}");
    }
}

#[test]
fn every_argument_of_cuda_13_is_decoded_as_it_was_passed() {
    if needs::bpf() {
        assert_decoded(Cuda::Cuda13, &["-e", "*"]);
    }
}
