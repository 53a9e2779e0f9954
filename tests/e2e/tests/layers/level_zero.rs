//! Level Zero: the real loader without a GPU, and a stand-in of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::arguments::assert_equal;
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::PATIENCE;
use gpuprobe_e2e::recording::{Counts, pid_of};
use gpuprobe_e2e::{Run, Talk, bpf_test, compile, fixtures, needs};
use gpuprobe_event::{Api, Class};

/// Where Debian's package libze1 has it.
fn library() -> Option<PathBuf> {
    let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    let mut paths = folders.iter().map(|folder| Path::new("/usr/lib").join(folder).join("libze_loader.so.1"));
    let found = paths.find(|path| path.exists());
    if found.is_none() {
        needs::missing("bpf", "libze1 is not installed");
    }
    found
}

#[bpf_test(together)]
fn the_real_loader_is_traced_exactly_without_a_gpu() {
    let Some(library) = library() else { return };
    let folder = fixtures::folder();
    let program = folder.path().join("level_zero");
    let source = compile::source("level_zero.c");
    compile::run(Command::new("cc").arg("-O1").arg(source).arg(&library).arg("-o").arg(&program));
    let outcome = Run::new(&program).options(&["-e", "ze*"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let compared = assert_equal(&outcome.trace, &outcome.finished.json(), 1);
    assert_eq!((compared, outcome.trace.calls.len()), (20, 20), "nothing else was called");
    for call in &outcome.trace.calls {
        assert_eq!(
            (call.api, call.error.as_deref()),
            (Api::LevelZero, Some("ZE_RESULT_ERROR_UNINITIALIZED"))
        );
    }
    let launch = outcome.trace.calls.iter().find(|call| call.class == Class::Launch).unwrap();
    assert_eq!(launch.effect.launch().unwrap().grid, Some([7, 5, 3]));
    let report = &outcome.finished.stderr;
    assert!(report.contains("zeInit") && report.contains("ZE_RESULT_ERROR_UNINITIALIZED"), "{report}");
}

/// Memory has addresses that are reused, and a kernel lives where the one before it lived.
const LOADER: &str = "
    #include <stdint.h>
    #include <stddef.h>
    static char memory[64][64];
    static int used[64], kernel;
    int zeInit(uint32_t flags) { return flags ? 0x78000001 : 0; }
    int zeDriverGet(uint32_t *n, void **d) { *n = 1; return 0; }
    int zeContextCreate(void *d, const void *e, void **c) { *c = &kernel; return 0; }
    static int take(size_t n, void **out)
    {
        if (n > 1 << 20) return 0x70000003;
        for (int i = 0; i < 64; i++)
            if (!used[i]) { used[i] = 1; *out = memory[i]; return 0; }
        return 0x70000003;
    }
    int zeMemAllocDevice(void *c, const void *e, size_t n, size_t a, void *d, void **o) { return take(n, o); }
    int zeMemAllocHost(void *c, const void *e, size_t n, size_t a, void **o) { return take(n, o); }
    int zeMemAllocShared(void *c, const void *e, const void *h, size_t n, size_t a, void *d, void **o)
    { return take(n, o); }
    int zeMemFree(void *c, void *p) { used[((char *)p - memory[0]) / 64] = 0; return 0; }
    int zeKernelCreate(void *m, const char *const *e, void **o) { *o = &kernel; return *e[3] ? 0 : 0x78000011; }
    int zeKernelDestroy(void *k) { return 0; }
    int zeCommandListAppendLaunchKernel(void *l, void *k, const void *g, void *s, uint32_t n, void **w) { return 0; }
    int zeCommandListAppendMemoryCopy(void *l, void *d, const void *s, size_t n, void *e, uint32_t c, void **w)
    { return 0; }
    int zeCommandQueueSynchronize(void *q, uint64_t t) { return t ? 0 : 1; }";

/// Prints its ledger and waits for a line.
const PROGRAM: &str = r#"
    #include <stdint.h>
    #include <stddef.h>
    #include <stdio.h>
    #include <unistd.h>
    int zeInit(uint32_t);
    int zeMemAllocDevice(void *, const void *, size_t, size_t, void *, void **);
    int zeMemAllocHost(void *, const void *, size_t, size_t, void **);
    int zeMemAllocShared(void *, const void *, const void *, size_t, size_t, void *, void **);
    int zeMemFree(void *, void *);
    int zeKernelCreate(void *, const void *, void **);
    int zeKernelDestroy(void *);
    int zeCommandListAppendLaunchKernel(void *, void *, const void *, void *, uint32_t, void **);
    int zeCommandListAppendMemoryCopy(void *, void *, const void *, size_t, void *, uint32_t, void **);
    int zeCommandQueueSynchronize(void *, uint64_t);
    int main(void)
    {
        struct { uint32_t type; const void *next; uint32_t flags; const char *name; } desc = {29};
        const char *names[] = {"vector_add", "twice"};
        static char host[4096];
        void *kernel, *memory, *pinned, *shared;
        zeInit(0);
        for (int i = 0; i < 30; i++) {
            uint32_t groups[3] = {i + 1, 2, 1};
            zeMemAllocDevice(0, 0, 1000 + i, 1, 0, &memory);
            zeMemAllocHost(0, 0, 300, 1, &pinned);
            zeMemAllocShared(0, 0, 0, 70, 1, 0, &shared);
            zeMemAllocDevice(0, 0, 2 << 20, 1, 0, &shared);
            desc.name = names[i % 3 == 0];
            zeKernelCreate(0, &desc, &kernel);
            zeCommandListAppendMemoryCopy(&desc, memory, host, 100, 0, 0, 0);
            zeCommandListAppendLaunchKernel(&desc, kernel, groups, 0, 0, 0);
            zeCommandListAppendMemoryCopy(&desc, host, memory, 10, 0, 0, 0);
            zeCommandQueueSynchronize(&desc, 0);
            zeCommandQueueSynchronize(&desc, -1);
            zeKernelDestroy(kernel);
            if (i >= 5) {
                zeMemFree(0, memory);
                zeMemFree(0, pinned);
            }
            zeMemFree(0, shared);
        }
        printf("{\"pid\":%d}\n", getpid());
        fflush(stdout);
        getchar();
        return 0;
    }"#;

/// The program on the stand-in.
fn compiled(folder: &Path) -> PathBuf {
    compile::with_libraries(folder, &[("libze_loader.so.1", LOADER)], PROGRAM)
}

fn counts<const N: usize>(rows: [(&str, u64); N]) -> Counts {
    rows.map(|(name, count)| (name.to_owned(), count)).into()
}

#[bpf_test(tiers)]
fn memory_copies_launches_and_errors_are_exact(tier: &str) {
    let folder = fixtures::folder();
    let outcome = Run::new(compiled(folder.path())).options(&["--attach", tier]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let pid = pid_of(&outcome.printed());
    let (mut launches, mut copied, mut errors) = (Counts::new(), Counts::new(), Counts::new());
    for call in outcome.trace.of(pid) {
        assert_eq!(call.api, Api::LevelZero);
        if let Some(launch) = call.effect.launch() {
            *launches.entry(launch.kernel.as_deref().unwrap_or("?").to_owned()).or_default() += 1;
            assert_eq!(launch.grid.map(|grid| grid[1..].to_owned()), Some(vec![2, 1]));
        }
        if let Some(transfer) = call.effect.transfer() {
            let bytes = call.effect.size().unwrap();
            *copied.entry(transfer.direction.as_str().to_owned()).or_default() += bytes;
        }
        if call.failed() {
            *errors.entry(call.error.as_deref().unwrap_or("?").to_owned()).or_default() += 1;
        }
    }
    assert_eq!(launches, counts([("vector_add", 20), ("twice", 10)]));
    assert_eq!(copied, counts([("H2D", 3000), ("D2H", 300)]));
    assert_eq!(errors, counts([("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", 30)]), "not ready is an answer");
    assert_eq!(outcome.trace.live(pid), (10, 6510));
}

#[bpf_test(alone)]
fn a_daemon_counts_launches_by_kernel_and_live_memory_by_kind() {
    let folder = fixtures::folder();
    let program = compiled(folder.path());
    let daemon = Daemon::start(&folder.path().join("libze_loader.so.1"));
    let mut talk = Talk::start(&mut Command::new(program));
    let pid = pid_of(&talk.json());
    daemon.until_equal(PATIENCE, |metrics, found| {
        let mut live = metrics.by("gpuprobe_memory_live_bytes", pid, "kind");
        live.retain(|_, bytes| *bytes > 0);
        found.compare("live", &live, &counts([("device", 5010), ("pinned", 1500)]));
        let launched = metrics.by("gpuprobe_kernel_launches_total", pid, "kernel");
        found.compare("launches", &launched, &counts([("vector_add", 20), ("twice", 10)]));
        let mut copied = metrics.by("gpuprobe_copy_bytes_total", pid, "kind");
        copied.retain(|_, bytes| *bytes > 0);
        found.compare("copied", &copied, &counts([("H2D", 3000), ("D2H", 300)]));
        let mut errors = metrics.by("gpuprobe_errors_total", pid, "function");
        errors.retain(|_, errors| *errors > 0);
        found.compare("errors", &errors, &counts([("zeMemAllocDevice", 30)]));
    });
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
}
