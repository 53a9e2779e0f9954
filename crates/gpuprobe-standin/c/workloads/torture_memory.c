/* Allocations and frees of every family, through the runtime and the driver, by any thread of any thread's.
 */
#include "torture.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)
#define TOO_LARGE ((size_t)2 << 40)
#define UNKNOWN_BASE 0x666000000000ULL
#define FORMAT_FLOAT 0x20
#define REGISTERED_SLOTS 1024
#define SLOT_BYTES 8192

/* Host memory of the program's own, and which of it is registered. */
static char host_memory[REGISTERED_SLOTS][SLOT_BYTES];
static char is_registered[REGISTERED_SLOTS];

/* A class of sizes that nothing else uses: what is freed there is not given out again. */
static pthread_mutex_t twice_lock = PTHREAD_MUTEX_INITIALIZER;
#define TWICE_BYTES ((size_t)3 << 30)

static struct sums *sums_of(struct worker *w, enum kind kind, int device)
{
	return &w->books.sums[kind][device];
}

static int take(struct worker *w, struct place *place, struct held *held)
{
	int found = 0;

	pthread_mutex_lock(&place->lock);
	if (place->count) {
		unsigned long index = random_below(w, place->count);

		*held = place->rows[index];
		place->rows[index] = place->rows[--place->count];
		found = 1;
	}
	pthread_mutex_unlock(&place->lock);
	return found;
}

static int put(struct place *place, const struct held *held)
{
	int fits;

	pthread_mutex_lock(&place->lock);
	fits = place->count < HELD;
	if (fits)
		place->rows[place->count++] = *held;
	pthread_mutex_unlock(&place->lock);
	return fits;
}

static int call_free(struct worker *w, const struct held *held)
{
	int by_driver = (int)random_below(w, 2);

	switch (held->family) {
	case FAMILY_HOST:
		return CALL(w, cuMemFreeHost,
			    by_driver ? cuMemFreeHost(held->address) : cudaFreeHost(held->address));
	case FAMILY_ARRAY:
		return CALL(w, cuArrayDestroy,
			    by_driver ? cuArrayDestroy(held->address) : cudaFreeArray(held->address));
	case FAMILY_MIPMAPPED:
		return CALL(w, cuMipmappedArrayDestroy,
			    by_driver ? cuMipmappedArrayDestroy(held->address)
				      : cudaFreeMipmappedArray(held->address));
	case FAMILY_REGISTERED:
		return CALL(w, cuMemHostUnregister,
			    by_driver ? cuMemHostUnregister(held->address)
				      : cudaHostUnregister(held->address));
	case FAMILY_POOL:
		if (random_below(w, 3))
			return CALL(w, cuMemFreeAsync,
				    by_driver ? cuMemFreeAsync((uint64_t)held->address, NULL)
					      : cudaFreeAsync(held->address, NULL));
		/* fall through */
	default:
		return CALL(w, cuMemFree_v2,
			    by_driver ? cuMemFree_v2((uint64_t)held->address) : cudaFree(held->address));
	}
}

static void forget_registered(const struct held *held)
{
	size_t slot = (size_t)((char *)held->address - host_memory[0]) / SLOT_BYTES;

	if (held->family == FAMILY_REGISTERED)
		__atomic_store_n(&is_registered[slot], 0, __ATOMIC_RELEASE);
}

/* Frees it; what could not be freed is put back, for another try. */
static void release(struct worker *w, struct place *place, const struct held *held)
{
	struct sums *sums = sums_of(w, held->kind, place->device);

	for (;;) {
		if (!call_free(w, held))
			break;
		w->books.failed_frees++;
		if (put(place, held))
			return;
	}
	sums->frees++;
	sums->freed_bytes += held->size;
	w->books.cross_thread_frees += held->owner != w->number;
	forget_registered(held);
}

static void keep(struct worker *w, struct place *place, int result, struct held held)
{
	struct sums *sums = sums_of(w, held.kind, place->device);

	if (result) {
		w->books.failed_allocations++;
		forget_registered(&held);
		return;
	}
	held.owner = w->number;
	sums->allocations++;
	sums->allocated_bytes += held.size;
	if (!put(place, &held))
		release(w, place, &held);
}

static void allocate_linear(struct worker *w, struct place *place, size_t size)
{
	struct held held = {.size = size, .kind = KIND_DEVICE, .family = FAMILY_LINEAR};
	struct cudaPitchedPtr box = {0};
	size_t pitch = 0, rows = 1 + size % 60;
	int result;

	switch (random_below(w, 6)) {
	case 0:
		result = CALL(w, cuMemAllocPitch_v2,
			      cudaMallocPitch(&held.address, &pitch, 1 + size % 5000, rows));
		held.size = pitch * rows;
		break;
	case 1:
		result =
		    CALL(w, cuMemAllocPitch_v2,
			 cuMemAllocPitch_v2((uint64_t *)&held.address, &pitch, 1 + size % 7000, rows, 8));
		held.size = pitch * rows;
		break;
	case 2:
		result = CALL(w, cuMemAllocPitch_v2,
			      cudaMalloc3D(&box, (struct cudaExtent){1 + size % 900, rows, 5}));
		held.address = box.ptr;
		held.size = box.pitch * rows * 5;
		break;
	case 3:
		result = CALL(w, cuMemAlloc_v2, cuMemAlloc_v2((uint64_t *)&held.address, size));
		break;
	default:
		result = CALL(w, cuMemAlloc_v2, cudaMalloc(&held.address, size));
	}
	keep(w, place, result, held);
}

static void allocate_managed(struct worker *w, struct place *place, size_t size)
{
	struct held held = {.size = size, .kind = KIND_MANAGED, .family = FAMILY_LINEAR};
	int by_driver = (int)random_below(w, 2), result;

	result = CALL(w, cuMemAllocManaged,
		      by_driver ? cuMemAllocManaged((uint64_t *)&held.address, size, 1)
				: cudaMallocManaged(&held.address, size, 1));
	keep(w, place, result, held);
}

static void allocate_pinned(struct worker *w, struct place *place, size_t size)
{
	struct held held = {.size = size, .kind = KIND_PINNED, .family = FAMILY_HOST};
	int result;

	switch (random_below(w, 4)) {
	case 0:
		result = CALL(w, cuMemHostAlloc, cudaMallocHost(&held.address, size));
		break;
	case 1:
		result = CALL(w, cuMemHostAlloc, cudaHostAlloc(&held.address, size, 1));
		break;
	case 2:
		result = CALL(w, cuMemHostAlloc, cuMemHostAlloc(&held.address, size, 2));
		break;
	default:
		result = CALL(w, cuMemAllocHost_v2, cuMemAllocHost_v2(&held.address, size));
	}
	keep(w, place, result, held);
}

static void allocate_from_pool(struct worker *w, struct place *place, size_t size)
{
	struct held held = {.size = size, .kind = KIND_POOL, .family = FAMILY_POOL};
	void *pool = NULL;
	int result;

	switch (random_below(w, 4)) {
	case 0:
		result = CALL(w, cuMemAllocAsync, cudaMallocAsync(&held.address, size, NULL));
		break;
	case 1:
		result = CALL(w, cuMemAllocAsync, cuMemAllocAsync((uint64_t *)&held.address, size, NULL));
		break;
	default:
		must(!cudaDeviceGetDefaultMemPool(&pool, place->device), "the default pool");
		result = CALL(w, cuMemAllocFromPoolAsync,
			      cudaMallocFromPoolAsync(&held.address, size, pool, NULL));
	}
	keep(w, place, result, held);
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

static void allocate_array(struct worker *w, struct place *place)
{
	struct held held = {.kind = KIND_ARRAY, .family = FAMILY_ARRAY};
	size_t width = 1 + random_below(w, 300), height = random_below(w, 40), depth = random_below(w, 6);
	size_t rows = height ? height : 1, layers = depth ? depth : 1;
	struct cudaChannelFormatDesc bytes = {8, 8, 0, 0, 1}, floats = {32, 32, 32, 32, 2};
	struct CUDA_ARRAY_DESCRIPTOR flat = {width, height, FORMAT_FLOAT, 2};
	struct CUDA_ARRAY3D_DESCRIPTOR solid = {width, height, depth, FORMAT_FLOAT, 4, 0};
	unsigned int levels = 1 + (unsigned int)random_below(w, 6);
	int result;

	switch (random_below(w, 6)) {
	case 0:
		held.size = width * rows * 2;
		result = CALL(w, cuArrayCreate_v2, cudaMallocArray(&held.address, &bytes, width, height, 0));
		break;
	case 1:
		held.size = width * rows * layers * 16;
		result = CALL(
		    w, cuArray3DCreate_v2,
		    cudaMalloc3DArray(&held.address, &floats, (struct cudaExtent){width, height, depth}, 0));
		break;
	case 2:
		held.size = width * rows * 8;
		result = CALL(w, cuArrayCreate_v2, cuArrayCreate_v2(&held.address, &flat));
		break;
	case 3:
		held.size = width * rows * layers * 16;
		result = CALL(w, cuArray3DCreate_v2, cuArray3DCreate_v2(&held.address, &solid));
		break;
	case 4:
		held.family = FAMILY_MIPMAPPED;
		held.size = levels_of(width, rows, layers, levels) * 2;
		result = CALL(w, cuMipmappedArrayCreate,
			      cudaMallocMipmappedArray(&held.address, &bytes,
						       (struct cudaExtent){width, height, depth}, levels, 0));
		break;
	default:
		held.family = FAMILY_MIPMAPPED;
		held.size = levels_of(width, rows, layers, levels) * 16;
		result =
		    CALL(w, cuMipmappedArrayCreate, cuMipmappedArrayCreate(&held.address, &solid, levels));
	}
	keep(w, place, result, held);
}

static void register_host(struct worker *w, struct place *place)
{
	unsigned long slot = random_below(w, REGISTERED_SLOTS);
	struct held held = {.address = host_memory[slot],
			    .size = 1 + random_below(w, SLOT_BYTES),
			    .kind = KIND_PINNED,
			    .family = FAMILY_REGISTERED};
	int by_driver = (int)random_below(w, 2), result;

	if (__atomic_exchange_n(&is_registered[slot], 1, __ATOMIC_ACQUIRE))
		return;
	result = CALL(w, cuMemHostRegister_v2,
		      by_driver ? cuMemHostRegister_v2(held.address, held.size, 0)
				: cudaHostRegister(held.address, held.size, 0));
	keep(w, place, result, held);
}

static void allocate(struct worker *w, struct place *place)
{
	size_t size = 1 + random_below(w, random_below(w, 10) ? 4096 : MIB);

	switch (random_below(w, 10)) {
	case 0:
		return allocate_managed(w, place, size);
	case 1:
		return allocate_pinned(w, place, size);
	case 2:
	case 3:
		return allocate_from_pool(w, place, size);
	case 4:
		if (options.parts & PART_ARRAYS)
			return allocate_array(w, place);
		/* fall through */
	case 5:
		return register_host(w, place);
	default:
		return allocate_linear(w, place, size);
	}
}

void allocate_or_free(struct worker *w, struct place *place)
{
	struct held held;

	/* about half full, so that addresses come back soon */
	if (random_below(w, HELD) > place->count)
		allocate(w, place);
	else if (take(w, place, &held))
		release(w, place, &held);
}

/* A wrong function for what is held: it stays. */
static void free_wrongly(struct worker *w, struct place *place)
{
	struct held held;
	int result;

	if (!take(w, place, &held))
		return;
	if (held.family == FAMILY_HOST)
		result = CALL(w, cuMemFree_v2, cudaFree(held.address));
	else if (held.family == FAMILY_REGISTERED)
		result = CALL(w, cuMemFreeHost, cudaFreeHost(held.address));
	else if (held.family == FAMILY_ARRAY)
		result = CALL(w, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy(held.address));
	else
		result = CALL(w, cuMemFreeHost, cuMemFreeHost(held.address));
	must(result != 0, "a free by the wrong function fails");
	w->books.failed_frees++;
	if (!put(place, &held))
		release(w, place, &held);
}

static void free_twice(struct worker *w, struct place *place)
{
	struct sums *sums = sums_of(w, KIND_DEVICE, place->device);
	uint64_t address = 0;

	pthread_mutex_lock(&twice_lock);
	if (CALL(w, cuMemAlloc_v2, cuMemAlloc_v2(&address, TWICE_BYTES))) {
		w->books.failed_allocations++;
	} else {
		sums->allocations++;
		sums->allocated_bytes += TWICE_BYTES;
		while (CALL(w, cuMemFree_v2, cuMemFree_v2(address)))
			w->books.failed_frees++;
		sums->frees++;
		sums->freed_bytes += TWICE_BYTES;
		must(CALL(w, cuMemFree_v2, cudaFree((void *)address)) != 0, "a second free fails");
		w->books.failed_frees++;
		w->books.unknown_frees++;
	}
	pthread_mutex_unlock(&twice_lock);
}

/* Memory of another process adds no bytes, and is not freed but closed. */
static void share(struct worker *w, struct place *place)
{
	struct held held = {.size = 700, .kind = KIND_DEVICE, .family = FAMILY_LINEAR};
	struct cudaIpcMemHandle handle;
	void *opened = NULL;

	if (CALL(w, cuMemAlloc_v2, cudaMalloc(&held.address, held.size))) {
		w->books.failed_allocations++;
		return;
	}
	must(!CALL(w, cuIpcGetMemHandle, cudaIpcGetMemHandle(&handle, held.address)), "a handle to share");
	must(!CALL(w, cuIpcOpenMemHandle_v2, cudaIpcOpenMemHandle(&opened, handle, 1)), "it can be opened");
	must(CALL(w, cuMemFree_v2, cudaFree(opened)) != 0, "what was opened cannot be freed");
	w->books.failed_frees++;
	w->books.unknown_frees++;
	must(!CALL(w, cuIpcCloseMemHandle, cudaIpcCloseMemHandle(opened)), "it can be closed");
	keep(w, place, 0, held);
}

void misuse(struct worker *w, struct place *place)
{
	void *address = NULL;

	switch (random_below(w, 7)) {
	case 0:
		must(CALL(w, cuMemAlloc_v2, cudaMalloc(&address, TOO_LARGE)) != 0, "too large");
		w->books.failed_allocations++;
		return;
	case 1:
		must(CALL(w, cuMemFree_v2, cudaFree((void *)(UNKNOWN_BASE + 512 * random_below(w, 99)))) != 0,
		     "a free of what was never allocated fails");
		w->books.failed_frees++;
		w->books.unknown_frees++;
		return;
	case 2:
		if (CALL(w, cuMemFree_v2, cudaFree(NULL)))
			w->books.failed_frees++;
		else
			w->books.null_frees++;
		return;
	case 3:
		must(CALL(w, cuArrayDestroy, cudaFreeArray((void *)UNKNOWN_BASE)) != 0, "no such array");
		w->books.failed_frees++;
		w->books.unknown_frees++;
		return;
	case 4:
		return free_twice(w, place);
	case 5:
		return share(w, place);
	default:
		return free_wrongly(w, place);
	}
}

void end_all(struct worker *w, struct place *place)
{
	for (unsigned int i = 0; i < place->count; i++) {
		struct held *held = &place->rows[i];
		struct sums *sums = sums_of(w, held->kind, place->device);

		sums->ended++;
		sums->ended_bytes += held->size;
		forget_registered(held);
	}
	place->count = 0;
}

void choose_device(struct worker *w, int device)
{
	if (!CALL(w, cuCtxSetCurrent, cudaSetDevice(device)))
		w->device = device;
}
