/* Graphs made by every method, on capturing and non-capturing streams. */
#include "launches.h"

#include <string.h>

/* CUgraphNodeParams: the kind first, and a child graph after four words of it */
struct node_params {
	int kind, reserved[3];
	void *child;
	char rest[232];
};

static unsigned int direct_row;
static void *kernel, *plain, *origin, *joined, *other, *event, *back;
static uint64_t device;

static void launch_on(void *stream, unsigned int times, int runs)
{
	for (unsigned int i = 0; i < times; i++)
		CHECK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	if (runs)
		ran(direct_row, times);
	else
		totals.captured += times;
}

static void launch_graph(void *exec, void *stream, unsigned int times, unsigned int kernels)
{
	for (unsigned int i = 0; i < times; i++)
		CHECK(cuGraphLaunch(exec, stream));
	totals.graph_launches += times;
	totals.derived += times * kernels;
}

/* Five kernels on two streams, and a copy that is captured too; other streams run meanwhile. */
static void *captured_on_two(void)
{
	static char host[512];
	void *graph = NULL;

	CHECK(cuStreamBeginCapture_v2(origin, 0));
	launch_on(origin, 3, 0);
	CHECK(cuEventRecord(event, origin));
	launch_on(joined, 1, 1);
	CHECK(cuStreamWaitEvent(joined, event, 0));
	launch_on(joined, 2, 0);
	CHECK(cuMemcpyHtoDAsync_v2(device, host, sizeof(host), joined));
	launch_on(plain, 1, 1);
	CHECK(cuEventRecord(back, joined));
	CHECK(cuStreamWaitEvent(origin, back, 0));
	CHECK(cuStreamEndCapture(origin, &graph));
	/* neither stream captures any more, and the event belongs to no capture when it is recorded again */
	launch_on(origin, 1, 1);
	launch_on(joined, 1, 1);
	CHECK(cuEventRecord(event, plain));
	CHECK(cuStreamWaitEvent(other, event, 0));
	launch_on(other, 1, 1);
	return graph;
}

void run_graphs(void)
{
	struct node_params params = {0};
	void *graph, *clone = NULL, *made = NULL, *node = NULL, *first = NULL, *second = NULL, *third = NULL;
	void *again = NULL, *nested = NULL;
	char kernel_params[64] = {0};

	kernel = kernel_of("direct", &direct_row);
	CHECK(cuStreamCreate(&plain, 0));
	CHECK(cuStreamCreate(&origin, 0));
	CHECK(cuStreamCreate(&joined, 0));
	CHECK(cuStreamCreate(&other, 0));
	CHECK(cuEventCreate(&event, 0));
	CHECK(cuEventCreate(&back, 0));
	CHECK(cuMemAlloc_v2(&device, 4096));

	graph = captured_on_two();
	CHECK(cuGraphInstantiateWithFlags(&first, graph, 0));
	launch_graph(first, plain, 4, 5);

	/* 5 of the clone, 1 and 1 by nodes, 5 by a child, 5 by another; one node is removed again */
	CHECK(cuGraphClone(&clone, graph));
	CHECK(cuGraphAddKernelNode_v2(&node, clone, NULL, 0, kernel_params));
	CHECK(cuGraphAddNode_v2(&node, clone, NULL, NULL, 0, &params));
	CHECK(cuGraphDestroyNode(node));
	CHECK(cuGraphAddNode_v2(&node, clone, NULL, NULL, 0, &params));
	CHECK(cuGraphAddChildGraphNode(&node, clone, NULL, 0, graph));
	params.kind = 4;
	params.child = graph;
	CHECK(cuGraphAddNode_v2(&node, clone, NULL, NULL, 0, &params));
	params.kind = 2; /* a memset */
	CHECK(cuGraphAddNode_v2(&node, clone, NULL, NULL, 0, &params));
	CHECK(cuGraphInstantiate_v2(&second, clone, NULL, NULL, 0));
	launch_graph(second, NULL, 3, 17);
	launch_graph(first, plain, 1, 5);
	CHECK(cuGraphExecUpdate_v2(first, clone, NULL));
	launch_graph(first, plain, 2, 17);

	/* a reused handle is another graph */
	CHECK(cuGraphExecDestroy(first));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuGraphCreate(&made, 0));
	CHECK(cuStreamBeginCaptureToGraph(other, made, NULL, NULL, 0, 0));
	launch_on(other, 2, 0);
	CHECK(cuStreamEndCapture(other, &graph));
	CHECK(cuStreamBeginCaptureToGraph(other, made, NULL, NULL, 0, 0));
	launch_on(other, 1, 0);
	/* a graph that is launched on a capturing stream becomes part of the captured graph */
	CHECK(cuGraphLaunch(second, other));
	totals.captured += 17;
	CHECK(cuStreamEndCapture(other, &graph));
	CHECK(cuGraphInstantiateWithParams(&third, made, NULL));
	launch_graph(third, other, 2, 20);

	/* the per-thread stream captures under all its names */
	CHECK(cuStreamBeginCapture_v2_ptsz((void *)2, 0));
	CHECK(cuLaunchKernel_ptsz(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	totals.captured++;
	launch_on(NULL, 1, 1);
	CHECK(cuStreamEndCapture_ptsz((void *)2, &again));
	CHECK(cuGraphInstantiateWithFlags(&nested, again, 0));
	launch_graph(nested, NULL, 10, 1);
	CHECK(cuStreamDestroy_v2(origin));
}
