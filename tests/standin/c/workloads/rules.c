/*
 * rules RULE: one rule of what memory is held, alone, so that a test tells which one broke. After each step
 * it prints a ledger as the workload `torture` does, and waits for a line on stdin.
 *
 *   reuse     an address is allocated by another thread before its free has returned
 *   cross     one thread allocates, another frees
 *   unmap     one call takes away several mappings; one that does not fit takes away none
 *   retain    memory stays while it is mapped or has references, and a handle can be had again from a mapping
 *   import    memory of another process is held from its first mapping on
 *   primary   the last release of a primary context frees what is in it
 *   reset     so does a reset of the device
 *   context   so does the end of a context, whose handle is another's then
 *   hurry     handle and addresses of a context are others' before its end has returned
 *   devices   memory is on the device of its context, physical memory where its properties say
 *   refused   frees that fail free nothing
 *   exec      another program in the same process holds nothing of the first one's
 *   fork      a child holds nothing of its parent's
 */
#include "torture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define ROUNDS 20
#define TRIES 200

struct options options = {.threads = 1, .devices = DEVICES - 1};
static struct books books;
static unsigned int steps;

void must(int condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "rules: not so: %s\n", what);
	exit(1);
}

static void sleep_ms(long ms)
{
	const struct timespec time = {0, ms * 1000000};

	nanosleep(&time, NULL);
}

static void show(void)
{
	int c;

	print_books(stdout, &books, "snapshot", ++steps);
	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

static void allocated(enum kind kind, int device, size_t size)
{
	books.sums[kind][device].allocations++;
	books.sums[kind][device].allocated_bytes += size;
}

static void freed(enum kind kind, int device, size_t size)
{
	books.sums[kind][device].frees++;
	books.sums[kind][device].freed_bytes += size;
}

static void ended(enum kind kind, int device, size_t size)
{
	books.sums[kind][device].ended++;
	books.sums[kind][device].ended_bytes += size;
}

/* One of each family, in the current context. */
struct set {
	void *device, *pitched, *managed, *pinned, *pool, *array, *mipmapped;
	size_t pitched_size;
};

static const size_t sizes[] = {1000, 0, 2000, 3000, 4000, 7 * 5 * 2, (8 * 8 + 4 * 4 + 2 * 2 + 1) * 2};
static const enum kind kinds[] = {KIND_DEVICE, KIND_DEVICE, KIND_MANAGED, KIND_PINNED,
				  KIND_POOL,   KIND_ARRAY,  KIND_ARRAY};
#define FAMILIES (sizeof(kinds) / sizeof(kinds[0]))

static struct set allocate_set(int device)
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

static void end_set(const struct set *set, int device)
{
	for (unsigned int i = 0; i < FAMILIES; i++)
		ended(kinds[i], device, sizes[i] ? sizes[i] : set->pitched_size);
}

/* Of what is gone already, all frees fail. */
static int free_set(const struct set *set)
{
	int failed = 0;

	failed += cudaFree(set->device) != 0;
	failed += cudaFree(set->pitched) != 0;
	failed += cudaFree(set->managed) != 0;
	failed += cudaFreeHost(set->pinned) != 0;
	failed += cudaFreeAsync(set->pool, NULL) != 0;
	failed += cudaFreeArray(set->array) != 0;
	failed += cudaFreeMipmappedArray(set->mipmapped) != 0;
	books.failed_frees += (unsigned long)failed;
	return failed;
}

static struct {
	uint64_t address;
	int begun, returned;
} freeing;

static void *free_slowly(void *unused)
{
	(void)unused;
	__atomic_store_n(&freeing.begun, 1, __ATOMIC_RELEASE);
	must(!cuMemFree_v2(freeing.address), "it is freed");
	__atomic_store_n(&freeing.returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Returns whether the address was another's before its free had returned. */
static int reuse_once(uint64_t *held, size_t from, size_t to)
{
	pthread_t thread;
	uint64_t again = 0;
	int overlaps;

	freeing.address = *held;
	freeing.begun = freeing.returned = 0;
	must(!pthread_create(&thread, NULL, free_slowly, NULL), "a thread");
	while (!__atomic_load_n(&freeing.begun, __ATOMIC_ACQUIRE))
		;
	sleep_ms(3);
	must(!cuMemAlloc_v2(&again, to), "it is allocated");
	overlaps = again == *held && !__atomic_load_n(&freeing.returned, __ATOMIC_ACQUIRE);
	pthread_join(thread, NULL);
	freed(KIND_DEVICE, 0, from);
	allocated(KIND_DEVICE, 0, to);
	*held = again;
	return overlaps;
}

static void reuse(void)
{
	uint64_t held = 0;
	size_t size = 600;
	int overlaps = 0;

	must(!cuMemAlloc_v2(&held, size), "it is allocated");
	allocated(KIND_DEVICE, 0, size);
	show();
	for (int i = 0; i < TRIES && overlaps < ROUNDS; i++) {
		size_t next = 600 + (size_t)(i % 7) * 10 + 1;

		overlaps += reuse_once(&held, size, next);
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
	for (unsigned int i = 0; i < FAMILIES; i++)
		freed(kinds[i], 0, sizes[i] ? sizes[i] : first.pitched_size);
	show();
	must(!free_set(&second), "and one's own");
	for (unsigned int i = 0; i < FAMILIES; i++)
		freed(kinds[i], 0, sizes[i] ? sizes[i] : second.pitched_size);
	show();
}

static uint64_t create_on(int device, size_t size)
{
	struct CUmemAllocationProp prop = {.type = 1, .location = {1, device}};
	uint64_t handle = 0;

	must(!cuMemCreate(&handle, size, &prop, 0), "physical memory");
	allocated(KIND_VMM, device, size);
	return handle;
}

static uint64_t reserve(size_t size)
{
	uint64_t base = 0;

	must(!cuMemAddressReserve(&base, size, 0, 0, 0), "addresses");
	return base;
}

static void unmap(void)
{
	uint64_t base = reserve(32 * MIB), handles[3];
	size_t at = 0;

	for (size_t i = 0; i < 3; i++) {
		handles[i] = create_on(0, 2 * (i + 1) * MIB);
		must(!cuMemMap(base + at, 2 * (i + 1) * MIB, 0, handles[i], 0), "it is mapped");
		must(!cuMemRelease(handles[i]), "its reference goes");
		at += 2 * (i + 1) * MIB;
	}
	show();
	must(cuMemUnmap(base, 7 * MIB), "half a mapping cannot be unmapped");
	show();
	must(!cuMemUnmap(base, 6 * MIB), "two mappings go at once");
	freed(KIND_VMM, 0, 2 * MIB);
	freed(KIND_VMM, 0, 4 * MIB);
	show();
	must(!cuMemUnmap(base + 6 * MIB, 6 * MIB), "and the third");
	freed(KIND_VMM, 0, 6 * MIB);
	show();
}

static void retain(void)
{
	uint64_t base = reserve(32 * MIB), first = create_on(0, 4 * MIB), second, again = 0;

	must(!cuMemMap(base, 4 * MIB, 0, first, 0) && !cuMemMap(base + 4 * MIB, 4 * MIB, 0, first, 0),
	     "mapped");
	must(!cuMemRelease(first), "its first reference goes");
	must(!cuMemUnmap(base, 4 * MIB), "one mapping goes");
	show();
	must(!cuMemRetainAllocationHandle(&again, base + 5 * MIB), "a reference from what is mapped");
	must(!cuMemUnmap(base + 4 * MIB, 4 * MIB), "the last mapping goes");
	show();
	must(!cuMemRelease(again), "the last reference goes");
	freed(KIND_VMM, 0, 4 * MIB);
	show();
	second = create_on(0, 6 * MIB);
	must(second == first, "its number is the next one's");
	must(cuMemRelease(second + 1), "a number that is nobody's");
	show();
}

static void import(void)
{
	uint64_t base = reserve(8 * MIB), own = create_on(0, 4 * MIB), imported = 0;
	long shared = 0;

	must(!cuMemExportToShareableHandle(&shared, own, 1, 0), "it is exported");
	must(!cuMemImportFromShareableHandle(&imported, (void *)shared, 1), "it is imported");
	show();
	must(!cuMemMap(base, 4 * MIB, 0, imported, 0), "it is mapped");
	allocated(KIND_VMM, 0, 4 * MIB);
	show();
	must(!cuMemUnmap(base, 4 * MIB), "it has a reference");
	show();
	must(!cuMemRelease(imported), "it had a reference");
	freed(KIND_VMM, 0, 4 * MIB);
	show();
}

/* On a device that the runtime has nothing to do with. */
static void primary(void)
{
	void *context = NULL, *same = NULL;
	struct set set;

	must(!cuDevicePrimaryCtxRetain(&context, 2) && !cuDevicePrimaryCtxRetain(&same, 2), "two references");
	must(context == same && !cuCtxPushCurrent_v2(context), "it is current");
	set = allocate_set(2);
	must(!cuDevicePrimaryCtxRelease_v2(2), "not the last");
	show();
	must(!cuDevicePrimaryCtxRelease_v2(2), "the last");
	end_set(&set, 2);
	show();
	must(!cuCtxPopCurrent_v2(NULL), "it is not current");
	must(free_set(&set) == FAMILIES, "what has ended cannot be freed");
	must(cuDevicePrimaryCtxRelease_v2(2), "it is released");
	show();
}

static void reset(void)
{
	struct set first = allocate_set(0), other;

	must(!cudaSetDevice(1), "another device");
	other = allocate_set(1);
	show();
	must(!cudaSetDevice(0) && !cudaDeviceReset(), "it is reset");
	end_set(&first, 0);
	show();
	allocate_set(0);
	must(!free_set(&other), "the other device has its memory");
	for (unsigned int i = 0; i < FAMILIES; i++)
		freed(kinds[i], 1, sizes[i] ? sizes[i] : other.pitched_size);
	show();
}

static void context(void)
{
	void *first = NULL, *second = NULL;
	struct set set, outside = allocate_set(0);

	must(!cuCtxCreate_v2(&first, 0, 1), "a context");
	set = allocate_set(1);
	show();
	must(!cuCtxDestroy_v2(first), "it is destroyed");
	end_set(&set, 1);
	show();
	must(!cuCtxCreate_v2(&second, 0, 2) && first == second, "another one has its handle");
	set = allocate_set(2);
	must(cuCtxDestroy_v2((char *)first + 1), "no context");
	show();
	must(!cuCtxPopCurrent_v2(NULL) && !cuCtxDestroy_v2(second), "it need not be current");
	end_set(&set, 2);
	must(!cudaFree(outside.device), "the first device is as it was");
	freed(KIND_DEVICE, 0, sizes[0]);
	show();
}

static void *destroy_slowly(void *context)
{
	__atomic_store_n(&freeing.begun, 1, __ATOMIC_RELEASE);
	must(!cuCtxDestroy_v2(context), "it is destroyed");
	__atomic_store_n(&freeing.returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void hurry(void)
{
	for (int i = 0, overlaps = 0; overlaps < ROUNDS; i++) {
		void *first = NULL, *second = NULL;
		struct set set, next;
		pthread_t thread;

		must(i < TRIES, "handles are given out again before the end has returned");
		must(!cuCtxCreate_v2(&first, 0, 1), "a context");
		set = allocate_set(1);
		must(!cuCtxPopCurrent_v2(NULL), "it is not current here");
		freeing.begun = freeing.returned = 0;
		must(!pthread_create(&thread, NULL, destroy_slowly, first), "a thread");
		while (!__atomic_load_n(&freeing.begun, __ATOMIC_ACQUIRE))
			;
		sleep_ms(3);
		must(!cuCtxCreate_v2(&second, 0, 2), "another one");
		next = allocate_set(2);
		overlaps += second == first && next.device == set.device &&
			    !__atomic_load_n(&freeing.returned, __ATOMIC_ACQUIRE);
		pthread_join(thread, NULL);
		end_set(&set, 1);
		if (overlaps == ROUNDS)
			return show();
		must(!cuCtxDestroy_v2(second), "and on");
		end_set(&next, 2);
	}
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
	books.failed_frees += 6;
	books.unknown_frees++;
	books.null_frees++;
	books.failed_allocations++;
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

/* The child holds what it has until the parent goes on. */
static void be_child(int told, int ready)
{
	static const struct books none;
	char c;

	books = none;
	must(!cudaSetDevice(1), "a device");
	allocate_set(1);
	print_books(stdout, &books, "child", 0);
	must(write(ready, "", 1) == 1 && read(told, &c, 1) == 0, "the parent goes on");
	_exit(0);
}

static void do_fork(void)
{
	int status = 0, told[2], ready[2];
	char c;
	pid_t pid;

	allocate_set(0);
	must(!pipe(told) && !pipe(ready), "pipes");
	pid = fork();
	must(pid >= 0, "fork");
	if (!pid) {
		close(told[1]);
		be_child(told[0], ready[1]);
	}
	must(read(ready[0], &c, 1) == 1, "the child has printed");
	show();
	close(told[1]);
	must(waitpid(pid, &status, 0) == pid && !status, "the child succeeds");
	show();
}

static const struct {
	const char *name, *delay;
	void (*run)(void);
} rules[] = {
    {"reuse", "cuMemFree_v2:20000", reuse},
    {"cross", NULL, cross},
    {"unmap", NULL, unmap},
    {"retain", NULL, retain},
    {"import", NULL, import},
    {"primary", NULL, primary},
    {"reset", NULL, reset},
    {"context", NULL, context},
    {"hurry", "cuCtxDestroy_v2:20000", hurry},
    {"devices", NULL, devices},
    {"refused", NULL, refused},
    {"exec", NULL, exec},
    {"executed", NULL, executed},
    {"fork", NULL, do_fork},
};

int main(int count, char **words)
{
	for (unsigned int i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		if (count != 2 || strcmp(words[1], rules[i].name))
			continue;
		if (rules[i].delay)
			setenv("STANDIN_DELAY_AFTER", rules[i].delay, 1);
		must(!cudaSetDevice(0), "the first device");
		rules[i].run();
		return 0;
	}
	fprintf(stderr, "usage: rules RULE\n");
	return 2;
}
