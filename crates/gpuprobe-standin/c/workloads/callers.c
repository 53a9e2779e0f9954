/*
 * callers [ROUNDS]: on two threads, launches from two functions, one through the CUDA runtime and one through
 * the CUDA driver, copies from a third, waits from a fourth, and allocations that fail from a fifth. Prints
 * {"pid","launches","copies","waits","failures"}: by function, how often each was called from it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_api.h"

#define OWN_FRAME __attribute__((noinline))

enum { THREADS = 2, ROUNDS = 100 };

static unsigned long rounds = ROUNDS;
static atomic_int failed;
static atomic_ulong forward_launches, backward_launches, copies, waits, failures;

static void some_kernel(void)
{
	__asm__ volatile("");
}

/* the statement after each call prevents a tail call */
static OWN_FRAME void forward(void)
{
	struct dim3 one = {1, 1, 1};

	failed |= cudaLaunchKernel((const void *)some_kernel, one, one, NULL, 0, NULL);
	forward_launches++;
}

static OWN_FRAME void backward(void)
{
	failed |= cuLaunchKernel((void *)some_kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
	backward_launches++;
}

static OWN_FRAME void load(void *device)
{
	char host[64] = {0};

	failed |= cudaMemcpy(device, host, sizeof(host), COPY_H2D);
	copies++;
}

static OWN_FRAME void finish(void)
{
	failed |= cudaDeviceSynchronize();
	waits++;
}

static OWN_FRAME void demand(void)
{
	void *none = NULL;

	failed |= !cudaMalloc(&none, (size_t)2 << 40);
	failures++;
}

static OWN_FRAME void *train(void *device)
{
	for (unsigned long round = 0; round < rounds; round++) {
		load(device);
		for (int layer = 0; layer < 3; layer++)
			forward();
		for (int layer = 0; layer < 2; layer++)
			backward();
		if (round % 10 == 0)
			demand();
		finish();
	}
	return NULL;
}

int main(int count, char **words)
{
	pthread_t threads[THREADS];
	void *device;

	if (count > 1)
		rounds = strtoul(words[1], NULL, 10);
	failed |= cudaSetDevice(0);
	failed |= cudaMalloc(&device, 4096);
	for (int i = 0; i < THREADS; i++)
		failed |= pthread_create(&threads[i], NULL, train, device);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	failed |= cudaFree(device);
	printf("{\"pid\":%d,\"launches\":{\"forward\":%lu,\"backward\":%lu},\"copies\":{\"load\":%lu},"
	       "\"waits\":{\"finish\":%lu},\"failures\":{\"demand\":%lu}}\n",
	       (int)getpid(), (unsigned long)forward_launches, (unsigned long)backward_launches,
	       (unsigned long)copies, (unsigned long)waits, (unsigned long)failures);
	return failed;
}
