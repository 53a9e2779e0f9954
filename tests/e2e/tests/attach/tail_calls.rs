//! Functions that end by jumping to another export: both calls are recorded, the second inside the first, and neither
//! counts as abandoned.

use gpuprobe_e2e::{Run, bpf_test, compile, fixtures, tiers};

/// A CUDA driver of two functions, one of which jumps to the other before it has touched the stack.
const LIBRARY: &str = r#"
__asm__(".text\n.globl cuCtxSynchronize\n.type cuCtxSynchronize, @function\ncuCtxSynchronize:\n"
#ifdef __x86_64__
        "nop\njmp cuStreamSynchronize@PLT\n"
#else
        "nop\nb cuStreamSynchronize\n"
#endif
        ".size cuCtxSynchronize, .-cuCtxSynchronize\n");
int cuStreamSynchronize(void *stream) { return stream == (void *)1 ? 1 : 0; }
int cuInit(unsigned int flags) { return (int)flags; }
"#;

const PROGRAM: &str = r#"
int cuCtxSynchronize(void *);
int cuStreamSynchronize(void *);
int main(void)
{
	int failed = 0;
	for (int i = 0; i < 10; i++)
		failed += cuCtxSynchronize(0) + cuStreamSynchronize((void *)1);
	return failed;
}
"#;

#[bpf_test(tiers)]
fn a_function_that_jumps_to_another_is_its_parent(tier: &str) {
    let folder = fixtures::folder();
    let program = compile::with_driver(folder.path(), LIBRARY, PROGRAM);

    let outcome = Run::new(&program).options(&tiers::options(tier, &["*"])).outcome();
    assert_eq!(outcome.finished.status, 10, "{}", outcome.finished.stderr);
    let trace = &outcome.trace;
    trace.assert_whole();
    let (jumps, others): (Vec<_>, Vec<_>) = trace.calls.iter().partition(|c| c.name == "cuCtxSynchronize");
    assert_eq!((jumps.len(), others.len()), (10, 20));
    let by_id = trace.by_id();
    for call in others {
        let parent = call.parent.map(|id| &*by_id[&id].name);
        let expected = if call.failed() { None } else { Some("cuCtxSynchronize") };
        assert_eq!(parent, expected, "{call:?}");
    }
    assert!(jumps.iter().all(|c| c.parent.is_none() && c.status == Some(0)), "{jumps:?}");
}
