/*
 * rates MODE SECONDS: calls the CUDA driver at rates that depend on the mode, and keeps a ledger. Prints
 * {"pid","ready"}, waits for a line, and prints {"unix","calls"} fifty times a second. Ends with
 * {"pid","calls","allocated_bytes","copied_bytes","cpu_seconds","seconds"}, and keeps its live memory until
 * another line.
 *
 * Modes: steady; bursty (a tenth of a second, at random times); phases (a second of many calls, then a second
 * of few); threads (eight, each with its own pauses); functions (seven of them).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define TICKS_PER_SECOND 1000
#define THREADS 8
#define COPY_BYTES 64
#define BLOCK_BYTES 512
/* milliseconds between two allocations */
#define ALLOCATE_EVERY 10

enum function { COPY_IN, COPY_OUT, LAUNCH, SYNC, CONTEXT_SYNC, INFO, ALLOCATE, FUNCTIONS };

static const char *const names[FUNCTIONS] = {"cuMemcpyHtoD_v2",	    "cuMemcpyDtoH_v2",	"cuLaunchKernel",
					     "cuStreamSynchronize", "cuCtxSynchronize", "cuMemGetInfo_v2",
					     "cuMemAlloc_v2"};

enum mode { STEADY, BURSTY, PHASES, OF_THREADS, OF_FUNCTIONS, MODES };

static const char *const modes[MODES] = {"steady", "bursty", "phases", "threads", "functions"};

static atomic_ulong calls[THREADS][FUNCTIONS];
static atomic_int failed;
static enum mode mode;
static unsigned long ticks;
static void *kernel, *context;

static void call(unsigned thread, enum function function)
{
	static char memory[COPY_BYTES];
	uint64_t block;
	size_t free_bytes, all_bytes;
	int status = 0;

	switch (function) {
	case COPY_IN:
		status = cuMemcpyHtoD_v2(0x7000, memory, COPY_BYTES);
		break;
	case COPY_OUT:
		status = cuMemcpyDtoH_v2(memory, 0x7000, COPY_BYTES);
		break;
	case LAUNCH:
		status = cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
		break;
	case SYNC:
		status = cuStreamSynchronize(NULL);
		break;
	case CONTEXT_SYNC:
		status = cuCtxSynchronize();
		break;
	case INFO:
		status = cuMemGetInfo_v2(&free_bytes, &all_bytes);
		break;
	default:
		status = cuMemAlloc_v2(&block, BLOCK_BYTES);
	}
	if (status)
		failed = 1;
	atomic_fetch_add_explicit(&calls[thread][function], 1, memory_order_relaxed);
}

/* How often a function is called in a tick. */
static unsigned long rate(unsigned thread, enum function function, unsigned long tick)
{
	static const unsigned each[ALLOCATE] = {15, 10, 12, 6, 3, 2};
	/* random, but the same in every run */
	unsigned burst = (tick / 1000 * 2654435761u >> 8) % 900;

	if (function == ALLOCATE)
		return thread == 0 && tick % ALLOCATE_EVERY == 0;
	if (mode == OF_FUNCTIONS)
		return each[function];
	if (function != COPY_IN)
		return 0;
	switch (mode) {
	case BURSTY:
		return tick % 1000 >= burst && tick % 1000 < burst + 100 ? 400 : 1;
	case PHASES:
		return tick / 1000 % 2 ? 1 : 80;
	case OF_THREADS:
		return tick / (137 + 100 * thread) % 2 ? 0 : 12;
	default:
		return 40;
	}
}

/* Makes the calls of each tick, then sleeps until the next one; late ticks are caught up. */
static void *work(void *argument)
{
	unsigned thread = (unsigned)(size_t)argument;
	struct timespec next;

	if (cuCtxSetCurrent(context))
		failed = 1;
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (unsigned long tick = 0; tick < ticks; tick++) {
		for (int function = 0; function < FUNCTIONS; function++) {
			for (unsigned long n = rate(thread, function, tick); n; n--)
				call(thread, function);
		}
		next.tv_nsec += 1000000000L / TICKS_PER_SECOND;
		if (next.tv_nsec >= 1000000000L) {
			next.tv_nsec -= 1000000000L;
			next.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
	return NULL;
}

static unsigned long sum(enum function function)
{
	unsigned long all = 0;

	for (int thread = 0; thread < THREADS; thread++)
		all += calls[thread][function];
	return all;
}

static void print_calls(void)
{
	printf("\"calls\":{");
	for (int function = 0; function < FUNCTIONS; function++)
		printf("%s\"%s\":%lu", function ? "," : "", names[function], sum(function));
	printf("}");
}

static void *print_ledger(void *unused)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	struct timespec now;

	for (;;) {
		clock_gettime(CLOCK_REALTIME, &now);
		printf("{\"unix\":%.6f,", (double)now.tv_sec + (double)now.tv_nsec / 1e9);
		print_calls();
		printf("}\n");
		fflush(stdout);
		nanosleep(&pause, NULL);
	}
	return unused;
}

int main(int count, char **words)
{
	unsigned threads;
	struct timespec begin, end;
	struct rusage usage;
	pthread_t workers[THREADS], printer;
	void *module;
	int device;

	while (count > 1 && mode < MODES && strcmp(words[1], modes[mode]) != 0)
		mode++;
	ticks = count > 2 ? strtoul(words[2], NULL, 10) * TICKS_PER_SECOND : TICKS_PER_SECOND;
	if (mode >= MODES)
		return 2;
	threads = mode == OF_THREADS ? THREADS : 1;
	failed |= cuInit(0) | cuDeviceGet(&device, 0) | cuCtxCreate_v2(&context, 0, device);
	failed |= cuModuleLoadData(&module, "") | cuModuleGetFunction(&kernel, module, "kernel");
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	fflush(stdout);
	getchar();
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (unsigned i = 0; i < threads; i++)
		failed |= pthread_create(&workers[i], NULL, work, (void *)(size_t)i);
	failed |= pthread_create(&printer, NULL, print_ledger, NULL);
	for (unsigned i = 0; i < threads; i++)
		pthread_join(workers[i], NULL);
	pthread_cancel(printer);
	pthread_join(printer, NULL);
	clock_gettime(CLOCK_MONOTONIC, &end);
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"pid\":%d,", (int)getpid());
	print_calls();
	printf(",\"allocated_bytes\":%lu,\"copied_bytes\":%lu,\"cpu_seconds\":%.6f,\"seconds\":%.6f}\n",
	       sum(ALLOCATE) * BLOCK_BYTES, (sum(COPY_IN) + sum(COPY_OUT)) * COPY_BYTES,
	       (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		   (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6,
	       (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
	fflush(stdout);
	getchar();
	return failed;
}
