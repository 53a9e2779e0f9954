/*
 * crash [--kill]: makes three allocations, then a thread blocks inside cudaDeviceSynchronize for a minute.
 * Prints {"pid","calls","blocked_in","live","live_bytes"} once it is blocked, and waits to be killed; with
 * --kill it kills itself. A STANDIN_DELAY of the caller is used as it is.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

static int entered;

static void *block(void *unused)
{
	__atomic_store_n(&entered, 1, __ATOMIC_RELEASE);
	cudaDeviceSynchronize();
	return unused;
}

int main(int count, char **words)
{
	pthread_t thread;
	void *blocks[3];
	int result = 0;

	setenv("STANDIN_DELAY", "cudaDeviceSynchronize:60000000", 0);
	for (int i = 0; i < 3; i++)
		result |= cudaMalloc(&blocks[i], 2048);
	if (pthread_create(&thread, NULL, block, NULL))
		return 1;
	while (!__atomic_load_n(&entered, __ATOMIC_ACQUIRE))
		usleep(1000);
	usleep(50000);
	printf("{\"pid\":%d,\"calls\":{\"cudaMalloc\":3},\"blocked_in\":\"cudaDeviceSynchronize\",\"live\":3,"
	       "\"live_bytes\":6144}\n",
	       (int)getpid());
	fflush(stdout);
	if (count > 1 && !strcmp(words[1], "--kill"))
		kill(getpid(), SIGKILL);
	pthread_join(thread, NULL);
	return result;
}
