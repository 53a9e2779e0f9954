/*
 * Operations of all kinds on several streams and threads, for GPU times:
 *
 *   gpu_work --threads N --operations N --pause US --wait --until-line --fork --hold MS
 *
 * Each thread has two streams and submits N operations in turn: kernels of different names and grids, copies
 * in each direction, memsets, and launches of a graph with two kernels, a copy and a memset, each followed by
 * a pause. With --wait, a line must arrive after cuInit. With --until-line, it goes on until a line arrives.
 * With --fork, a child exits normally in between. With --hold, it waits before it exits. Prints {"pid",
 * "threads","kernels","copies","memsets","graph_launches","bytes"}; what a graph does is only in
 * `graph_launches`.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_api.h"

#define MAX_THREADS 64
#define KERNELS 3
#define BYTES 4096

int cuStreamCreate(void **phStream, unsigned int Flags);
int cuStreamSynchronize(void *hStream);
int cuStreamBeginCapture_v2(void *hStream, int mode);
int cuStreamEndCapture(void *hStream, void **phGraph);
int cuGraphInstantiateWithFlags(void **phGraphExec, void *hGraph, unsigned long long flags);
int cuMemcpyHtoDAsync_v2(uint64_t dstDevice, const void *srcHost, size_t ByteCount, void *hStream);
int cuMemcpyDtoHAsync_v2(void *dstHost, uint64_t srcDevice, size_t ByteCount, void *hStream);
int cuMemcpyDtoDAsync_v2(uint64_t dstDevice, uint64_t srcDevice, size_t ByteCount, void *hStream);

struct totals {
	unsigned long kernels, copies, memsets, graph_launches, bytes;
	int result;
};

static unsigned int threads = 2, pause_us, hold_ms;
static unsigned long operations = 100;
static int must_wait, must_fork, until_line, is_over;
static void *kernels[KERNELS];

static int launch(void *stream, unsigned long number)
{
	return cuLaunchKernel(kernels[number % KERNELS], 1 + (unsigned int)(number % 7), 1, 1, 64, 2, 1,
			      (unsigned int)(number % 5) * 256, stream, NULL, NULL);
}

static void *make_graph(void *stream, uint64_t device, char *host, int *result)
{
	void *graph = NULL, *exec = NULL;

	*result |= cuStreamBeginCapture_v2(stream, 0);
	*result |= launch(stream, 0);
	*result |= cuMemcpyHtoDAsync_v2(device, host, BYTES, stream);
	*result |= cuMemsetD32Async(device, 0, 16, stream);
	*result |= launch(stream, 1);
	*result |= cuStreamEndCapture(stream, &graph);
	*result |= cuGraphInstantiateWithFlags(&exec, graph, 0);
	return exec;
}

static void copy(struct totals *totals, unsigned long number, uint64_t device, char *host, void *stream)
{
	size_t bytes = 64 + 8 * (number % 100);

	if (number % 3 == 0)
		totals->result |= cuMemcpyHtoDAsync_v2(device, host, bytes, stream);
	else if (number % 3 == 1)
		totals->result |= cuMemcpyDtoHAsync_v2(host, device, bytes, stream);
	else
		totals->result |= cuMemcpyDtoDAsync_v2(device, device + BYTES, bytes, stream);
	totals->copies++;
	totals->bytes += bytes;
}

static int goes_on(unsigned long done)
{
	return until_line ? !__atomic_load_n(&is_over, __ATOMIC_ACQUIRE) : done < operations;
}

static void *work(void *argument)
{
	struct totals *totals = argument;
	void *streams[2] = {NULL}, *exec;
	static __thread char host[BYTES];
	uint64_t device = 0;

	totals->result |= cuStreamCreate(&streams[0], 0);
	totals->result |= cuStreamCreate(&streams[1], 0);
	totals->result |= cuMemAlloc_v2(&device, 2 * BYTES);
	exec = make_graph(streams[0], device, host, &totals->result);
	for (unsigned long i = 0; goes_on(i); i++) {
		void *stream = streams[i / 2 % 2];

		if (i % 10 == 7) {
			copy(totals, i / 10, device, host, stream);
		} else if (i % 10 == 8) {
			totals->result |= cuMemsetD32Async(device, 1, 8 + i % 8, stream);
			totals->bytes += 4 * (8 + i % 8);
			totals->memsets++;
		} else if (i % 10 == 9) {
			totals->result |= cuGraphLaunch(exec, stream);
			totals->graph_launches++;
		} else {
			totals->result |= launch(stream, i);
			totals->kernels++;
		}
		if (pause_us)
			usleep(pause_us);
	}
	totals->result |= cuStreamSynchronize(streams[0]);
	totals->result |= cuMemFree_v2(device);
	return NULL;
}

static int read_arguments(int count, char **arguments)
{
	for (int i = 1; i < count; i++) {
		const char *value = i + 1 < count ? arguments[i + 1] : "";

		if (!strcmp(arguments[i], "--wait")) {
			must_wait = 1;
		} else if (!strcmp(arguments[i], "--fork")) {
			must_fork = 1;
		} else if (!strcmp(arguments[i], "--until-line")) {
			until_line = 1;
		} else {
			if (!strcmp(arguments[i], "--threads"))
				threads = (unsigned int)atoi(value);
			else if (!strcmp(arguments[i], "--operations"))
				operations = strtoul(value, NULL, 10);
			else if (!strcmp(arguments[i], "--pause"))
				pause_us = (unsigned int)atoi(value);
			else if (!strcmp(arguments[i], "--hold"))
				hold_ms = (unsigned int)atoi(value);
			else
				return 0;
			i++;
		}
	}
	return threads && threads <= MAX_THREADS;
}

/* A child that exits by itself, with the handlers that it inherited. */
static void fork_child(int *result)
{
	int status = 0;
	pid_t child = fork();

	if (child == 0)
		exit(0);
	*result |= waitpid(child, &status, 0) != child || status;
}

int main(int count, char **arguments)
{
	static const char *const names[KERNELS] = {"gemm", "_Z4normPfi", "softmax_with_a_longer_name"};
	static struct totals totals[MAX_THREADS];
	struct totals sum = {0};
	pthread_t ids[MAX_THREADS];
	void *module = NULL;

	if (!read_arguments(count, arguments))
		return 2;
	sum.result |= cuInit(0);
	sum.result |= cuModuleLoadData(&module, "image");
	for (unsigned int k = 0; k < KERNELS; k++)
		sum.result |= cuModuleGetFunction(&kernels[k], module, names[k]);
	if (must_wait && getchar() == EOF)
		return 3;
	for (unsigned int i = 0; i < threads; i++)
		sum.result |= pthread_create(&ids[i], NULL, work, &totals[i]);
	if (must_fork)
		fork_child(&sum.result);
	if (until_line)
		sum.result |= getchar() == EOF;
	__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
	for (unsigned int i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		sum.kernels += totals[i].kernels;
		sum.copies += totals[i].copies;
		sum.memsets += totals[i].memsets;
		sum.graph_launches += totals[i].graph_launches;
		sum.bytes += totals[i].bytes;
		sum.result |= totals[i].result;
	}
	if (hold_ms)
		usleep(hold_ms * 1000);
	printf("{\"pid\":%d,\"threads\":%u,\"kernels\":%lu,\"copies\":%lu,\"memsets\":%lu,"
	       "\"graph_launches\":%lu,\"bytes\":%lu}\n",
	       (int)getpid(), threads, sum.kernels, sum.copies, sum.memsets, sum.graph_launches, sum.bytes);
	return sum.result;
}
