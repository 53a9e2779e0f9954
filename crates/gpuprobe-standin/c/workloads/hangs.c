/*
 * hangs [THREADS]: prints {"pid","ready"} and waits for a line. One thread then waits for the device, and
 * half a second later all others (default 1) wait for a stream: STANDIN_DELAY makes that last. Prints
 * {"pid","waiting"}, the number of threads, when all have begun, {"pid","calls"} when all have returned, and
 * waits for a line. Leaves left_by_jump() by longjmp, prints {"pid","jumped"}, and waits for another line.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define STREAM ((void *)0x5000)
#define MAX_THREADS 4096

void left_by_jump(int jumps);

static pthread_t waiting[MAX_THREADS];
static pthread_barrier_t all_run;
static jmp_buf out;
static int failed;

static void *wait_for(void *stream)
{
	int status;

	pthread_barrier_wait(&all_run);
	if (!stream) {
		status = cudaDeviceSynchronize();
	} else {
		struct timespec later = {0, 500000000};

		while (nanosleep(&later, &later))
			;
		status = cudaStreamSynchronize(stream);
	}
	if (status)
		__atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
	return NULL;
}

__attribute__((noinline)) void left_by_jump(int jumps)
{
	if (jumps)
		longjmp(out, 1);
}

/* a frame so large that the stack of main() ends above it, whatever main() calls later */
static __attribute__((noinline)) int jump_from_far_below(void)
{
	volatile char large[1 << 16];

	large[0] = 1;
	left_by_jump(0);
	left_by_jump(1);
	return large[0];
}

static void say(const char *rest, int number)
{
	printf("{\"pid\":%d,", (int)getpid());
	printf(rest, number);
	printf("}\n");
	fflush(stdout);
}

int main(int count, char **words)
{
	int threads = count > 1 ? atoi(words[1]) : 2;

	if (threads < 2 || threads > MAX_THREADS)
		return 2;
	say("\"ready\":%d", 1);
	getchar();
	pthread_barrier_init(&all_run, NULL, threads + 1);
	for (int i = 0; i < threads; i++) {
		if (pthread_create(&waiting[i], NULL, wait_for, i ? STREAM : NULL))
			return 1;
	}
	pthread_barrier_wait(&all_run);
	say("\"waiting\":%d", threads);
	for (int i = 0; i < threads; i++)
		pthread_join(waiting[i], NULL);
	say("\"calls\":{\"cudaDeviceSynchronize\":1,\"cudaStreamSynchronize\":%d}", threads - 1);
	getchar();
	if (!setjmp(out))
		failed |= jump_from_far_below();
	say("\"jumped\":%d", 1);
	getchar();
	return failed;
}
