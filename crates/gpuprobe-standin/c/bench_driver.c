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

static unsigned long long freed[MOST_FREED];
static unsigned int freed_count;

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
	*pointer = freed_count ? freed[--freed_count] : FIRST_ADDRESS + next_new++ * DISTANCE;
	return 0;
}

int impl_cuMemFree_v2(unsigned long long pointer)
{
	if (freed_count == MOST_FREED)
		return 1;
	freed[freed_count++] = pointer;
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
