/* The calls of the ledger: one call per step, each recorded with its result. */
#include "ledger.h"

#include <string.h>

#define TOO_LARGE (2ULL << 40)
#define UNKNOWN_BASE 0x666000000000ULL
#define EXCHANGE 256

/* The kernels: only their address and their name in the symbol table matter. */
__attribute__((noinline)) void ledger_scale(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void ledger_reduce(void)
{
	__asm__ volatile("nop");
}

__attribute__((noinline)) void ledger_add(void)
{
	__asm__ volatile("nop; nop");
}

static const struct {
	void (*function)(void);
	struct dim3 grid, block;
	size_t shared;
} kernels[KERNELS] = {
    {ledger_scale, {64, 1, 1}, {256, 1, 1}, 0},
    {ledger_reduce, {32, 4, 1}, {128, 2, 1}, 1024},
    {ledger_add, {16, 8, 2}, {32, 4, 2}, 0},
};

/* Memory that one thread allocated and any other may free. */
static struct {
	pthread_mutex_t lock;
	struct allocation rows[EXCHANGE];
	unsigned int count;
} exchange = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned long random_below(struct worker *w, unsigned long limit)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (w->random >> 11) % limit;
}

static int record_result(struct worker *w, enum function function, int result)
{
	w->totals.calls[function]++;
	w->budget--;
	if (result && function == F_cudaGetLastError)
		w->totals.last_errors++;
	else if (result)
		w->totals.errors[function][result > 0 && result < MAX_ERROR ? result : MAX_ERROR - 1]++;
	return result;
}

#define CALL(w, function, ...) record_result(w, F_##function, function(__VA_ARGS__))

static void keep(struct worker *w, int result, void *address, size_t size, enum space space)
{
	if (result) {
		w->totals.failed_allocations++;
		return;
	}
	w->totals.allocations[space]++;
	w->totals.allocated_bytes[space] += size;
	w->allocation[w->live_count++] = (struct allocation){address, size, space};
}

static void allocate(struct worker *w)
{
	size_t size = 256 + 16 * random_below(w, 65536), pitch = 0;
	struct cudaPitchedPtr box = {0};
	void *address = NULL;
	int result;

	switch (random_below(w, 10)) {
	case 0:
		result = CALL(w, cudaMallocPitch, &address, &pitch, 1000 + size % 5000, 64);
		keep(w, result, address, pitch * 64, SPACE_DEVICE);
		break;
	case 1:
		result = CALL(w, cudaMalloc3D, &box, (struct cudaExtent){700 + size % 900, 16, 4});
		keep(w, result, box.ptr, box.pitch * 16 * 4, SPACE_DEVICE);
		break;
	case 2:
		result = CALL(w, cudaMallocManaged, &address, size, 1);
		keep(w, result, address, size, SPACE_MANAGED);
		break;
	case 3:
		result = CALL(w, cudaMallocHost, &address, size);
		keep(w, result, address, size, SPACE_PINNED);
		break;
	case 4:
		result = CALL(w, cudaHostAlloc, &address, size, 2);
		keep(w, result, address, size, SPACE_PINNED);
		break;
	case 5:
		result = CALL(w, cudaMallocAsync, &address, size, w->stream);
		keep(w, result, address, size, SPACE_POOL);
		break;
	case 6:
		result = CALL(w, cudaMallocFromPoolAsync, &address, size, w->pool, w->stream);
		keep(w, result, address, size, SPACE_POOL);
		break;
	default:
		result = CALL(w, cudaMalloc, &address, size);
		keep(w, result, address, size, SPACE_DEVICE);
	}
}

static int call_free(struct worker *w, const struct allocation *allocation)
{
	if (allocation->space == SPACE_PINNED)
		return CALL(w, cudaFreeHost, allocation->address);
	if (allocation->space == SPACE_POOL && random_below(w, 4))
		return CALL(w, cudaFreeAsync, allocation->address, w->stream);
	return CALL(w, cudaFree, allocation->address);
}

static void release(struct worker *w, struct allocation allocation)
{
	if (call_free(w, &allocation)) {
		w->totals.failed_frees++;
		w->allocation[w->live_count++] = allocation;
		return;
	}
	w->totals.frees[allocation.space]++;
	w->totals.freed_bytes[allocation.space] += allocation.size;
}

static struct allocation take_live(struct worker *w)
{
	unsigned long index = random_below(w, w->live_count);
	struct allocation allocation = w->allocation[index];

	w->allocation[index] = w->allocation[--w->live_count];
	return allocation;
}

/*
 * Gives one allocation to the exchange, then frees one that may be another thread's; makes at most one call.
 */
static void swap_and_release(struct worker *w)
{
	struct allocation allocation = take_live(w);

	pthread_mutex_lock(&exchange.lock);
	if (exchange.count < EXCHANGE) {
		unsigned long index = random_below(w, exchange.count + 1);

		exchange.rows[exchange.count++] = allocation;
		allocation = exchange.rows[index];
		exchange.rows[index] = exchange.rows[--exchange.count];
		if (exchange.count < EXCHANGE / 2) {
			exchange.rows[exchange.count++] = allocation;
			allocation.address = NULL;
			w->totals.handed_over++;
		}
	}
	pthread_mutex_unlock(&exchange.lock);
	if (allocation.address)
		release(w, allocation);
	else
		CALL(w, cudaGetLastError);
}

static void fail(struct worker *w)
{
	void *address = NULL;

	switch (random_below(w, 3)) {
	case 0:
		keep(w, CALL(w, cudaMalloc, &address, TOO_LARGE), address, TOO_LARGE, SPACE_DEVICE);
		break;
	case 1:
		CALL(w, cudaFree, (void *)(UNKNOWN_BASE + 512 * random_below(w, 1000)));
		w->totals.unknown_frees++;
		w->totals.failed_frees++;
		break;
	default:
		CALL(w, cudaFree, NULL);
		w->totals.null_frees++;
	}
}

/* Copies from or to live memory of this thread. Default is always host to device. */
static void copy(struct worker *w)
{
	static char buffer[64];
	const struct allocation *allocation = &w->allocation[random_below(w, w->live_count)];
	int kind = allocation->space == SPACE_PINNED ? COPY_H2H : (int)(COPY_H2D + random_below(w, 4));
	int is_async = (int)random_below(w, 2), result;
	size_t count = 1 + random_below(w, allocation->size);
	void *to = kind == COPY_D2H ? buffer : allocation->address;
	const void *from = kind == COPY_D2H || kind == COPY_D2D ? allocation->address : buffer;

	if (is_async)
		result = CALL(w, cudaMemcpyAsync, to, from, count, kind, w->stream);
	else
		result = CALL(w, cudaMemcpy, to, from, count, kind);
	w->totals.copies[is_async][kind]++;
	if (!result)
		w->totals.copy_bytes[is_async][kind] += count;
}

static void set(struct worker *w)
{
	const struct allocation *allocation = &w->allocation[random_below(w, w->live_count)];
	size_t count = 1 + random_below(w, allocation->size);

	if (random_below(w, 2)) {
		if (!CALL(w, cudaMemset, allocation->address, 0x5a, count))
			w->totals.memset_bytes[0] += count;
	} else if (!CALL(w, cudaMemsetAsync, allocation->address, 0x5a, count, w->stream)) {
		w->totals.memset_bytes[1] += count;
	}
}

static void launch(struct worker *w)
{
	unsigned long k = random_below(w, KERNELS);
	void *parameters[] = {&k, NULL};

	if (!CALL(w, cudaLaunchKernel, (const void *)kernels[k].function, kernels[k].grid, kernels[k].block,
		  parameters, kernels[k].shared, w->stream))
		w->totals.launches[k]++;
}

static void other(struct worker *w)
{
	int device;

	switch (random_below(w, 7)) {
	case 0:
		CALL(w, cudaDeviceSynchronize);
		break;
	case 1:
		CALL(w, cudaStreamSynchronize, w->stream);
		break;
	case 2:
		CALL(w, cudaEventRecord, w->event, w->stream);
		break;
	case 3:
		CALL(w, cudaEventSynchronize, w->event);
		break;
	case 4:
		CALL(w, cudaStreamWaitEvent, w->stream, w->event, 0);
		break;
	case 5:
		CALL(w, cudaGetDevice, &device);
		break;
	default:
		CALL(w, cudaRuntimeGetVersion, &device);
	}
}

static void step(struct worker *w)
{
	unsigned long choice = random_below(w, 100);

	if (!w->stream)
		CALL(w, cudaStreamCreate, &w->stream);
	else if (!w->event)
		CALL(w, cudaEventCreate, &w->event);
	else if (!w->pool)
		CALL(w, cudaDeviceGetDefaultMemPool, &w->pool, 0);
	else if (choice < 3)
		fail(w);
	else if (!w->live_count || (choice < 28 && w->live_count < MOST_LIVE - 2))
		allocate(w);
	else if (choice < 40)
		release(w, take_live(w));
	else if (choice < 52)
		swap_and_release(w);
	else if (choice < 70)
		copy(w);
	else if (choice < 74)
		set(w);
	else if (choice < 88)
		launch(w);
	else
		other(w);
}

void make_calls(struct worker *worker, unsigned long calls)
{
	unsigned long stop = worker->budget > calls ? worker->budget - calls : 0;

	while (worker->budget > stop)
		step(worker);
}

const char *const kernel_names[KERNELS] = {"ledger_scale", "ledger_reduce", "ledger_add"};
