/*
 * The library that `gpuprobe bench` measures on: four functions of the driver that do next to nothing, so
 * that what a call takes is what its probes cost.
 */
#include <stddef.h>

#define ADDRESSES 256
#define FIRST_ADDRESS 0x7f0000000000ULL
#define DISTANCE (2ULL << 20)

int impl_cuCtxSynchronize(void)
{
	return 0;
}

int impl_cuStreamSynchronize(void *stream)
{
	return stream != NULL;
}

/* Addresses come round, as those of an allocator do. */
int impl_cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
	static unsigned long long given;

	(void)bytes;
	*pointer = FIRST_ADDRESS + given++ % ADDRESSES * DISTANCE;
	return 0;
}

int impl_cuMemFree_v2(unsigned long long pointer)
{
	return pointer < FIRST_ADDRESS;
}
