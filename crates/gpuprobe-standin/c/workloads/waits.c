/*
 * waits: prints {"pid","ready"}, waits for a line, allocates in functions of known lines, and then waits for
 * the device on the main thread and for a stream on a second one: STANDIN_DELAY makes that last. Prints
 * {"pid","allocate","step","main","device_tid","stream_tid"}, the lines of the calls, before it waits, and
 * {"pid","calls"} after.
 */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda_api.h"

#define STREAM ((void *)0x5000)

static int allocate_line, step_line, main_line, failed;
static long stream_tid;
static pthread_barrier_t both_known;

/* the statement after each call prevents a tail call */
static __attribute__((noinline)) void allocate_block(void **block)
{
	allocate_line = __LINE__ + 1;
	failed |= cudaMalloc(block, 4096);
}

static __attribute__((noinline)) void training_step(void **block)
{
	step_line = __LINE__ + 1;
	allocate_block(block);
	failed |= cudaFree(*block);
}

static void *wait_for_stream(void *unused)
{
	stream_tid = syscall(SYS_gettid);
	pthread_barrier_wait(&both_known);
	failed |= cudaStreamSynchronize(STREAM);
	return unused;
}

int main(void)
{
	pthread_t other;
	void *block;

	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	fflush(stdout);
	getchar();
	main_line = __LINE__ + 1;
	training_step(&block);
	pthread_barrier_init(&both_known, NULL, 2);
	if (pthread_create(&other, NULL, wait_for_stream, NULL))
		return 1;
	pthread_barrier_wait(&both_known);
	printf("{\"pid\":%d,\"allocate\":%d,\"step\":%d,\"main\":%d,\"device_tid\":%ld,\"stream_tid\":%ld}\n",
	       (int)getpid(), allocate_line, step_line, main_line, syscall(SYS_gettid), stream_tid);
	fflush(stdout);
	failed |= cudaDeviceSynchronize();
	pthread_join(other, NULL);
	printf("{\"pid\":%d,\"calls\":{\"cudaMalloc\":1,\"cudaFree\":1,\"cudaStreamSynchronize\":1,"
	       "\"cudaDeviceSynchronize\":1}}\n",
	       (int)getpid());
	return failed;
}
