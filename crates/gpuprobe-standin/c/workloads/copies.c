/*
 * Copies between memory of every kind by every function of the driver, or of the runtime, with a ledger of
 * the copies. Prints {"pid","calls":{function: n},"moved":{"cudaMemcpy/H2D": bytes},"copies":{"H2D/sync": n},
 * "bytes":{...},"host":{"H2D/pinned": bytes}}, and with --wait continues after a line on stdin.
 */
#include "copies.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

#define MAX_CALLED 256

static const char *const kinds[KINDS] = {"H2H", "H2D", "D2H", "D2D", "P2P", "memset"};
static const char *const hosts[HOSTS] = {"none", "pinned", "pageable", "managed"};

static struct {
	unsigned int count;
	char names[MAX_CALLED][64];
	unsigned long calls[MAX_CALLED], moved[MAX_CALLED][KINDS];
	unsigned int last;
} called;
static unsigned long counts[KINDS][2], bytes_of[KINDS][2], host_bytes[KINDS][HOSTS];
static int failures;

void copied(enum kind kind, enum host host, int is_async, size_t bytes)
{
	counts[kind][is_async]++;
	bytes_of[kind][is_async] += bytes;
	host_bytes[kind][host] += bytes;
	called.moved[called.last][kind] += bytes;
}

size_t next_size(void)
{
	static size_t step;

	return 1 + (++step * 7919) % 3001;
}

void *function_of(const char *name)
{
	void *function = dlsym(RTLD_DEFAULT, name);
	unsigned int row = 0;

	if (!function) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	while (row < called.count && strcmp(called.names[row], name))
		row++;
	if (row == called.count && called.count < MAX_CALLED)
		strcpy(called.names[called.count++], name);
	called.calls[row]++;
	called.last = row;
	return function;
}

void call(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
	  uint64_t g, uint64_t h, uint64_t i)
{
	int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
			uint64_t);
	int result;

	*(void **)&function = function_of(name);
	result = function(a, b, c, d, e, f, g, h, i);
	if (result)
		fprintf(stderr, "%s: %d\n", name, result);
	check(result);
}

void check(int result)
{
	failures += result != 0;
}

static struct memory allocate(void)
{
	struct CUDA_ARRAY_DESCRIPTOR array = {1024, 1024, 1, 1};
	struct CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
	struct memory m = {.pageable = malloc(ARENA)};
	void *contexts[2] = {NULL, NULL}, *handle = NULL;
	uint64_t physical = 0;

	check(cuInit(0));
	check(cuDevicePrimaryCtxRetain(&contexts[0], 0));
	check(cuDevicePrimaryCtxRetain(&contexts[1], 1));
	check(cuCtxSetCurrent(contexts[1]));
	check(cuMemAlloc_v2(&m.other_device, ARENA));
	check(cuCtxSetCurrent(contexts[0]));
	/* sizes that are not powers of two, so that a range consists of several parts */
	check(cuMemAlloc_v2(&m.device, ARENA + 12345));
	check(cuMemAllocAsync(&m.pool, 100000, NULL));
	check(cuMemAllocManaged(&m.managed, 5000, 1));
	check(cuMemHostAlloc((void **)&m.pinned, 1000001, 0));
	m.registered = aligned_alloc(4096, 16384);
	check(cuMemHostRegister_v2(m.registered, 12288, 0));
	check(cuMemCreate(&physical, 4 << 20, &prop, 0));
	check(cuMemAddressReserve(&m.mapped, 4 << 20, 0, 0, 0));
	check(cuMemMap(m.mapped, 4 << 20, 0, physical, 0));
	check(cuArrayCreate_v2(&handle, &array));
	m.array = (uint64_t)handle;
	return m;
}

static void print_totals(void)
{
	const char *modes[2] = {"sync", "async"};
	const char *comma = "";

	printf("{\"pid\":%d,\"calls\":{", (int)getpid());
	for (unsigned int i = 0; i < called.count; i++)
		printf("%s\"%s\":%lu", i ? "," : "", called.names[i], called.calls[i]);
	printf("},\"moved\":{");
	for (unsigned int i = 0; i < called.count * KINDS; i++) {
		if (!called.moved[i / KINDS][i % KINDS])
			continue;
		printf("%s\"%s/%s\":%lu", comma, called.names[i / KINDS], kinds[i % KINDS],
		       called.moved[i / KINDS][i % KINDS]);
		comma = ",";
	}
	comma = "";
	printf("},\"copies\":{");
	for (int i = 0; i < 2 * KINDS; i++)
		printf("%s\"%s/%s\":%lu", i ? "," : "", kinds[i / 2], modes[i % 2], counts[i / 2][i % 2]);
	printf("},\"bytes\":{");
	for (int i = 0; i < 2 * KINDS; i++)
		printf("%s\"%s/%s\":%lu", i ? "," : "", kinds[i / 2], modes[i % 2], bytes_of[i / 2][i % 2]);
	printf("},\"host\":{");
	for (int i = 0; i < KINDS * HOSTS; i++) {
		if (!host_bytes[i / HOSTS][i % HOSTS])
			continue;
		printf("%s\"%s/%s\":%lu", comma, kinds[i / HOSTS], hosts[i % HOSTS],
		       host_bytes[i / HOSTS][i % HOSTS]);
		comma = ",";
	}
	printf("}}\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct memory m = allocate();

	call_every_function(&m);
	print_totals();
	if (!strcmp(argv[argc - 1], "--wait"))
		getchar();
	return failures != 0;
}
