/*
 * The virtual memory interface. Three handles of 2, 4 and 6 MiB; the first two are mapped next to each other
 * and unmapped by one call, the second is released while mapped, the third is retained once more and released
 * once, so it stays live. Prints {"pid","calls","live","live_bytes"}.
 */
#include <stdio.h>
#include <unistd.h>

#include "cuda_api.h"

#define MIB ((size_t)1 << 20)

int main(void)
{
	struct CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
	uint64_t base, handles[3], again;
	size_t granularity;
	int result = 0;

	result |= cuMemGetAllocationGranularity(&granularity, &prop, 0);
	result |= cuMemAddressReserve(&base, 32 * MIB, 0, 0, 0);
	for (size_t i = 0; i < 3; i++)
		result |= cuMemCreate(&handles[i], 2 * (i + 1) * MIB, &prop, 0);
	result |= cuMemMap(base, 2 * MIB, 0, handles[0], 0);
	result |= cuMemMap(base + 2 * MIB, 4 * MIB, 0, handles[1], 0);
	result |= cuMemMap(base + 6 * MIB, 6 * MIB, 0, handles[2], 0);
	result |= cuMemRelease(handles[1]);
	result |= cuMemUnmap(base, 6 * MIB);
	result |= cuMemRelease(handles[0]);
	result |= cuMemRetainAllocationHandle(&again, base + 7 * MIB);
	result |= again != handles[2];
	result |= cuMemUnmap(base + 6 * MIB, 6 * MIB);
	result |= cuMemRelease(handles[2]);
	result |= cuMemAddressFree(base, 32 * MIB);
	printf("{\"pid\":%d,\"calls\":{\"cuMemGetAllocationGranularity\":1,\"cuMemAddressReserve\":1,"
	       "\"cuMemCreate\":3,"
	       "\"cuMemMap\":3,\"cuMemRelease\":3,\"cuMemUnmap\":2,\"cuMemRetainAllocationHandle\":1,"
	       "\"cuMemAddressFree\":1},\"live\":1,\"live_bytes\":%zu}\n",
	       (int)getpid(), 6 * MIB);
	return result;
}
