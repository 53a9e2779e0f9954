/* Every function of the runtime that copies or sets memory, by the shape of its arguments. */
#include "copies.h"

#include <string.h>

#define PITCH 4096

/* One kind of copy: the kind argument of the call, and the actual direction and memory. */
struct copy_case {
	int argument;
	enum kind kind;
	enum host host;
	uint64_t to, from;
};

enum { TO_HOST, TO_DEVICE, FROM_DEVICE, IN_DEVICE, SENT, TO_PEER, FETCHED, COPY_CASES };

/* With COPY_DEFAULT the runtime derives the direction from the addresses. */
static void fill_cases(const struct memory *m, struct copy_case *cases)
{
	uint64_t pinned = address(m->pinned), pageable = address(m->pageable);

	cases[TO_HOST] = (struct copy_case){COPY_H2H, H2H, PAGEABLE, pageable, pinned};
	cases[TO_DEVICE] = (struct copy_case){COPY_H2D, H2D, PINNED, m->device, address(m->registered) + 100};
	cases[FROM_DEVICE] = (struct copy_case){COPY_D2H, D2H, PAGEABLE, pageable + 9, m->mapped + 4096};
	cases[IN_DEVICE] = (struct copy_case){COPY_D2D, D2D, NO_HOST, m->device + 512, m->pool};
	cases[SENT] = (struct copy_case){COPY_DEFAULT, H2D, PAGEABLE, m->device + 5, pageable};
	cases[TO_PEER] = (struct copy_case){COPY_DEFAULT, P2P, NO_HOST, m->other_device, m->device};
	cases[FETCHED] = (struct copy_case){COPY_DEFAULT, D2H, PINNED, pinned + 77, m->managed + 1};
}

static int is_async(const char *name)
{
	return strstr(name, "Async") != NULL;
}

/* Calls a function and its variant for per-thread streams. */
static void both(const char *base, const struct copy_case *copy_case,
		 void (*shape)(const char *name, const struct copy_case *copy_case))
{
	char name[64];

	shape(base, copy_case);
	strcpy(name, base);
	shape(strcat(name, is_async(base) ? "_ptsz" : "_ptds"), copy_case);
}

static void count_copy(const char *name, const struct copy_case *copy_case, size_t bytes)
{
	copied(copy_case->kind, copy_case->host, is_async(name), bytes);
}

static void linear(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, copy_case->to, copy_case->from, size, copy_case->argument, STREAM, 0, 0, 0, 0);
	count_copy(name, copy_case, size);
}

static void rectangle(const char *name, const struct copy_case *copy_case)
{
	size_t width = next_size();

	call(name, copy_case->to, PITCH, copy_case->from, PITCH, width, 3, copy_case->argument, STREAM, 0);
	count_copy(name, copy_case, width * 3);
}

static void box(const char *name, const struct copy_case *copy_case)
{
	struct cudaMemcpy3DParms copy = {.srcPtr = {.ptr = (void *)copy_case->from},
					 .dstPtr = {.ptr = (void *)copy_case->to},
					 .extent = {next_size(), 2, 5},
					 .kind = copy_case->argument};

	call(name, address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
	count_copy(name, copy_case, copy.extent.width * 10);
}

static void into_symbol(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, copy_case->to - 3, copy_case->from, size, 3, copy_case->argument, STREAM, 0, 0, 0);
	count_copy(name, copy_case, size);
}

static void out_of_symbol(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, copy_case->to, copy_case->from - 3, size, 3, copy_case->argument, STREAM, 0, 0, 0);
	count_copy(name, copy_case, size);
}

/* The array that is the source or destination of a copy with an array. */
static uint64_t array;

static void into_array(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, array, 1, 2, copy_case->from, size, copy_case->argument, STREAM, 0, 0);
	count_copy(name, copy_case, size);
}

static void out_of_array(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, copy_case->to, array, 1, 2, size, copy_case->argument, STREAM, 0, 0);
	count_copy(name, copy_case, size);
}

static void rows_into_array(const char *name, const struct copy_case *copy_case)
{
	size_t width = next_size();

	call(name, array, 1, 2, copy_case->from, PITCH, width, 7, copy_case->argument, STREAM);
	count_copy(name, copy_case, width * 7);
}

static void rows_out_of_array(const char *name, const struct copy_case *copy_case)
{
	size_t width = next_size();

	call(name, copy_case->to, PITCH, array, 1, 2, width, 7, copy_case->argument, STREAM);
	count_copy(name, copy_case, width * 7);
}

static void box_into_array(const char *name, const struct copy_case *copy_case)
{
	struct cudaMemcpy3DParms copy = {.srcPtr = {.ptr = (void *)copy_case->from},
					 .dstArray = (void *)array,
					 .extent = {next_size(), 4, 2},
					 .kind = copy_case->argument};

	call(name, address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
	count_copy(name, copy_case, copy.extent.width * 8);
}

static void between_arrays(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();
	int has_rows = name[10] == '2';

	call(name, array, 1, 2, array, 3, 4, size, has_rows ? 6 : copy_case->argument, copy_case->argument);
	count_copy(name, copy_case, has_rows ? size * 6 : size);
}

static void peer(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, copy_case->to, 1, copy_case->from, 0, size, STREAM, 0, 0, 0);
	count_copy(name, copy_case, size);
}

static void box_of_peers(const char *name, const struct copy_case *copy_case)
{
	struct cudaMemcpy3DPeerParms copy = {.srcPtr = {.ptr = (void *)copy_case->from},
					     .dstPtr = {.ptr = (void *)copy_case->to},
					     .dstDevice = 1,
					     .extent = {next_size(), 3, 3}};

	call(name, address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
	count_copy(name, copy_case, copy.extent.width * 9);
}

/* All copies of one call, of two kinds. The function has different arguments in each version. */
static void batch(const char *name, const struct copy_case *copy_case)
{
	uint64_t targets[2] = {copy_case->to, copy_case[1].to},
		 sources[2] = {copy_case->from, copy_case[1].from};
	size_t sizes[2] = {next_size(), next_size()}, failed = 0;

#if CUDA_MAJOR < 13
	call(name, address(targets), address(sources), address(sizes), 2, 0, 0, 0, address(&failed), STREAM);
#else
	call(name, address(targets), address(sources), address(sizes), 2, 0, 0, 0, STREAM, failed);
#endif
	count_copy(name, copy_case, sizes[0]);
	count_copy(name, copy_case + 1, sizes[1]);
}

static void operations(const char *name, const struct copy_case *copy_case)
{
	struct operation list[2] = {
	    {.source = {1, copy_case->from, 0, 0, {0, 0}},
	     .target = {1, copy_case->to, 0, 0, {0, 0}},
	     .extent = {next_size(), 2, 2}},
	    {.source = {1, copy_case[1].from, 0, 0, {0, 0}},
	     .target = {1, copy_case[1].to, 0, 0, {0, 0}},
	     .extent = {next_size(), 1, 3}},
	};
	size_t failed = 0;

#if CUDA_MAJOR < 13
	call(name, 2, address(list), address(&failed), 0, STREAM, 0, 0, 0, 0);
#else
	call(name, 2, address(list), 0, STREAM, failed, 0, 0, 0, 0);
#endif
	count_copy(name, copy_case, list[0].extent.width * 4);
	count_copy(name, copy_case + 1, list[1].extent.width * 3);
}

#if CUDA_MAJOR >= 13
static void with_attributes(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, copy_case->to, copy_case->from, size, 0, STREAM, 0, 0, 0, 0);
	count_copy(name, copy_case, size);
}

static void box_with_attributes(const char *name, const struct copy_case *copy_case)
{
	struct operation one = {.source = {1, copy_case->from, 0, 0, {0, 0}},
				.target = {1, copy_case->to, 0, 0, {0, 0}},
				.extent = {next_size(), 2, 2}};

	call(name, address(&one), 0, STREAM, 0, 0, 0, 0, 0, 0);
	count_copy(name, copy_case, one.extent.width * 4);
}
#endif

static void fill(const char *name, const struct copy_case *copy_case)
{
	size_t size = next_size();

	call(name, copy_case->to, 1, size, STREAM, 0, 0, 0, 0, 0);
	copied(FILL, NO_HOST, is_async(name), size);
}

static void fill_rows(const char *name, const struct copy_case *copy_case)
{
	size_t width = next_size();

	call(name, copy_case->to, PITCH, 1, width, 7, STREAM, 0, 0, 0);
	copied(FILL, NO_HOST, is_async(name), width * 7);
}

static void fill_box(const char *name, const struct copy_case *copy_case)
{
	int (*function)(struct cudaPitchedPtr, int, struct cudaExtent, uint64_t);
	struct cudaPitchedPtr to = {.ptr = (void *)copy_case->to, .pitch = PITCH};
	struct cudaExtent extent = {next_size(), 2, 7};

	*(void **)&function = function_of(name);
	check(function(to, 1, extent, STREAM));
	copied(FILL, NO_HOST, is_async(name), extent.width * 14);
}

/* The functions of a shape, for the copy cases in these bits. */
static const struct {
	const char *sync, *async;
	void (*shape)(const char *name, const struct copy_case *copy_case);
	unsigned int cases;
} table[] = {
    {"cudaMemcpy", "cudaMemcpyAsync", linear, (1 << COPY_CASES) - 1},
    {"cudaMemcpy2D", "cudaMemcpy2DAsync", rectangle, (1 << COPY_CASES) - 1},
    {"cudaMemcpy3D", "cudaMemcpy3DAsync", box, (1 << COPY_CASES) - 1},
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
    {NULL, "cudaMemcpyWithAttributesAsync", with_attributes, (1 << COPY_CASES) - 1},
    {NULL, "cudaMemcpy3DWithAttributesAsync", box_with_attributes, (1 << COPY_CASES) - 1},
#endif
    {"cudaMemset", "cudaMemsetAsync", fill, 1 << TO_DEVICE},
    {"cudaMemset2D", "cudaMemset2DAsync", fill_rows, 1 << TO_DEVICE},
    {"cudaMemset3D", "cudaMemset3DAsync", fill_box, 1 << TO_DEVICE},
};

void call_every_function(struct memory *m)
{
	struct copy_case cases[COPY_CASES];

	fill_cases(m, cases);
	array = m->array;
	for (size_t row = 0; row < sizeof(table) / sizeof(*table); row++) {
		for (int copy_case = 0; copy_case < COPY_CASES; copy_case++) {
			if (!(table[row].cases & 1u << copy_case))
				continue;
			if (table[row].sync)
				both(table[row].sync, &cases[copy_case], table[row].shape);
			if (table[row].async)
				both(table[row].async, &cases[copy_case], table[row].shape);
		}
	}
	/* these two have no variants */
	peer("cudaMemcpyPeer", &cases[TO_PEER]);
	peer("cudaMemcpyPeerAsync", &cases[TO_PEER]);
}
