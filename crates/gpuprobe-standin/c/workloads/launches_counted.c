/* Many launches by many threads, and a graph of many kernels that was captured on two streams. */
#include "launches.h"

#include <pthread.h>
#include <stdio.h>

#define COUNTED_KERNELS 50
#define GRAPH_KERNELS 1000
#define GRAPH_LAUNCHES 40

static void *functions[COUNTED_KERNELS];
static unsigned int rows[COUNTED_KERNELS];

struct part {
	pthread_t thread;
	unsigned long launches;
	unsigned int seed;
};

/* A thread with its own stream; every fourth launch is on the shared stream. */
static void *launch_all(void *argument)
{
	const struct part *part = argument;
	unsigned long counts[COUNTED_KERNELS] = {0};
	unsigned int random = part->seed;
	void *own = NULL;

	CHECK(cuStreamCreate(&own, 0));
	for (unsigned long i = 0; i < part->launches; i++) {
		unsigned int k;

		random = random * 1664525 + 1013904223;
		k = (random >> 8) % COUNTED_KERNELS;
		CHECK(cuLaunchKernel(functions[k], 1 + k, 1, 1, 64, 1, 1, 0, i % 4 ? own : NULL, NULL, NULL));
		counts[k]++;
	}
	for (unsigned int k = 0; k < COUNTED_KERNELS; k++)
		ran(rows[k], counts[k]);
	return NULL;
}

static void launch_graph(void)
{
	void *origin = NULL, *joined = NULL, *fork = NULL, *join = NULL, *graph = NULL, *exec = NULL;

	CHECK(cuStreamCreate(&origin, 0));
	CHECK(cuStreamCreate(&joined, 0));
	CHECK(cuEventCreate(&fork, 0));
	CHECK(cuEventCreate(&join, 0));
	CHECK(cuStreamBeginCapture_v2(origin, 0));
	CHECK(cuEventRecord(fork, origin));
	CHECK(cuStreamWaitEvent(joined, fork, 0));
	for (unsigned int i = 0; i < GRAPH_KERNELS; i++)
		CHECK(cuLaunchKernel(functions[i % COUNTED_KERNELS], 1, 1, 1, 64, 1, 1, 0,
				     i % 2 ? joined : origin, NULL, NULL));
	CHECK(cuEventRecord(join, joined));
	CHECK(cuStreamWaitEvent(origin, join, 0));
	CHECK(cuStreamEndCapture(origin, &graph));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned int i = 0; i < GRAPH_LAUNCHES; i++)
		CHECK(cuGraphLaunch(exec, i % 2 ? joined : origin));
	totals.captured += GRAPH_KERNELS;
	totals.graph_launches += GRAPH_LAUNCHES;
	totals.derived += GRAPH_LAUNCHES * GRAPH_KERNELS;
	for (unsigned int k = 0; k < COUNTED_KERNELS; k++)
		totals.in_graphs[rows[k]] += GRAPH_LAUNCHES * (GRAPH_KERNELS / COUNTED_KERNELS);
}

void run_counted(unsigned int threads, unsigned long launches)
{
	struct part parts[64];
	char name[32];

	if (!threads || threads > 64)
		return;
	for (unsigned int k = 0; k < COUNTED_KERNELS; k++) {
		snprintf(name, sizeof(name), "counted_%02u", k);
		functions[k] = kernel_of(name, &rows[k]);
	}
	for (unsigned int i = 0; i < threads; i++) {
		parts[i].launches = launches / threads + (i < launches % threads);
		parts[i].seed = 7 + i;
		pthread_create(&parts[i].thread, NULL, launch_all, &parts[i]);
	}
	launch_graph();
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(parts[i].thread, NULL);
}
