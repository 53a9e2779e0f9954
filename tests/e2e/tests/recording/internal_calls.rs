//! Calls that compilers insert give CUDA kernels their names, and are recorded only on request.

use gpuprobe_e2e::{Run, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

#[bpf_test]
fn internal_calls_are_recorded_only_if_selected() {
    let demo = fixtures::standins(Cuda::Cuda12).workload("demo");
    let outcome = Run::new(&demo).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let is_internal = |name: &str| name.starts_with("__cuda");
    assert!(!outcome.trace.calls.iter().any(|call| is_internal(&call.name)));
    assert!(!outcome.finished.stderr.contains("__cuda"), "{}", outcome.finished.stderr);
    let launches = || outcome.trace.calls.iter().filter_map(|call| call.effect.launch().map(|_| call));
    assert!(launches().count() > 0 && launches().all(|call| call.effect.kernel().is_some()), "named");

    let outcome = Run::new(&demo).options(&["-e", "__cuda*"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let registered = outcome.trace.calls.iter().filter(|call| call.name == "__cudaRegisterFunction").count();
    assert_eq!(registered, 3, "one for each CUDA kernel of the demo");
    assert!(outcome.trace.calls.iter().all(|call| is_internal(&call.name)));
    assert!(outcome.finished.stderr.contains("\n__cudaRegisterFunction "), "{}", outcome.finished.stderr);
}
