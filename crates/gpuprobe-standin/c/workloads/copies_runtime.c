/* Every function of the runtime that copies or fills, by the shape of its arguments. */
#include "copies.h"

#include <string.h>

#define PITCH 4096

/* A way to copy: what the call says, and what it is. */
struct way {
	int argument;
	enum kind kind;
	enum host host;
	uint64_t to, from;
};

enum { TO_HOST, TO_DEVICE, FROM_DEVICE, IN_DEVICE, SENT, TO_PEER, FETCHED, WAYS };

/* A runtime that is told nothing of a direction finds out by the addresses. */
static void find_ways(const struct memory *m, struct way *ways)
{
	uint64_t pinned = address(m->pinned), pageable = address(m->pageable);

	ways[TO_HOST] = (struct way){COPY_H2H, H2H, PAGEABLE, pageable, pinned};
	ways[TO_DEVICE] = (struct way){COPY_H2D, H2D, PINNED, m->device, address(m->registered) + 100};
	ways[FROM_DEVICE] = (struct way){COPY_D2H, D2H, PAGEABLE, pageable + 9, m->mapped + 4096};
	ways[IN_DEVICE] = (struct way){COPY_D2D, D2D, NO_HOST, m->device + 512, m->pool};
	ways[SENT] = (struct way){COPY_DEFAULT, H2D, PAGEABLE, m->device + 5, pageable};
	ways[TO_PEER] = (struct way){COPY_DEFAULT, P2P, NO_HOST, m->other_device, m->device};
	ways[FETCHED] = (struct way){COPY_DEFAULT, D2H, PINNED, pinned + 77, m->managed + 1};
}

static int is_async(const char *name)
{
	return strstr(name, "Async") != NULL;
}

/* Calls a function and its variant for streams per thread. */
static void both(const char *base, const struct way *way,
		 void (*shape)(const char *name, const struct way *way))
{
	char name[64];

	shape(base, way);
	strcpy(name, base);
	shape(strcat(name, is_async(base) ? "_ptsz" : "_ptds"), way);
}

static void of_way(const char *name, const struct way *way, size_t bytes)
{
	copied(way->kind, way->host, is_async(name), bytes);
}

static void linear(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, way->to, way->from, size, way->argument, STREAM, 0, 0, 0, 0);
	of_way(name, way, size);
}

static void rectangle(const char *name, const struct way *way)
{
	size_t width = next_size();

	call(name, way->to, PITCH, way->from, PITCH, width, 3, way->argument, STREAM, 0);
	of_way(name, way, width * 3);
}

static void box(const char *name, const struct way *way)
{
	struct cudaMemcpy3DParms copy = {.srcPtr = {.ptr = (void *)way->from},
					 .dstPtr = {.ptr = (void *)way->to},
					 .extent = {next_size(), 2, 5},
					 .kind = way->argument};

	call(name, address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
	of_way(name, way, copy.extent.width * 10);
}

static void into_symbol(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, way->to - 3, way->from, size, 3, way->argument, STREAM, 0, 0, 0);
	of_way(name, way, size);
}

static void out_of_symbol(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, way->to, way->from - 3, size, 3, way->argument, STREAM, 0, 0, 0);
	of_way(name, way, size);
}

/* Where an end of a way is an array, it is this one. */
static uint64_t array;

static void into_array(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, array, 1, 2, way->from, size, way->argument, STREAM, 0, 0);
	of_way(name, way, size);
}

static void out_of_array(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, way->to, array, 1, 2, size, way->argument, STREAM, 0, 0);
	of_way(name, way, size);
}

static void rows_into_array(const char *name, const struct way *way)
{
	size_t width = next_size();

	call(name, array, 1, 2, way->from, PITCH, width, 7, way->argument, STREAM);
	of_way(name, way, width * 7);
}

static void rows_out_of_array(const char *name, const struct way *way)
{
	size_t width = next_size();

	call(name, way->to, PITCH, array, 1, 2, width, 7, way->argument, STREAM);
	of_way(name, way, width * 7);
}

static void box_into_array(const char *name, const struct way *way)
{
	struct cudaMemcpy3DParms copy = {.srcPtr = {.ptr = (void *)way->from},
					 .dstArray = (void *)array,
					 .extent = {next_size(), 4, 2},
					 .kind = way->argument};

	call(name, address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
	of_way(name, way, copy.extent.width * 8);
}

static void between_arrays(const char *name, const struct way *way)
{
	size_t size = next_size();
	int has_rows = name[10] == '2';

	call(name, array, 1, 2, array, 3, 4, size, has_rows ? 6 : way->argument, way->argument);
	of_way(name, way, has_rows ? size * 6 : size);
}

static void peer(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, way->to, 1, way->from, 0, size, STREAM, 0, 0, 0);
	of_way(name, way, size);
}

static void box_of_peers(const char *name, const struct way *way)
{
	struct cudaMemcpy3DPeerParms copy = {.srcPtr = {.ptr = (void *)way->from},
					     .dstPtr = {.ptr = (void *)way->to},
					     .dstDevice = 1,
					     .extent = {next_size(), 3, 3}};

	call(name, address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
	of_way(name, way, copy.extent.width * 9);
}

/* All copies of one call, of two ways. The name has a meaning of its own in each version. */
static void batch(const char *name, const struct way *way)
{
	uint64_t targets[2] = {way->to, way[1].to}, sources[2] = {way->from, way[1].from};
	size_t sizes[2] = {next_size(), next_size()}, failed = 0;

#if CUDA_MAJOR < 13
	call(name, address(targets), address(sources), address(sizes), 2, 0, 0, 0, address(&failed), STREAM);
#else
	call(name, address(targets), address(sources), address(sizes), 2, 0, 0, 0, STREAM, failed);
#endif
	of_way(name, way, sizes[0]);
	of_way(name, way + 1, sizes[1]);
}

static void operations(const char *name, const struct way *way)
{
	struct operation list[2] = {
	    {.source = {1, way->from, 0, 0, {0, 0}},
	     .target = {1, way->to, 0, 0, {0, 0}},
	     .extent = {next_size(), 2, 2}},
	    {.source = {1, way[1].from, 0, 0, {0, 0}},
	     .target = {1, way[1].to, 0, 0, {0, 0}},
	     .extent = {next_size(), 1, 3}},
	};
	size_t failed = 0;

#if CUDA_MAJOR < 13
	call(name, 2, address(list), address(&failed), 0, STREAM, 0, 0, 0, 0);
#else
	call(name, 2, address(list), 0, STREAM, failed, 0, 0, 0, 0);
#endif
	of_way(name, way, list[0].extent.width * 4);
	of_way(name, way + 1, list[1].extent.width * 3);
}

#if CUDA_MAJOR >= 13
static void with_attributes(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, way->to, way->from, size, 0, STREAM, 0, 0, 0, 0);
	of_way(name, way, size);
}

static void box_with_attributes(const char *name, const struct way *way)
{
	struct operation one = {.source = {1, way->from, 0, 0, {0, 0}},
				.target = {1, way->to, 0, 0, {0, 0}},
				.extent = {next_size(), 2, 2}};

	call(name, address(&one), 0, STREAM, 0, 0, 0, 0, 0, 0);
	of_way(name, way, one.extent.width * 4);
}
#endif

static void fill(const char *name, const struct way *way)
{
	size_t size = next_size();

	call(name, way->to, 1, size, STREAM, 0, 0, 0, 0, 0);
	copied(FILL, NO_HOST, is_async(name), size);
}

static void fill_rows(const char *name, const struct way *way)
{
	size_t width = next_size();

	call(name, way->to, PITCH, 1, width, 7, STREAM, 0, 0, 0);
	copied(FILL, NO_HOST, is_async(name), width * 7);
}

static void fill_box(const char *name, const struct way *way)
{
	int (*function)(struct cudaPitchedPtr, int, struct cudaExtent, uint64_t);
	struct cudaPitchedPtr to = {.ptr = (void *)way->to, .pitch = PITCH};
	struct cudaExtent extent = {next_size(), 2, 7};

	*(void **)&function = function_of(name);
	check(function(to, 1, extent, STREAM));
	copied(FILL, NO_HOST, is_async(name), extent.width * 14);
}

/* The functions of a shape, for the ways in these bits. */
static const struct {
	const char *sync, *async;
	void (*shape)(const char *name, const struct way *way);
	unsigned int ways;
} table[] = {
    {"cudaMemcpy", "cudaMemcpyAsync", linear, (1 << WAYS) - 1},
    {"cudaMemcpy2D", "cudaMemcpy2DAsync", rectangle, (1 << WAYS) - 1},
    {"cudaMemcpy3D", "cudaMemcpy3DAsync", box, (1 << WAYS) - 1},
    {"cudaMemcpy3D", "cudaMemcpy3DAsync", box_into_array, 1 << TO_DEVICE | 1 << IN_DEVICE | 1 << SENT},
    {"cudaMemcpyToSymbol", "cudaMemcpyToSymbolAsync", into_symbol,
     1 << TO_DEVICE | 1 << IN_DEVICE | 1 << SENT | 1 << TO_PEER},
    {"cudaMemcpyFromSymbol", "cudaMemcpyFromSymbolAsync", out_of_symbol,
     1 << FROM_DEVICE | 1 << IN_DEVICE | 1 << TO_PEER},
    {"cudaMemcpyToArray", "cudaMemcpyToArrayAsync", into_array, 1 << TO_DEVICE | 1 << IN_DEVICE | 1 << SENT},
    {"cudaMemcpyFromArray", "cudaMemcpyFromArrayAsync", out_of_array,
     1 << FROM_DEVICE | 1 << IN_DEVICE | 1 << FETCHED},
    {"cudaMemcpy2DToArray", "cudaMemcpy2DToArrayAsync", rows_into_array,
     1 << TO_DEVICE | 1 << IN_DEVICE | 1 << SENT},
    {"cudaMemcpy2DFromArray", "cudaMemcpy2DFromArrayAsync", rows_out_of_array,
     1 << FROM_DEVICE | 1 << IN_DEVICE | 1 << FETCHED},
    {"cudaMemcpyArrayToArray", NULL, between_arrays, 1 << IN_DEVICE},
    {"cudaMemcpy2DArrayToArray", NULL, between_arrays, 1 << IN_DEVICE},
    {"cudaMemcpy3DPeer", "cudaMemcpy3DPeerAsync", box_of_peers, 1 << TO_PEER},
    {NULL, "cudaMemcpyBatchAsync", batch, 1 << SENT | 1 << TO_HOST},
    {NULL, "cudaMemcpy3DBatchAsync", operations, 1 << FROM_DEVICE | 1 << TO_PEER},
#if CUDA_MAJOR >= 13
    {NULL, "cudaMemcpyWithAttributesAsync", with_attributes, (1 << WAYS) - 1},
    {NULL, "cudaMemcpy3DWithAttributesAsync", box_with_attributes, (1 << WAYS) - 1},
#endif
    {"cudaMemset", "cudaMemsetAsync", fill, 1 << TO_DEVICE},
    {"cudaMemset2D", "cudaMemset2DAsync", fill_rows, 1 << TO_DEVICE},
    {"cudaMemset3D", "cudaMemset3DAsync", fill_box, 1 << TO_DEVICE},
};

void call_every_function(struct memory *m)
{
	struct way ways[WAYS];

	find_ways(m, ways);
	array = m->array;
	for (size_t row = 0; row < sizeof(table) / sizeof(*table); row++) {
		for (int way = 0; way < WAYS; way++) {
			if (!(table[row].ways & 1u << way))
				continue;
			if (table[row].sync)
				both(table[row].sync, &ways[way], table[row].shape);
			if (table[row].async)
				both(table[row].async, &ways[way], table[row].shape);
		}
	}
	/* these two have no variants */
	peer("cudaMemcpyPeer", &ways[TO_PEER]);
	peer("cudaMemcpyPeerAsync", &ways[TO_PEER]);
}
