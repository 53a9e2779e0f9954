//! Arguments and results, one call of each kind: what is decoded is what was passed.

use gpuprobe_e2e::arguments::{assert_equal, runtime_calls};
use gpuprobe_e2e::{Run, needs, places};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;

fn assert_decoded(cuda: Cuda, options: &[&str]) {
    let workload = places::standins(cuda).workload("args");
    let outcome = Run::new(workload).options(options).options(&["-e", "*"]).outcome();
    outcome.trace.assert_whole();
    let printed = outcome.finished.json();
    let compared = assert_equal(&outcome.trace, &printed, cuda.major());
    assert_eq!(compared, runtime_calls(&printed) + 2, "two are the driver's");
    assert!(compared >= 50, "{compared}");
    let runtime = outcome.trace.calls.iter().filter(|c| c.api == Api::Runtime).count();
    let inner = outcome.trace.calls.iter().filter(|c| c.parent.is_some()).count();
    assert_eq!(inner, runtime, "each runtime call makes one driver call");
}

#[test]
fn every_argument_of_cuda_12_is_decoded_as_it_was_passed() {
    if needs::bpf() {
        assert_decoded(Cuda::Cuda12, &[]);
    }
}

#[test]
fn every_argument_of_cuda_13_is_decoded_as_it_was_passed() {
    if needs::bpf() {
        assert_decoded(Cuda::Cuda13, &[]);
    }
}

#[test]
fn the_multi_tier_decodes_the_same() {
    if needs::bpf() {
        assert_decoded(Cuda::Cuda12, &["--attach", "multi"]);
    }
}
