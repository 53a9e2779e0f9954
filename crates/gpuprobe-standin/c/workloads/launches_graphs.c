/* Graphs made by every method, on capturing and non-capturing streams. The ledger has their kernels. */
#include "launches.h"

#include <string.h>

#define KERNELS 3
/* executable graphs that exist one after the other */
#define SUCCESSORS 200

#ifdef STANDIN_HIP
/* hipKernelNodeParams. HIP has no other handle in place of the function, and no conditional nodes. */
struct kernel_params {
	unsigned int block[3];
	void **extra;
	void *function;
	unsigned int grid[3];
	void **params;
	unsigned int shared;
};
_Static_assert(sizeof(struct kernel_params) == 64, "hipKernelNodeParams");
#define OTHER_HANDLE function
#define CONDITIONAL_NODES 0
#else
/* CUDA_KERNEL_NODE_PARAMS: a function, or a CUkernel in its place */
struct kernel_params {
	void *function;
	unsigned int dimensions[7];
	void **params, **extra;
	void *kernel, *context;
};
_Static_assert(sizeof(struct kernel_params) == 72, "CUDA_KERNEL_NODE_PARAMS");
#define OTHER_HANDLE kernel
#define CONDITIONAL_NODES 1
#endif

enum { NODE_KERNEL = 0, NODE_MEMSET = 2, NODE_CHILD = 4, NODE_CONDITIONAL = 13 };

/* CUgraphNodeParams: the type, and after four words of it what belongs to the type */
struct node_params {
	int type, reserved[3];
	union {
		struct kernel_params kernel;
		void *child;
		char rest[232];
	};
};

/* How often a launch runs each kernel. */
struct contents {
	unsigned int runs[KERNELS];
	unsigned int disabled, conditional;
};

static unsigned int rows[KERNELS];
static void *kernels[KERNELS];
static void *plain, *origin, *joined, *other, *event, *back;
static uint64_t device;

static unsigned int size_of(const struct contents *contents)
{
	unsigned int sum = 0;

	for (unsigned int k = 0; k < KERNELS; k++)
		sum += contents->runs[k];
	return sum;
}

static void add(struct contents *to, const struct contents *more)
{
	for (unsigned int k = 0; k < KERNELS; k++)
		to->runs[k] += more->runs[k];
	to->conditional += more->conditional;
}

static void launch_on(void *stream, unsigned int k, unsigned int times, struct contents *captured)
{
	for (unsigned int i = 0; i < times; i++)
		CHECK(cuLaunchKernel(kernels[k], 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	if (captured) {
		captured->runs[k] += times;
		totals.captured += times;
	} else {
		ran(rows[k], times);
	}
}

static void launch_graph(void *exec, void *stream, unsigned int times, const struct contents *contents)
{
	for (unsigned int i = 0; i < times; i++)
		CHECK(cuGraphLaunch(exec, stream));
	totals.graph_launches += times;
	totals.derived += times * size_of(contents);
	totals.disabled += times * contents->disabled;
	totals.conditional += times * contents->conditional;
	for (unsigned int k = 0; k < KERNELS; k++)
		totals.in_graphs[rows[k]] += times * contents->runs[k];
}

/* Five kernels on two streams, and a copy that is captured too; other streams run meanwhile. */
static void *captured_on_two(struct contents *contents)
{
	static char host[512];
	void *graph = NULL;

	CHECK(cuStreamBeginCapture_v2(origin, 0));
	launch_on(origin, 0, 3, contents);
	CHECK(cuEventRecord(event, origin));
	launch_on(joined, 0, 1, NULL);
	CHECK(cuStreamWaitEvent(joined, event, 0));
	launch_on(joined, 1, 2, contents);
	CHECK(cuMemcpyHtoDAsync_v2(device, host, sizeof(host), joined));
	launch_on(plain, 0, 1, NULL);
	CHECK(cuEventRecord(back, joined));
	CHECK(cuStreamWaitEvent(origin, back, 0));
	CHECK(cuStreamEndCapture(origin, &graph));
	/* neither stream captures any more, and the event belongs to no capture when it is recorded again */
	launch_on(origin, 0, 1, NULL);
	launch_on(joined, 0, 1, NULL);
	CHECK(cuEventRecord(event, plain));
	CHECK(cuStreamWaitEvent(other, event, 0));
	launch_on(other, 0, 1, NULL);
	return graph;
}

/* Adds a kernel node by one of the functions for it. */
static void *add_kernel(void *graph, unsigned int k, int by_type, struct contents *contents)
{
	struct node_params params = {.type = NODE_KERNEL};
	void *node = NULL;

	if (by_type) {
		/* the CUkernel counts if there is no function */
		params.kernel.OTHER_HANDLE = kernels[k];
		CHECK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
	} else {
		params.kernel.function = kernels[k];
		CHECK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params.kernel));
	}
	contents->runs[k]++;
	return node;
}

/* 5 of the clone, 2 by nodes, 5 by a child, 5 by another; one node is removed again */
static void *cloned(void *graph, const struct contents *original, struct contents *contents)
{
	struct node_params params = {.type = NODE_CHILD, .child = graph};
	void *clone = NULL, *node;

	CHECK(cuGraphClone(&clone, graph));
	add(contents, original);
	add_kernel(clone, 2, 0, contents);
	node = add_kernel(clone, 1, 1, contents);
	CHECK(cuGraphDestroyNode(node));
	contents->runs[1]--;
	add_kernel(clone, 2, 1, contents);
	CHECK(cuGraphAddChildGraphNode(&node, clone, NULL, 0, graph));
	add(contents, original);
	CHECK(cuGraphAddNode_v2(&node, clone, NULL, NULL, 0, &params));
	add(contents, original);
	params.type = NODE_MEMSET;
	CHECK(cuGraphAddNode_v2(&node, clone, NULL, NULL, 0, &params));
	return clone;
}

/* Nodes that change after they were added, in the graph and in its executable graph. */
static void run_changed_nodes(void *child, const struct contents *of_child)
{
	struct node_params params = {.type = NODE_CONDITIONAL};
	struct contents contents = {0}, none = {0};
	void *graph = NULL, *exec = NULL, *first, *second, *nested = NULL, *empty = NULL, *node = NULL;

	CHECK(cuGraphCreate(&graph, 0));
	first = add_kernel(graph, 0, 0, &contents);
	second = add_kernel(graph, 1, 1, &contents);
	if (CONDITIONAL_NODES) {
		CHECK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
		contents.conditional = 1;
	}
	params.kernel = (struct kernel_params){.function = kernels[2]};
	CHECK(cuGraphKernelNodeSetParams_v2(first, &params.kernel));
	contents.runs[0]--;
	contents.runs[2]++;
	CHECK(cuGraphAddChildGraphNode(&nested, graph, NULL, 0, child));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	add(&contents, of_child);
	launch_graph(exec, plain, 3, &contents);

	/* a change of the graph concerns its executable graph only when that is changed too */
	params.kernel.function = kernels[1];
	CHECK(cuGraphKernelNodeSetParams_v2(first, &params.kernel));
	launch_graph(exec, plain, 1, &contents);
	CHECK(cuGraphExecKernelNodeSetParams_v2(exec, first, &params.kernel));
	contents.runs[2]--;
	contents.runs[1]++;
	launch_graph(exec, plain, 2, &contents);

	params.kernel.function = kernels[0];
	CHECK(cuGraphExecKernelNodeSetParams_v2(exec, second, &params.kernel));
	contents.runs[1]--;
	contents.runs[0]++;
	launch_graph(exec, plain, 2, &contents);
	CHECK(cuGraphNodeSetEnabled(exec, second, 0));
	/* a second time changes nothing */
	CHECK(cuGraphNodeSetEnabled(exec, second, 0));
	contents.runs[0]--;
	contents.disabled = 1;
	launch_graph(exec, plain, 4, &contents);
	CHECK(cuGraphNodeSetEnabled(exec, second, 1));
	contents.runs[0]++;
	contents.disabled = 0;
	launch_graph(exec, plain, 1, &contents);

	CHECK(cuGraphCreate(&empty, 0));
	add_kernel(empty, 2, 0, &none);
	CHECK(cuGraphExecChildGraphNodeSetParams(exec, nested, empty));
	for (unsigned int k = 0; k < KERNELS; k++)
		contents.runs[k] -= of_child->runs[k];
	add(&contents, &none);
	launch_graph(exec, plain, 5, &contents);
	CHECK(cuGraphExecDestroy(exec));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuGraphDestroy(empty));
}

/* A node that is added to a graph while the graph is being captured. */
static void run_node_in_capture(void)
{
	struct contents contents = {0};
	void *capturing = NULL, *graph = NULL, *exec = NULL;
	uint64_t id = 0;
	int status = 0;

	CHECK(cuStreamBeginCapture_v2(other, 0));
	launch_on(other, 1, 1, &contents);
	CHECK(cuStreamGetCaptureInfo_v2(other, &status, &id, &capturing, NULL, NULL));
	add_kernel(capturing, 2, 0, &contents);
	launch_on(other, 0, 1, &contents);
	CHECK(cuStreamEndCapture(other, &graph));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	launch_graph(exec, plain, 2, &contents);
}

/* Executable graphs that are created, launched and destroyed again, with the same handle each time. */
static void run_successors(void *graph, const struct contents *contents)
{
	for (unsigned int i = 0; i < SUCCESSORS; i++) {
		void *exec = NULL;

		CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
		launch_graph(exec, plain, 1 + i % 3, contents);
		CHECK(cuGraphExecDestroy(exec));
	}
}

void run_graphs(void)
{
	static const char *const names[KERNELS] = {"direct", "gemm", "norm"};
	struct contents captured = {0}, in_clone = {0}, into = {0}, of_thread = {0};
	void *graph, *clone, *made = NULL, *first = NULL, *second = NULL, *third = NULL;
	void *again = NULL, *nested = NULL;

	for (unsigned int k = 0; k < KERNELS; k++)
		kernels[k] = kernel_of(names[k], &rows[k]);
	CHECK(cuStreamCreate(&plain, 0));
	CHECK(cuStreamCreate(&origin, 0));
	CHECK(cuStreamCreate(&joined, 0));
	CHECK(cuStreamCreate(&other, 0));
	CHECK(cuEventCreate(&event, 0));
	CHECK(cuEventCreate(&back, 0));
	CHECK(cuMemAlloc_v2(&device, 4096));

	graph = captured_on_two(&captured);
	CHECK(cuGraphInstantiateWithFlags(&first, graph, 0));
	launch_graph(first, plain, 4, &captured);

	clone = cloned(graph, &captured, &in_clone);
	CHECK(cuGraphInstantiate_v2(&second, clone, NULL, NULL, 0));
	launch_graph(second, NULL, 3, &in_clone);
	launch_graph(first, plain, 1, &captured);
	CHECK(cuGraphExecUpdate_v2(first, clone, NULL));
	launch_graph(first, plain, 2, &in_clone);
	run_successors(graph, &captured);
	run_changed_nodes(graph, &captured);
	run_node_in_capture();

	/* a reused handle is another graph */
	CHECK(cuGraphExecDestroy(first));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuGraphCreate(&made, 0));
	CHECK(cuStreamBeginCaptureToGraph(other, made, NULL, NULL, 0, 0));
	launch_on(other, 0, 2, &into);
	CHECK(cuStreamEndCapture(other, &graph));
	CHECK(cuStreamBeginCaptureToGraph(other, made, NULL, NULL, 0, 0));
	launch_on(other, 1, 1, &into);
	/* a graph that is launched on a capturing stream becomes part of the captured graph */
	CHECK(cuGraphLaunch(second, other));
	totals.captured += size_of(&in_clone);
	add(&into, &in_clone);
	CHECK(cuStreamEndCapture(other, &graph));
	CHECK(cuGraphInstantiateWithParams(&third, made, NULL));
	launch_graph(third, other, 2, &into);

	/* the per-thread stream captures under all its names */
	CHECK(cuStreamBeginCapture_v2_ptsz((void *)2, 0));
	CHECK(cuLaunchKernel_ptsz(kernels[0], 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	totals.captured++;
	of_thread.runs[0] = 1;
	launch_on(NULL, 0, 1, NULL);
	CHECK(cuStreamEndCapture_ptsz((void *)2, &again));
	CHECK(cuGraphInstantiateWithFlags(&nested, again, 0));
	launch_graph(nested, NULL, 10, &of_thread);
	CHECK(cuStreamDestroy_v2(origin));
}
