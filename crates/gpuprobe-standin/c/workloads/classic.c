/*
 * classic [reset]: three allocations of 8,000,000 bytes, two frees, and the exit, waiting for a line before
 * each step and before the exit. With `reset`, an allocation and a free that fail come before the exit, and
 * then a reset, which frees the third block. Prints {"pid","step","blocks"} at each pause: the addresses, as
 * numbers.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

enum { BLOCKS = 3, BLOCK_BYTES = 8000000 };

static void *blocks[BLOCKS];

static void pause_after(int step)
{
	printf("{\"pid\":%d,\"step\":%d,\"blocks\":[", (int)getpid(), step);
	for (int i = 0; i < BLOCKS && blocks[i]; i++)
		printf("%s%llu", i ? "," : "", (unsigned long long)(uintptr_t)blocks[i]);
	printf("]}\n");
	fflush(stdout);
	getchar();
}

int main(int count, char **words)
{
	int result = 0;

	pause_after(0);
	/* the stand-in runtime makes its context current if a device is requested */
	result |= cudaSetDevice(0);
	for (int i = 0; i < BLOCKS; i++)
		result |= cudaMalloc(&blocks[i], BLOCK_BYTES);
	pause_after(1);
	result |= cudaFree(blocks[1]);
	result |= cudaFree(blocks[2]);
	pause_after(2);
	if (count > 1 && !strcmp(words[1], "reset")) {
		void *none = NULL;

		result |= !cudaMalloc(&none, (size_t)2 << 40) || !cudaFree((void *)0x666000000000);
		pause_after(3);
		result |= cudaDeviceReset();
		pause_after(4);
	}
	return result;
}
