/*
 * The library that `gpuprobe bench` measures on: four functions of the driver that do next to nothing, so
 * that what a call takes is what its probes cost.
 */
#include <stddef.h>

#define FIRST_ADDRESS 0x7f0000000000ULL
#define DISTANCE (2ULL << 20)
/* more than are ever free at once */
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

/* What was freed last is given out again first, as allocators do. */
int impl_cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
	static unsigned long long given;

	(void)bytes;
	*pointer = freed_count ? freed[--freed_count] : FIRST_ADDRESS + given++ * DISTANCE;
	return 0;
}

int impl_cuMemFree_v2(unsigned long long pointer)
{
	if (freed_count == MOST_FREED)
		return 1;
	freed[freed_count++] = pointer;
	return 0;
}
