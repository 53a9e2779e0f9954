//! Unusual calls: impossible sizes, one call that frees many allocations, a call that is open when its process
//! executes another program, and functions that keep data below the stack pointer.

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::PATIENCE;
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Run, Talk, bpf_test, compile, fixtures, tiers};
use gpuprobe_event::Outcome;

/// A CUDA driver that accepts every size.
const ACCEPTS_ALL_SIZES: &str = r#"
#include <stddef.h>
static char *next = (char *)0x700000000000;
int cuInit(unsigned int flags) { return (int)flags; }
int cuMemAlloc_v2(void **pointer, size_t size)
{
	(void)size;
	*pointer = next += 0x1000000;
	return 0;
}
int cuMemAllocPitch_v2(void **pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	(void)height, (void)element;
	*pointer = next += 0x1000000;
	*pitch = width;
	return 0;
}
int cuMemFree_v2(void *pointer) { return !pointer; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { return (void)to, (void)from, (void)size, 0; }
"#;

const HUGE_SIZES: &str = r#"
#include <stdio.h>
#include <unistd.h>
int cuMemAlloc_v2(void **, size_t);
int cuMemAllocPitch_v2(void **, size_t *, size_t, size_t, unsigned int);
int cuMemcpyHtoD_v2(void *, const void *, size_t);
int main(void)
{
	size_t pitch;
	void *memory;

	cuMemAlloc_v2(&memory, 1000);
	cuMemAlloc_v2(&memory, -(size_t)1);
	cuMemAlloc_v2(&memory, -(size_t)5000);
	/* a product that comes round to 0 */
	cuMemAllocPitch_v2(&memory, &pitch, (size_t)1 << 32, (size_t)1 << 32, 4);
	cuMemcpyHtoD_v2(memory, memory, 500);
	cuMemcpyHtoD_v2(memory, memory, -(size_t)300);
	printf("{\"pid\":%d}\n", (int)getpid());
	fflush(stdout);
	getchar();
	return 0;
}
"#;

// alone, because a daemon counts the sizes of all programs on the host
#[bpf_test(tiers, alone)]
fn impossible_sizes_are_excluded_from_sums_and_counted(tier: &str) {
    let folder = fixtures::folder();
    let program = compile::with_driver(folder.path(), ACCEPTS_ALL_SIZES, HUGE_SIZES);
    let outcome = Run::new(&program).options(&tiers::options(tier, &["*"])).outcome();
    assert_eq!(outcome.finished.status, 0, "{tier}: {}", outcome.finished.stderr);
    let end = outcome.trace.assert_ended();
    assert_eq!(end.lost.values().copied().collect::<Vec<_>>(), [4], "{tier}: {:?}", end.lost);
    let report = outcome.trace.summary();
    let memory = (report.memory.allocated.count, report.memory.allocated.bytes);
    assert_eq!(memory, (4, 1000), "{tier}");
    assert_eq!(report.memory.freed_by_exit[0].allocations, 4, "{tier}");

    let daemon =
        Daemon::with(&["-p", &folder.path().join("libcuda.so.1").to_string_lossy(), "--attach", tier]);
    let mut talk = Talk::start(&mut std::process::Command::new(&program));
    let pid = pid_of(&talk.json());
    let metrics = daemon.until(PATIENCE, "sizes are counted", |m| m.lost("implausible_size") == 4);
    assert_eq!(metrics.of("gpuprobe_memory_allocated_bytes_total", pid), Some(1000), "{tier}");
    assert_eq!(metrics.by("gpuprobe_memory_live_bytes", pid, "kind").values().sum::<u64>(), 1000, "{tier}");
    talk.go_on();
}

/// A CUDA driver that accepts every copy.
const ACCEPTS_ALL_COPIES: &str = r#"
#include <stddef.h>
int cuInit(unsigned int flags) { return (int)flags; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { return (void)to, (void)from, (void)size, 0; }
int cuMemcpy2D_v2(const void *copy) { return !copy; }
int cuMemcpyBatchAsync(void **to, void **from, size_t *sizes, size_t count, void *attributes, size_t *indices,
		       size_t kinds, size_t *failed, void *stream)
{
	(void)to, (void)from, (void)sizes, (void)count, (void)attributes, (void)indices, (void)kinds, (void)failed;
	return (void)stream, 0;
}
"#;

const COPIES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int cuMemcpyHtoD_v2(void *, const void *, size_t);
int cuMemcpy2D_v2(const void *);
int cuMemcpyBatchAsync(void **, void **, size_t *, size_t, void *, size_t *, size_t, size_t *, void *);

static void batch(size_t *sizes, size_t count)
{
	static char memory[2][4096];
	void *to[16], *from[16];
	size_t i;

	for (i = 0; i < count; i++)
		to[i] = memory[0], from[i] = memory[1];
	cuMemcpyBatchAsync(to, from, sizes, count, NULL, NULL, 0, NULL, NULL);
}

/* CUDA_MEMCPY2D from the host to the device */
static void copy_2d(size_t width, size_t height)
{
	size_t copy[16] = {[2] = 1, [9] = 2, [14] = width, [15] = height};

	cuMemcpy2D_v2(copy);
}

int main(int count, char **arguments)
{
	size_t most = (size_t)1 << 48, huge[] = {most, most, most, 7};
	/* more sizes than a record has room for, and then again the last that had room */
	size_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 512};
	long i, copies = count > 1 ? atol(arguments[1]) : 0;

	if (!copies)
		return batch(sizes, sizeof(sizes) / sizeof(*sizes)), 0;
	copy_2d(most >> 8, most >> 8);
	copy_2d(100, 3);
	batch(huge, 4);
	for (i = 0; i < copies; i++)
		cuMemcpyHtoD_v2(&copies, &copies, most);
	printf("{\"pid\":%d}\n", (int)getpid());
	fflush(stdout);
	getchar();
	return 0;
}
"#;

/// A program can claim to copy any number of bytes, any number of times. With the perf tier, a daemon does not probe the
/// rarer of these functions.
#[bpf_test(tiers(session, multi), alone)]
fn sums_of_impossible_copies_do_not_wrap_around(tier: &str) {
    const MOST: u64 = 1 << 48;
    const COUNT: u64 = 33_000;
    let folder = fixtures::folder();
    let program = compile::with_driver(folder.path(), ACCEPTS_ALL_COPIES, COPIES);
    let library = folder.path().join("libcuda.so.1");
    let daemon = Daemon::with(&["-p", &library.to_string_lossy(), "--attach", tier]);
    // each CPU has counters of its own, so all calls are on one
    let mut command = std::process::Command::new("taskset");
    let mut talk = Talk::start(command.args(["-c", "0"]).arg(&program).arg(COUNT.to_string()));
    let pid = pid_of(&talk.json());
    // the sums of the direction and of the function do not grow any more once they exceed 1 << 63
    let (in_row, in_count) = ((1 << 63) / MOST, (1 << 63) / MOST + 1);
    let lost = 2 + (COUNT - in_row) + (COUNT - in_count);
    let copies = |m: &Metrics| m.by("gpuprobe_copies_total", pid, "mode").values().sum::<u64>();
    // the losses of a snapshot are read a little before the copies
    let made = |m: &Metrics| copies(m) >= COUNT + 6 && m.lost("implausible_size") >= lost;
    let metrics = daemon.until(PATIENCE, "all copies", made);
    assert_eq!(metrics.lost("implausible_size"), lost, "{tier}");
    let bytes = metrics.by("gpuprobe_copy_bytes_total", pid, "mode");
    assert_eq!(bytes["sync"], in_row * MOST + 300, "{tier}: {bytes:?}");
    assert_eq!(bytes["async"], MOST, "{tier}: the first of the batch, {bytes:?}");
    let copies = metrics.by("gpuprobe_copies_total", pid, "mode");
    assert_eq!((copies["sync"], copies["async"]), (COUNT + 2, 4), "{tier}");
    talk.go_on();
}

#[bpf_test(tiers)]
fn copies_of_a_batch_that_have_room_are_not_lost_after_one_that_has_not(tier: &str) {
    let folder = fixtures::folder();
    let program = compile::with_driver(folder.path(), ACCEPTS_ALL_COPIES, COPIES);
    let outcome = Run::new(&program).options(&tiers::options(tier, &["*"])).outcome();
    assert_eq!(outcome.finished.status, 0, "{tier}: {}", outcome.finished.stderr);
    let end = outcome.trace.assert_ended();
    assert_eq!(end.lost, [("unread_gpu_op".to_owned(), 1)].into(), "{tier}: only the size without room");
    let copies = &outcome.trace.summary().gpu_ops.copies;
    let sums: Vec<_> = copies.iter().map(|copies| (copies.copies, copies.bytes)).collect();
    assert_eq!(sums, [(12, 2047 + 512)], "{tier}");
}

/// A minimal CUDA driver: only the calls that gpuprobe sees matter here.
const PIECES: &str = r#"
#include <stdint.h>
#include <stddef.h>
static uint64_t next = 100;
int cuInit(unsigned int flags) { return (int)flags; }
int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags)
{
	(void)size, (void)prop, (void)flags;
	*handle = next++;
	return 0;
}
int cuMemMap(uint64_t at, size_t size, size_t offset, uint64_t handle, uint64_t flags)
{
	return (void)at, (void)size, (void)offset, (void)handle, (void)flags, 0;
}
int cuMemUnmap(uint64_t at, size_t size) { return (void)at, (void)size, 0; }
int cuMemRelease(uint64_t handle) { return (void)handle, 0; }
"#;

const UNMAPS_TEN: &str = r#"
#include <stdint.h>
#include <stddef.h>
int cuMemCreate(uint64_t *, size_t, const void *, uint64_t);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t);
int cuMemUnmap(uint64_t, size_t);
int cuMemRelease(uint64_t);
int main(void)
{
	const size_t size = 2 << 20;
	const uint64_t base = 0x7f0000000000;
	uint32_t prop[12] = {1, 0, 1, 0};

	for (int i = 0; i < 12; i++) {
		uint64_t handle;

		cuMemCreate(&handle, size, prop, 0);
		cuMemMap(base + i * size, size, 0, handle, 0);
		cuMemRelease(handle);
	}
	cuMemUnmap(base, 10 * size);
	return 0;
}
"#;

#[bpf_test(tiers)]
fn one_unmap_of_ten_mappings_frees_ten_allocations(tier: &str) {
    const PIECE: u64 = 2 << 20;
    let folder = fixtures::folder();
    let program = compile::with_driver(folder.path(), PIECES, UNMAPS_TEN);
    let outcome = Run::new(&program).options(&tiers::options(tier, &["*"])).outcome();
    let memory = &outcome.trace.summary().memory;
    outcome.trace.assert_whole();
    assert_eq!((memory.allocated.count, memory.allocated.bytes), (12, 12 * PIECE), "{tier}");
    assert_eq!((memory.freed.count, memory.freed.bytes), (10, 10 * PIECE), "{tier}");
    let freed = memory.freed_by_exit[0];
    assert_eq!((freed.allocations, freed.bytes), (2, 2 * PIECE), "{tier}");
}

const CALLS_BACK: &str = r#"
int cuInit(unsigned int flags) { return (int)flags; }
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
	(void)stream;
	function(data);
	return 0;
}
int cuCtxSynchronize(void) { return 0; }
"#;

const RUNS_ANOTHER: &str = r#"
#include <unistd.h>
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuCtxSynchronize(void);
static void run(void *name) { execl(name, "again", "once", (char *)0); }
int main(int count, char **words)
{
	cuCtxSynchronize();
	if (count == 1)
		cuLaunchHostFunc(0, run, words[0]);
	return 0;
}
"#;

#[bpf_test(tiers)]
fn a_call_that_is_open_at_an_exec_is_unfinished(tier: &str) {
    let folder = fixtures::folder();
    let program = compile::with_driver(folder.path(), CALLS_BACK, RUNS_ANOTHER);
    let outcome = Run::new(&program).options(&tiers::options(tier, &["*"])).outcome();
    assert_eq!(outcome.finished.status, 0, "{tier}: {}", outcome.finished.stderr);
    let trace = &outcome.trace;
    let end = trace.assert_ended();
    let of = |name: &str| trace.calls.iter().filter(|c| c.name == name).collect::<Vec<_>>();
    assert_eq!(of("cuCtxSynchronize").len(), 2, "{tier}");
    let open = of("cuLaunchHostFunc");
    let begun: u64 = end.lost.values().sum();
    match open[..] {
        [call] if call.outcome == Outcome::Unfinished => assert_eq!(begun, 0, "{tier}"),
        // a tier without a safe return probe has only its entry
        [call] => assert_eq!((call.outcome, begun), (Outcome::Unobserved, 1), "{tier}"),
        _ => panic!("{tier}: {open:?}"),
    }
}

/// Functions that keep their argument in the red zone below the stack pointer, after a nop of five bytes: at their
/// entry, after an `endbr64`, and after other instructions.
const RED_ZONE: &str = r#"
#define KEEPS(name, before)                                                                                            \
	__asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" before                               \
		".byte 0x0f,0x1f,0x44,0x00,0x00\nmov %rdi,-8(%rsp)\nmov %rdi,-16(%rsp)\n"                                \
		".byte 0x0f,0x1f,0x44,0x00,0x00\nmov -8(%rsp),%rax\nadd -16(%rsp),%rax\nret\n.size " #name ", .-" #name "\n")
KEEPS(cuInit, "");
KEEPS(cuCtxSynchronize, "endbr64\n");
KEEPS(cuStreamSynchronize, "xor %eax,%eax\n");
"#;

const COMPARES: &str = r#"
long cuInit(long);
long cuCtxSynchronize(long);
long cuStreamSynchronize(long);
int main(void)
{
	int wrong = 0;

	for (long i = 1; i <= 10000; i++)
		wrong |= cuInit(i) != 2 * i || cuCtxSynchronize(i) != 2 * i || cuStreamSynchronize(i) != 2 * i;
	return wrong;
}
"#;

#[bpf_test(tiers)]
#[cfg(target_arch = "x86_64")]
fn data_below_the_stack_pointer_is_not_changed(tier: &str) {
    let folder = fixtures::folder();
    let program = compile::with_driver(folder.path(), RED_ZONE, COMPARES);
    let outcome = Run::new(&program).options(&tiers::options(tier, &["*"])).outcome();
    assert_eq!(outcome.finished.status, 0, "{tier}: wrong results; {}", outcome.finished.stderr);
    assert_eq!(outcome.trace.assert_whole().calls, 30_000, "{tier}");
}
