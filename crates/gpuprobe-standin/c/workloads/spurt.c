/*
 * spurt: prints {"pid","ready"}, waits for a line, and copies by cuMemcpyHtoD_v2 as fast as it can; every
 * 4096th time it also allocates 512 bytes, and frees every other allocation at once. After another line it
 * does the same a thousand times a second and prints {"slow"}. After a third line it prints
 * {"pid","calls","live","live_bytes","allocated_bytes"}, and keeps its live memory until a fourth line.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define COPIES_PER_ALLOCATION 4096
#define BYTES 512

static atomic_int is_slow, is_over;
static unsigned long copies, allocations, frees;
static int failed;

static void *copy_and_allocate(void *unused)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	char from[16];
	uint64_t block;

	while (!is_over) {
		failed |= cuMemcpyHtoD_v2(0x7000, from, sizeof(from));
		if (copies++ % COPIES_PER_ALLOCATION == 0) {
			failed |= cuMemAlloc_v2(&block, BYTES);
			if (allocations++ % 2) {
				failed |= cuMemFree_v2(block);
				frees++;
			}
		}
		if (is_slow)
			nanosleep(&pause, NULL);
	}
	return unused;
}

int main(void)
{
	pthread_t worker;
	void *context;
	int device;

	failed |= cuInit(0) | cuDeviceGet(&device, 0) | cuCtxCreate_v2(&context, 0, device);
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	fflush(stdout);
	getchar();
	failed |= pthread_create(&worker, NULL, copy_and_allocate, NULL);
	getchar();
	is_slow = 1;
	printf("{\"slow\":true}\n");
	fflush(stdout);
	getchar();
	is_over = 1;
	pthread_join(worker, NULL);
	printf("{\"pid\":%d,\"calls\":{\"cuMemcpyHtoD_v2\":%lu,\"cuMemAlloc_v2\":%lu,\"cuMemFree_v2\":%lu},"
	       "\"live\":%lu,\"live_bytes\":%lu,\"allocated_bytes\":%lu}\n",
	       (int)getpid(), copies, allocations, frees, allocations - frees, (allocations - frees) * BYTES,
	       allocations * BYTES);
	fflush(stdout);
	getchar();
	return failed;
}
