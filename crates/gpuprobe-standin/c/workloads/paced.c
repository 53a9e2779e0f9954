/*
 * paced CALLS [PER_SECOND [THREADS]]: prints {"pid","ready"}, waits for a line, and calls cuMemcpyHtoD_v2 at
 * that rate: the n-th call of a thread copies n bytes. PER_SECOND 0 is full speed. Ends with
 * {"pid","calls","bytes","seconds"}.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define TICKS_PER_SECOND 1000

static unsigned long calls_of_each, per_tick;
static int failed;

/* Makes as many calls as are due, then sleeps until the next tick; late ticks are caught up. */
static void *copy(void *unused)
{
	struct timespec next;

	clock_gettime(CLOCK_MONOTONIC, &next);
	for (unsigned long n = 1; n <= calls_of_each; n++) {
		if (cuMemcpyHtoD_v2(0x7000, unused, n))
			failed = 1;
		if (!per_tick || n % per_tick)
			continue;
		next.tv_nsec += 1000000000L / TICKS_PER_SECOND;
		if (next.tv_nsec >= 1000000000L) {
			next.tv_nsec -= 1000000000L;
			next.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
	return NULL;
}

int main(int count, char **words)
{
	unsigned long calls = count > 1 ? strtoul(words[1], NULL, 10) : 1000;
	unsigned long rate = count > 2 ? strtoul(words[2], NULL, 10) : 0;
	unsigned long threads = count > 3 ? strtoul(words[3], NULL, 10) : 1;
	struct timespec begin, end;
	pthread_t *others = calloc(threads, sizeof(*others));

	if (!threads || !others || calls % threads)
		return 2;
	calls_of_each = calls / threads;
	per_tick = (rate / threads + TICKS_PER_SECOND - 1) / TICKS_PER_SECOND;
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	fflush(stdout);
	getchar();
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (unsigned long i = 1; i < threads; i++)
		failed |= pthread_create(&others[i], NULL, copy, NULL);
	copy(NULL);
	for (unsigned long i = 1; i < threads; i++)
		pthread_join(others[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("{\"pid\":%d,\"calls\":{\"cuMemcpyHtoD_v2\":%lu},\"bytes\":%lu,\"seconds\":%.3f}\n",
	       (int)getpid(), calls, threads * (calls_of_each * (calls_of_each + 1) / 2),
	       (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
	free(others);
	return failed;
}
