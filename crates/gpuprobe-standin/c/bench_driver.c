/*
 * The library that `gpuprobe bench` measures: a few functions of the CUDA driver that do almost nothing, so
 * that the time of a call is the cost of its probes.
 */
#include <stddef.h>
#include <stdlib.h>

#define FIRST_ADDRESS 0x7f0000000000ULL
#define DISTANCE (2ULL << 20)
/* more than are ever free at the same time */
#define MOST_FREED 256

/* Addresses that a thread has freed. */
struct freed {
	unsigned long long address[MOST_FREED];
	unsigned int count;
};

/*
 * Each thread has its own, because a lock would be measured too. Only the pointer is in its static storage,
 * which has little room for so many libraries.
 */
static _Thread_local struct freed *freed;

int impl_cuCtxSynchronize(void)
{
	return 0;
}

int impl_cuStreamSynchronize(void *stream)
{
	return stream != NULL;
}

/* The address that was freed last is reused first, as allocators do. */
int impl_cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
	static unsigned long long next_new;

	(void)bytes;
	if (freed && freed->count)
		*pointer = freed->address[--freed->count];
	else
		*pointer = FIRST_ADDRESS + __atomic_fetch_add(&next_new, 1, __ATOMIC_RELAXED) * DISTANCE;
	return 0;
}

int impl_cuMemFree_v2(unsigned long long pointer)
{
	if (!freed)
		freed = calloc(1, sizeof(*freed));
	if (!freed || freed->count == MOST_FREED)
		return 1;
	freed->address[freed->count++] = pointer;
	return 0;
}

int impl_cuMemAllocHost_v2(void **pointer, size_t bytes)
{
	*pointer = malloc(bytes);
	return !*pointer;
}

int impl_cuMemcpyHtoD_v2(unsigned long long target, const void *source, size_t bytes)
{
	(void)bytes;
	return !target || !source;
}

int impl_cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			void *stream, void **params, void **extra)
{
	(void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
	(void)shared, (void)stream, (void)params, (void)extra;
	return !function;
}
