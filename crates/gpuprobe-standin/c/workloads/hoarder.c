/*
 * hoarder N: makes N allocations of 512 bytes, prints {"pid","live","live_bytes"}, waits for a line, and
 * exits without freeing them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_api.h"

int main(int count, char **words)
{
	long blocks = count > 1 ? atol(words[1]) : 1000;
	int device, result = 0;
	uint64_t block;
	void *context;

	result |= cuInit(0);
	result |= cuDeviceGet(&device, 0);
	result |= cuCtxCreate_v2(&context, 0, device);
	for (long i = 0; i < blocks; i++)
		result |= cuMemAlloc_v2(&block, 512);
	printf("{\"pid\":%d,\"live\":%ld,\"live_bytes\":%ld}\n", (int)getpid(), blocks, 512 * blocks);
	fflush(stdout);
	getchar();
	return result;
}
