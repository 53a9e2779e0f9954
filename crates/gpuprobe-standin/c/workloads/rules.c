/*
 * rules [RULE]: one rule of the memory accounting at a time, so that a test shows which one broke. After each
 * step it prints a ledger as the workload `torture` does, and waits for a line on stdin. Without RULE it
 * prints
 * {"rules":[...]}.
 *
 *   reuse     an address is allocated by another thread before its free has returned
 *   cross     one thread allocates, another frees
 *   unmap     one call removes several mappings; one that does not match whole mappings removes none
 *   retain    memory stays while it is mapped or has references, and a mapping gives a handle again
 *   import    memory of another process is live from its first mapping on
 *   primary   the last release of a primary context frees the memory in it
 *   reset     so does a reset of the device
 *   context   so does the end of a context, whose handle is then reused
 *   hurry     the handle and the addresses of a context are reused before its end has returned
 *   devices   memory is on the device of its context, physical memory where its properties say
 *   refused   frees that fail free nothing
 *   exec      another program in the same process has none of the first one's memory
 *   fork      a child has none of its parent's memory
 */
#include "rules.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct options options = {.threads = 1, .devices = DEVICES - 1};
static struct totals totals;
static unsigned int steps;

void must(int condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "rules: not so: %s\n", what);
	exit(1);
}

void sleep_ms(long ms)
{
	const struct timespec time = {0, ms * 1000000};

	nanosleep(&time, NULL);
}

void show(void)
{
	int c;

	print_totals(stdout, &totals, "snapshot", ++steps);
	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

void allocated(enum kind kind, int device, size_t size)
{
	totals.sums[kind][device].allocations++;
	totals.sums[kind][device].allocated_bytes += size;
}

void freed(enum kind kind, int device, size_t size)
{
	totals.sums[kind][device].frees++;
	totals.sums[kind][device].freed_bytes += size;
}

static void ended(enum kind kind, int device, size_t size)
{
	totals.sums[kind][device].ended++;
	totals.sums[kind][device].freed_with_context_bytes += size;
}

static const size_t sizes[FAMILIES] = {
    SET_DEVICE_BYTES, 0, 2000, 3000, 4000, 7 * 5 * 2, (8 * 8 + 4 * 4 + 2 * 2 + 1) * 2};
static const enum kind kinds[FAMILIES] = {KIND_DEVICE, KIND_DEVICE, KIND_MANAGED, KIND_PINNED,
					  KIND_POOL,   KIND_ARRAY,  KIND_ARRAY};

struct set allocate_set(int device)
{
	struct cudaChannelFormatDesc bytes = {8, 8, 0, 0, 1};
	struct set set = {0};
	size_t pitch = 0;
	int result = 0;

	result |= cudaMalloc(&set.device, sizes[0]);
	result |= cudaMallocPitch(&set.pitched, &pitch, 600, 3);
	result |= cudaMallocManaged(&set.managed, sizes[2], 1);
	result |= cudaMallocHost(&set.pinned, sizes[3]);
	result |= cudaMallocAsync(&set.pool, sizes[4], NULL);
	result |= cudaMallocArray(&set.array, &bytes, 7, 5, 0);
	result |= cudaMallocMipmappedArray(&set.mipmapped, &bytes, (struct cudaExtent){8, 8, 0}, 4, 0);
	must(!result, "a set is allocated");
	set.pitched_size = pitch * 3;
	for (unsigned int i = 0; i < FAMILIES; i++)
		allocated(kinds[i], device, sizes[i] ? sizes[i] : set.pitched_size);
	return set;
}

void set_freed(const struct set *set, int device)
{
	for (unsigned int i = 0; i < FAMILIES; i++)
		freed(kinds[i], device, sizes[i] ? sizes[i] : set->pitched_size);
}

void set_ended(const struct set *set, int device)
{
	for (unsigned int i = 0; i < FAMILIES; i++)
		ended(kinds[i], device, sizes[i] ? sizes[i] : set->pitched_size);
}

/* Freeing again what was freed already fails. */
int free_set(const struct set *set)
{
	int failed = 0;

	failed += cudaFree(set->device) != 0;
	failed += cudaFree(set->pitched) != 0;
	failed += cudaFree(set->managed) != 0;
	failed += cudaFreeHost(set->pinned) != 0;
	failed += cudaFreeAsync(set->pool, NULL) != 0;
	failed += cudaFreeArray(set->array) != 0;
	failed += cudaFreeMipmappedArray(set->mipmapped) != 0;
	totals.failed_frees += (unsigned long)failed;
	return failed;
}

struct slow_call slow;

pthread_t start_slow(void *(*run)(void *), uint64_t argument)
{
	pthread_t thread;

	slow = (struct slow_call){.argument = argument};
	must(!pthread_create(&thread, NULL, run, NULL), "a thread");
	while (!__atomic_load_n(&slow.begun, __ATOMIC_ACQUIRE))
		;
	sleep_ms(3);
	return thread;
}

static void *free_slowly(void *unused)
{
	(void)unused;
	__atomic_store_n(&slow.begun, 1, __ATOMIC_RELEASE);
	must(!cuMemFree_v2(slow.argument), "it is freed");
	__atomic_store_n(&slow.returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Returns whether the address was allocated again before its free had returned. */
static int reuse_once(uint64_t *live_address, size_t from, size_t to)
{
	pthread_t thread = start_slow(free_slowly, *live_address);
	uint64_t again = 0;
	int overlaps;

	must(!cuMemAlloc_v2(&again, to), "it is allocated");
	overlaps = again == *live_address && !__atomic_load_n(&slow.returned, __ATOMIC_ACQUIRE);
	pthread_join(thread, NULL);
	freed(KIND_DEVICE, 0, from);
	allocated(KIND_DEVICE, 0, to);
	*live_address = again;
	return overlaps;
}

static void reuse(void)
{
	uint64_t live_address = 0;
	size_t size = 600;
	int overlaps = 0;

	must(!cuMemAlloc_v2(&live_address, size), "it is allocated");
	allocated(KIND_DEVICE, 0, size);
	show();
	for (int i = 0; i < TRIES && overlaps < ROUNDS; i++) {
		size_t next = 600 + (size_t)(i % 7) * 10 + 1;

		overlaps += reuse_once(&live_address, size, next);
		size = next;
	}
	must(overlaps == ROUNDS, "addresses are given out again before their free returns");
	show();
}

static void *free_all(void *argument)
{
	must(!cudaSetDevice(0), "the device");
	must(!free_set(argument), "another thread's memory is freed");
	return NULL;
}

static void cross(void)
{
	struct set first = allocate_set(0), second = allocate_set(0);
	pthread_t thread;

	show();
	must(!pthread_create(&thread, NULL, free_all, &first), "a thread");
	pthread_join(thread, NULL);
	set_freed(&first, 0);
	show();
	must(!free_set(&second), "and one's own");
	set_freed(&second, 0);
	show();
}

static void devices(void)
{
	for (int device = 0; device < options.devices; device++) {
		must(!cudaSetDevice(device), "a device");
		allocate_set(device);
		create_on((device + 1) % options.devices, 2 * MIB);
	}
	show();
}

static void refused(void)
{
	struct set set = allocate_set(0);
	void *out = NULL;

	must(cudaFree(set.pinned) && cudaFreeHost(set.device) && cudaFreeAsync(set.managed, NULL),
	     "wrong functions");
	must(cudaFreeArray(set.mipmapped) && cudaFreeMipmappedArray(set.array), "wrong arrays");
	must(cudaFree((void *)0x666000000000) && !cudaFree(NULL), "nothing is freed");
	must(cudaMalloc(&out, (size_t)2 << 40), "too large");
	totals.failed_frees += 6;
	totals.unknown_frees++;
	totals.null_frees++;
	totals.failed_allocations++;
	show();
}

static void executed(void)
{
	void *block = NULL;

	must(!cudaSetDevice(1) && !cudaMalloc(&block, 5000), "a block");
	allocated(KIND_DEVICE, 1, 5000);
	show();
}

static void exec(void)
{
	allocate_set(0);
	create_on(1, 4 * MIB);
	show();
	execl("/proc/self/exe", "rules", "executed", (char *)NULL);
	must(0, "exec");
}

/* The child keeps its memory until the parent continues. */
static void be_child(int go_on_pipe, int ready)
{
	static const struct totals none;
	char c;

	totals = none;
	must(!cudaSetDevice(1), "a device");
	allocate_set(1);
	print_totals(stdout, &totals, "child", 0);
	must(write(ready, "", 1) == 1 && read(go_on_pipe, &c, 1) == 0, "the parent continues");
	_exit(0);
}

static void do_fork(void)
{
	int status = 0, go_on_pipe[2], ready[2];
	char c;
	pid_t pid;

	allocate_set(0);
	must(!pipe(go_on_pipe) && !pipe(ready), "pipes");
	pid = fork();
	must(pid >= 0, "fork");
	if (!pid) {
		close(go_on_pipe[1]);
		be_child(go_on_pipe[0], ready[1]);
	}
	must(read(ready[0], &c, 1) == 1, "the child has printed");
	show();
	close(go_on_pipe[1]);
	must(waitpid(pid, &status, 0) == pid && !status, "the child succeeds");
	show();
}

static const struct {
	const char *name, *delay;
	void (*run)(void);
} rules[] = {
    {"reuse", "cuMemFree_v2:20000", reuse},
    {"cross", NULL, cross},
    {"unmap", NULL, rule_unmap},
    {"retain", NULL, rule_retain},
    {"import", NULL, rule_import},
    {"primary", NULL, rule_primary},
    {"reset", NULL, rule_reset},
    {"context", NULL, rule_context},
    {"hurry", "cuCtxDestroy_v2:20000", rule_hurry},
    {"devices", NULL, devices},
    {"refused", NULL, refused},
    {"exec", NULL, exec},
    {"executed", NULL, executed},
    {"fork", NULL, do_fork},
};

#define RULES (sizeof(rules) / sizeof(rules[0]))

int main(int count, char **words)
{
	for (unsigned int i = 0; i < RULES; i++) {
		if (count != 2 || strcmp(words[1], rules[i].name))
			continue;
		if (rules[i].delay)
			setenv("STANDIN_DELAY_AFTER", rules[i].delay, 1);
		must(!cudaSetDevice(0), "the first device");
		rules[i].run();
		return 0;
	}
	if (count != 1)
		return 2;
	printf("{\"rules\":[");
	for (unsigned int i = 0; i < RULES; i++)
		printf("%s\"%s\"", i ? "," : "", rules[i].name);
	printf("]}\n");
	return 0;
}
