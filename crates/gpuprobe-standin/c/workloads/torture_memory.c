/* Allocations and frees of every family, through the runtime and the driver, by any thread for any thread. */
#include "torture.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)
#define TOO_LARGE ((size_t)2 << 40)
#define UNKNOWN_BASE 0x666000000000ULL
#define FORMAT_FLOAT 0x20
#define REGISTERED_SLOTS 1024
#define SLOT_BYTES 8192

/* Host memory of the program, and which of it is registered. */
static char host_memory[REGISTERED_SLOTS][SLOT_BYTES];
static char is_registered[REGISTERED_SLOTS];

/* A size class that is used for nothing else: an address that is freed there is not reused. */
static pthread_mutex_t twice_lock = PTHREAD_MUTEX_INITIALIZER;
#define TWICE_BYTES ((size_t)3 << 30)

static struct sums *sums_of(struct worker *w, enum kind kind, int device)
{
	return &w->totals.sums[kind][device];
}

static int take(struct worker *w, struct scope *scope, struct allocation *allocation)
{
	int found = 0;

	pthread_mutex_lock(&scope->lock);
	if (scope->count) {
		unsigned long index = random_below(w, scope->count);

		*allocation = scope->rows[index];
		scope->rows[index] = scope->rows[--scope->count];
		found = 1;
	}
	pthread_mutex_unlock(&scope->lock);
	return found;
}

static int put(struct scope *scope, const struct allocation *allocation)
{
	int fits;

	pthread_mutex_lock(&scope->lock);
	fits = scope->count < MOST_LIVE;
	if (fits)
		scope->rows[scope->count++] = *allocation;
	pthread_mutex_unlock(&scope->lock);
	return fits;
}

static int call_free(struct worker *w, const struct allocation *allocation)
{
	int by_driver = (int)random_below(w, 2);

	switch (allocation->family) {
	case FAMILY_HOST:
		return CALL(w, cuMemFreeHost,
			    by_driver ? cuMemFreeHost(allocation->address)
				      : cudaFreeHost(allocation->address));
	case FAMILY_ARRAY:
		return CALL(w, cuArrayDestroy,
			    by_driver ? cuArrayDestroy(allocation->address)
				      : cudaFreeArray(allocation->address));
	case FAMILY_MIPMAPPED:
		return CALL(w, cuMipmappedArrayDestroy,
			    by_driver ? cuMipmappedArrayDestroy(allocation->address)
				      : cudaFreeMipmappedArray(allocation->address));
	case FAMILY_REGISTERED:
		return CALL(w, cuMemHostUnregister,
			    by_driver ? cuMemHostUnregister(allocation->address)
				      : cudaHostUnregister(allocation->address));
	case FAMILY_POOL:
		if (random_below(w, 3))
			return CALL(w, cuMemFreeAsync,
				    by_driver ? cuMemFreeAsync((uint64_t)allocation->address, NULL)
					      : cudaFreeAsync(allocation->address, NULL));
		/* fall through */
	default:
		return CALL(w, cuMemFree_v2,
			    by_driver ? cuMemFree_v2((uint64_t)allocation->address)
				      : cudaFree(allocation->address));
	}
}

static void forget_registered(const struct allocation *allocation)
{
	size_t slot = (size_t)((char *)allocation->address - host_memory[0]) / SLOT_BYTES;

	if (allocation->family == FAMILY_REGISTERED)
		__atomic_store_n(&is_registered[slot], 0, __ATOMIC_RELEASE);
}

/* Frees it; if the free fails, it is put back for another attempt. */
static void release(struct worker *w, struct scope *scope, const struct allocation *allocation)
{
	struct sums *sums = sums_of(w, allocation->kind, scope->device);

	for (;;) {
		if (!call_free(w, allocation))
			break;
		w->totals.failed_frees++;
		if (put(scope, allocation))
			return;
	}
	sums->frees++;
	sums->freed_bytes += allocation->size;
	w->totals.cross_thread_frees += allocation->owner != w->number;
	forget_registered(allocation);
}

static void keep(struct worker *w, struct scope *scope, int result, struct allocation allocation)
{
	struct sums *sums = sums_of(w, allocation.kind, scope->device);

	if (result) {
		w->totals.failed_allocations++;
		forget_registered(&allocation);
		return;
	}
	allocation.owner = w->number;
	sums->allocations++;
	sums->allocated_bytes += allocation.size;
	if (!put(scope, &allocation))
		release(w, scope, &allocation);
}

static void allocate_linear(struct worker *w, struct scope *scope, size_t size)
{
	struct allocation allocation = {.size = size, .kind = KIND_DEVICE, .family = FAMILY_LINEAR};
	struct cudaPitchedPtr box = {0};
	size_t pitch = 0, rows = 1 + size % 60;
	int result;

	switch (random_below(w, 6)) {
	case 0:
		result = CALL(w, cuMemAllocPitch_v2,
			      cudaMallocPitch(&allocation.address, &pitch, 1 + size % 5000, rows));
		allocation.size = pitch * rows;
		break;
	case 1:
		result = CALL(
		    w, cuMemAllocPitch_v2,
		    cuMemAllocPitch_v2((uint64_t *)&allocation.address, &pitch, 1 + size % 7000, rows, 8));
		allocation.size = pitch * rows;
		break;
	case 2:
		result = CALL(w, cuMemAllocPitch_v2,
			      cudaMalloc3D(&box, (struct cudaExtent){1 + size % 900, rows, 5}));
		allocation.address = box.ptr;
		allocation.size = box.pitch * rows * 5;
		break;
	case 3:
		result = CALL(w, cuMemAlloc_v2, cuMemAlloc_v2((uint64_t *)&allocation.address, size));
		break;
	default:
		result = CALL(w, cuMemAlloc_v2, cudaMalloc(&allocation.address, size));
	}
	keep(w, scope, result, allocation);
}

static void allocate_managed(struct worker *w, struct scope *scope, size_t size)
{
	struct allocation allocation = {.size = size, .kind = KIND_MANAGED, .family = FAMILY_LINEAR};
	int by_driver = (int)random_below(w, 2), result;

	result = CALL(w, cuMemAllocManaged,
		      by_driver ? cuMemAllocManaged((uint64_t *)&allocation.address, size, 1)
				: cudaMallocManaged(&allocation.address, size, 1));
	keep(w, scope, result, allocation);
}

static void allocate_pinned(struct worker *w, struct scope *scope, size_t size)
{
	struct allocation allocation = {.size = size, .kind = KIND_PINNED, .family = FAMILY_HOST};
	int result;

	switch (random_below(w, 4)) {
	case 0:
		result = CALL(w, cuMemHostAlloc, cudaMallocHost(&allocation.address, size));
		break;
	case 1:
		result = CALL(w, cuMemHostAlloc, cudaHostAlloc(&allocation.address, size, 1));
		break;
	case 2:
		result = CALL(w, cuMemHostAlloc, cuMemHostAlloc(&allocation.address, size, 2));
		break;
	default:
		result = CALL(w, cuMemAllocHost_v2, cuMemAllocHost_v2(&allocation.address, size));
	}
	keep(w, scope, result, allocation);
}

static void allocate_from_pool(struct worker *w, struct scope *scope, size_t size)
{
	struct allocation allocation = {.size = size, .kind = KIND_POOL, .family = FAMILY_POOL};
	void *pool = NULL;
	int result;

	switch (random_below(w, 4)) {
	case 0:
		result = CALL(w, cuMemAllocAsync, cudaMallocAsync(&allocation.address, size, NULL));
		break;
	case 1:
		result =
		    CALL(w, cuMemAllocAsync, cuMemAllocAsync((uint64_t *)&allocation.address, size, NULL));
		break;
	default:
		must(!cudaDeviceGetDefaultMemPool(&pool, scope->device), "the default pool");
		result = CALL(w, cuMemAllocFromPoolAsync,
			      cudaMallocFromPoolAsync(&allocation.address, size, pool, NULL));
	}
	keep(w, scope, result, allocation);
}

static size_t levels_of(size_t width, size_t height, size_t depth, unsigned int levels)
{
	size_t elements = 0;

	for (; levels; levels--) {
		elements += width * height * depth;
		width = width > 1 ? width / 2 : 1;
		height = height > 1 ? height / 2 : 1;
		depth = depth > 1 ? depth / 2 : 1;
	}
	return elements;
}

static void allocate_array(struct worker *w, struct scope *scope)
{
	struct allocation allocation = {.kind = KIND_ARRAY, .family = FAMILY_ARRAY};
	size_t width = 1 + random_below(w, 300), height = random_below(w, 40), depth = random_below(w, 6);
	size_t rows = height ? height : 1, layers = depth ? depth : 1;
	struct cudaChannelFormatDesc bytes = {8, 8, 0, 0, 1}, floats = {32, 32, 32, 32, 2};
	struct CUDA_ARRAY_DESCRIPTOR flat = {width, height, FORMAT_FLOAT, 2};
	struct CUDA_ARRAY3D_DESCRIPTOR solid = {width, height, depth, FORMAT_FLOAT, 4, 0};
	unsigned int levels = 1 + (unsigned int)random_below(w, 6);
	int result;

	switch (random_below(w, 6)) {
	case 0:
		allocation.size = width * rows * 2;
		result =
		    CALL(w, cuArrayCreate_v2, cudaMallocArray(&allocation.address, &bytes, width, height, 0));
		break;
	case 1:
		allocation.size = width * rows * layers * 16;
		result = CALL(w, cuArray3DCreate_v2,
			      cudaMalloc3DArray(&allocation.address, &floats,
						(struct cudaExtent){width, height, depth}, 0));
		break;
	case 2:
		allocation.size = width * rows * 8;
		result = CALL(w, cuArrayCreate_v2, cuArrayCreate_v2(&allocation.address, &flat));
		break;
	case 3:
		allocation.size = width * rows * layers * 16;
		result = CALL(w, cuArray3DCreate_v2, cuArray3DCreate_v2(&allocation.address, &solid));
		break;
	case 4:
		allocation.family = FAMILY_MIPMAPPED;
		allocation.size = levels_of(width, rows, layers, levels) * 2;
		result = CALL(w, cuMipmappedArrayCreate,
			      cudaMallocMipmappedArray(&allocation.address, &bytes,
						       (struct cudaExtent){width, height, depth}, levels, 0));
		break;
	default:
		allocation.family = FAMILY_MIPMAPPED;
		allocation.size = levels_of(width, rows, layers, levels) * 16;
		result = CALL(w, cuMipmappedArrayCreate,
			      cuMipmappedArrayCreate(&allocation.address, &solid, levels));
	}
	keep(w, scope, result, allocation);
}

static void register_host(struct worker *w, struct scope *scope)
{
	unsigned long slot = random_below(w, REGISTERED_SLOTS);
	struct allocation allocation = {.address = host_memory[slot],
					.size = 1 + random_below(w, SLOT_BYTES),
					.kind = KIND_PINNED,
					.family = FAMILY_REGISTERED};
	int by_driver = (int)random_below(w, 2), result;

	if (__atomic_exchange_n(&is_registered[slot], 1, __ATOMIC_ACQUIRE))
		return;
	result = CALL(w, cuMemHostRegister_v2,
		      by_driver ? cuMemHostRegister_v2(allocation.address, allocation.size, 0)
				: cudaHostRegister(allocation.address, allocation.size, 0));
	keep(w, scope, result, allocation);
}

static void allocate(struct worker *w, struct scope *scope)
{
	size_t size = 1 + random_below(w, random_below(w, 10) ? 4096 : MIB);

	switch (random_below(w, 10)) {
	case 0:
		return allocate_managed(w, scope, size);
	case 1:
		return allocate_pinned(w, scope, size);
	case 2:
	case 3:
		return allocate_from_pool(w, scope, size);
	case 4:
		if (options.parts & PART_ARRAYS)
			return allocate_array(w, scope);
		/* fall through */
	case 5:
		return register_host(w, scope);
	default:
		return allocate_linear(w, scope, size);
	}
}

void allocate_or_free(struct worker *w, struct scope *scope)
{
	struct allocation allocation;

	/* about half full, so that addresses are reused soon */
	if (random_below(w, MOST_LIVE) > scope->count)
		allocate(w, scope);
	else if (take(w, scope, &allocation))
		release(w, scope, &allocation);
}

/* The wrong free function for an allocation: it stays live. */
static void free_wrongly(struct worker *w, struct scope *scope)
{
	struct allocation allocation;
	int result;

	if (!take(w, scope, &allocation))
		return;
	if (allocation.family == FAMILY_HOST)
		result = CALL(w, cuMemFree_v2, cudaFree(allocation.address));
	else if (allocation.family == FAMILY_REGISTERED)
		result = CALL(w, cuMemFreeHost, cudaFreeHost(allocation.address));
	else if (allocation.family == FAMILY_ARRAY)
		result = CALL(w, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy(allocation.address));
	else
		result = CALL(w, cuMemFreeHost, cuMemFreeHost(allocation.address));
	must(result != 0, "a free by the wrong function fails");
	w->totals.failed_frees++;
	if (!put(scope, &allocation))
		release(w, scope, &allocation);
}

static void free_twice(struct worker *w, struct scope *scope)
{
	struct sums *sums = sums_of(w, KIND_DEVICE, scope->device);
	uint64_t address = 0;

	pthread_mutex_lock(&twice_lock);
	if (CALL(w, cuMemAlloc_v2, cuMemAlloc_v2(&address, TWICE_BYTES))) {
		w->totals.failed_allocations++;
	} else {
		sums->allocations++;
		sums->allocated_bytes += TWICE_BYTES;
		while (CALL(w, cuMemFree_v2, cuMemFree_v2(address)))
			w->totals.failed_frees++;
		sums->frees++;
		sums->freed_bytes += TWICE_BYTES;
		must(CALL(w, cuMemFree_v2, cudaFree((void *)address)) != 0, "a second free fails");
		w->totals.failed_frees++;
		w->totals.unknown_frees++;
	}
	pthread_mutex_unlock(&twice_lock);
}

/* Memory of another process adds no bytes, and is closed instead of freed. */
static void share(struct worker *w, struct scope *scope)
{
	struct allocation allocation = {.size = 700, .kind = KIND_DEVICE, .family = FAMILY_LINEAR};
	struct cudaIpcMemHandle handle;
	void *opened = NULL;

	if (CALL(w, cuMemAlloc_v2, cudaMalloc(&allocation.address, allocation.size))) {
		w->totals.failed_allocations++;
		return;
	}
	must(!CALL(w, cuIpcGetMemHandle, cudaIpcGetMemHandle(&handle, allocation.address)),
	     "a handle to share");
	must(!CALL(w, cuIpcOpenMemHandle_v2, cudaIpcOpenMemHandle(&opened, handle, 1)), "it can be opened");
	must(CALL(w, cuMemFree_v2, cudaFree(opened)) != 0, "what was opened cannot be freed");
	w->totals.failed_frees++;
	w->totals.unknown_frees++;
	must(!CALL(w, cuIpcCloseMemHandle, cudaIpcCloseMemHandle(opened)), "it can be closed");
	keep(w, scope, 0, allocation);
}

void misuse(struct worker *w, struct scope *scope)
{
	void *address = NULL;

	switch (random_below(w, 7)) {
	case 0:
		must(CALL(w, cuMemAlloc_v2, cudaMalloc(&address, TOO_LARGE)) != 0, "too large");
		w->totals.failed_allocations++;
		return;
	case 1:
		must(CALL(w, cuMemFree_v2, cudaFree((void *)(UNKNOWN_BASE + 512 * random_below(w, 99)))) != 0,
		     "a free of what was never allocated fails");
		w->totals.failed_frees++;
		w->totals.unknown_frees++;
		return;
	case 2:
		if (CALL(w, cuMemFree_v2, cudaFree(NULL)))
			w->totals.failed_frees++;
		else
			w->totals.null_frees++;
		return;
	case 3:
		must(CALL(w, cuArrayDestroy, cudaFreeArray((void *)UNKNOWN_BASE)) != 0, "no such array");
		w->totals.failed_frees++;
		w->totals.unknown_frees++;
		return;
	case 4:
		return free_twice(w, scope);
	case 5:
		return share(w, scope);
	default:
		return free_wrongly(w, scope);
	}
}

void end_all(struct worker *w, struct scope *scope)
{
	for (unsigned int i = 0; i < scope->count; i++) {
		struct allocation *allocation = &scope->rows[i];
		struct sums *sums = sums_of(w, allocation->kind, scope->device);

		sums->ended++;
		sums->freed_with_context_bytes += allocation->size;
		forget_registered(allocation);
	}
	scope->count = 0;
}

void choose_device(struct worker *w, int device)
{
	if (!CALL(w, cuCtxSetCurrent, cudaSetDevice(device)))
		w->device = device;
}
