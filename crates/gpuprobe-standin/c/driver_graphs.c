/*
 * Captures and graphs of the stand-in driver. A graph has the operations of the stream that began its capture
 * and its kernel nodes; the other nodes, and the operations of streams that joined a capture, are not kept.
 */
#include "driver.h"

#include <stdlib.h>

#include "gpu_op.h"

/* The operations of a graph or executable graph. */
struct graph {
	struct graph *next;
	void *handle;
	struct gpu_op *ops;
	unsigned int count;
};

static struct spinlock graphs_lock;
static struct graph *graphs;

#define MAX_CAPTURES 64
static struct spinlock captures_lock;
/* Capturing streams, and the graphs they capture into. */
static void *captures[MAX_CAPTURES];
static void *captured_into[MAX_CAPTURES];
static unsigned int capture_count;

static struct graph **graph_place(void *handle)
{
	struct graph **place = &graphs;

	while (*place && (*place)->handle != handle)
		place = &(*place)->next;
	return place;
}

static void append(void *handle, const struct gpu_op *ops, unsigned int count)
{
	struct graph **place, *graph;
	struct gpu_op *longer;

	spin_lock(&graphs_lock);
	place = graph_place(handle);
	if (!*place)
		*place = calloc(1, sizeof(*graph));
	graph = *place;
	longer = graph ? realloc(graph->ops, (graph->count + count) * sizeof(*ops)) : NULL;
	if (longer) {
		graph->handle = handle;
		graph->ops = longer;
		memcpy(longer + graph->count, ops, count * sizeof(*ops));
		graph->count += count;
	}
	spin_unlock(&graphs_lock);
}

/* A copy of a graph's operations, for the caller to free. */
static struct gpu_op *operations(void *handle, unsigned int *count)
{
	struct gpu_op *copy = NULL;
	struct graph *graph;

	spin_lock(&graphs_lock);
	graph = *graph_place(handle);
	*count = graph ? graph->count : 0;
	if (*count)
		copy = malloc(*count * sizeof(*copy));
	if (copy)
		memcpy(copy, graph->ops, *count * sizeof(*copy));
	else
		*count = 0;
	spin_unlock(&graphs_lock);
	return copy;
}

static void forget(void *handle)
{
	struct graph **place, *graph;

	spin_lock(&graphs_lock);
	place = graph_place(handle);
	graph = *place;
	if (graph)
		*place = graph->next;
	spin_unlock(&graphs_lock);
	if (graph)
		free(graph->ops);
	free(graph);
}

static int copied(void **out, void *from, enum handle_kind kind)
{
	unsigned int count;
	struct gpu_op *ops;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = handle_new(kind);
	ops = operations(from, &count);
	if (ops)
		append(*out, ops, count);
	free(ops);
	return CUDA_SUCCESS;
}

NEW_HANDLE(cuGraphCreate, HANDLE_GRAPH)
NEW_HANDLE(cuGraphAddChildGraphNode, HANDLE_NODE)
NEW_HANDLE(cuGraphAddNode, HANDLE_NODE)
NEW_HANDLE(cuGraphAddNode_v2, HANDLE_NODE)

#define COPY(function, kind)                                                                                 \
	int impl_##function(void **out, void *from)                                                          \
	{                                                                                                    \
		ENTER(function);                                                                             \
		return copied(out, from, kind);                                                              \
	}

COPY(cuGraphClone, HANDLE_GRAPH)
COPY(cuGraphInstantiate, HANDLE_EXEC)
COPY(cuGraphInstantiate_v2, HANDLE_EXEC)
COPY(cuGraphInstantiateWithFlags, HANDLE_EXEC)
COPY(cuGraphInstantiateWithParams, HANDLE_EXEC)

/* CUDA_KERNEL_NODE_PARAMS, up to the fields that both versions have */
struct kernel_node {
	const void *function;
	unsigned int grid[3], block[3], shared_bytes;
};

static int add_kernel_node(void **node, void *graph, const struct kernel_node *params)
{
	struct gpu_op op = {.kind = GPU_OP_KERNEL};

	if (!node)
		return CUDA_ERROR_INVALID_VALUE;
	*node = handle_new(HANDLE_NODE);
	if (!params || !params->function)
		return CUDA_SUCCESS;
	op.name = kernel_name(params->function);
	memcpy(op.grid, params->grid, sizeof(op.grid));
	memcpy(op.block, params->block, sizeof(op.block));
	op.shared_bytes = params->shared_bytes;
	append(graph, &op, 1);
	return CUDA_SUCCESS;
}

int impl_cuGraphAddKernelNode(void **node, void *graph, const void *dependencies, size_t count,
			      const struct kernel_node *params)
{
	(void)dependencies;
	(void)count;
	ENTER(cuGraphAddKernelNode);
	return add_kernel_node(node, graph, params);
}

int impl_cuGraphAddKernelNode_v2(void **node, void *graph, const void *dependencies, size_t count,
				 const struct kernel_node *params)
{
	(void)dependencies;
	(void)count;
	ENTER(cuGraphAddKernelNode_v2);
	return add_kernel_node(node, graph, params);
}

/* The row of a capturing stream (or, for NULL, a free row); NULL if there is none. */
static void **capture_row(void *stream)
{
	for (unsigned int i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i] == stream)
			return &captures[i];
	}
	return NULL;
}

int capture_is_active(void)
{
	return __atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) != 0;
}

int capture_op(void *stream, const struct gpu_op *op)
{
	void **row, *into = NULL;

	if (!capture_is_active() || !stream)
		return 0;
	spin_lock(&captures_lock);
	row = capture_row(stream);
	if (row)
		into = captured_into[row - captures];
	spin_unlock(&captures_lock);
	if (into)
		append(into, op, 1);
	return into != NULL;
}

static int begin_capture(void *stream, void *graph)
{
	void **row = NULL;

	spin_lock(&captures_lock);
	if (stream && !capture_row(stream))
		row = capture_row(NULL);
	if (row) {
		*row = stream;
		captured_into[row - captures] = graph ? graph : handle_new(HANDLE_GRAPH);
		__atomic_add_fetch(&capture_count, 1, __ATOMIC_RELEASE);
	}
	spin_unlock(&captures_lock);
	return row ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

int impl_cuStreamBeginCapture_v2(void *stream, int mode)
{
	(void)mode;
	ENTER(cuStreamBeginCapture_v2);
	return begin_capture(stream, NULL);
}

int impl_cuStreamBeginCapture(void *stream)
{
	ENTER(cuStreamBeginCapture);
	return begin_capture(stream, NULL);
}

int impl_cuStreamBeginCaptureToGraph(void *stream, void *graph)
{
	ENTER(cuStreamBeginCaptureToGraph);
	return graph ? begin_capture(stream, graph) : CUDA_ERROR_INVALID_VALUE;
}

int impl_cuStreamEndCapture(void *stream, void **graph)
{
	void **row, *into = NULL;

	ENTER(cuStreamEndCapture);
	spin_lock(&captures_lock);
	row = stream ? capture_row(stream) : NULL;
	if (row) {
		into = captured_into[row - captures];
		*row = NULL;
		__atomic_sub_fetch(&capture_count, 1, __ATOMIC_RELEASE);
	}
	spin_unlock(&captures_lock);
	if (!row)
		return CUDA_ERROR_ILLEGAL_STATE;
	*graph = into;
	return CUDA_SUCCESS;
}

int impl_cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph)
{
	void **row;

	ENTER(cuStreamGetCaptureInfo_v2);
	spin_lock(&captures_lock);
	row = stream ? capture_row(stream) : NULL;
	*status = row != NULL;
	if (id && row)
		*id = row - captures + 1;
	if (graph && row)
		*graph = captured_into[row - captures];
	spin_unlock(&captures_lock);
	return CUDA_SUCCESS;
}

int impl_cuStreamIsCapturing(void *stream, int *status)
{
	ENTER(cuStreamIsCapturing);
	spin_lock(&captures_lock);
	*status = stream && capture_row(stream);
	spin_unlock(&captures_lock);
	return CUDA_SUCCESS;
}

int impl_cuGraphLaunch(void *exec, void *stream)
{
	unsigned int count;
	struct gpu_op *ops;
	int was_captured = 0;

	ENTER(cuGraphLaunch);
	if (LIKELY(!gpu_is_observed()))
		return CUDA_SUCCESS;
	ops = operations(exec, &count);
	for (unsigned int i = 0; i < count; i++)
		was_captured |= capture_op(stream, &ops[i]);
	if (!was_captured)
		gpu_submit_graph(stream, handle_number(exec), ops, count);
	free(ops);
	return CUDA_SUCCESS;
}

int impl_cuGraphDestroy(void *graph)
{
	ENTER(cuGraphDestroy);
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	forget(graph);
	handle_free(HANDLE_GRAPH, graph);
	LEAVE(cuGraphDestroy);
	return CUDA_SUCCESS;
}

int impl_cuGraphExecDestroy(void *exec)
{
	ENTER(cuGraphExecDestroy);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	forget(exec);
	handle_free(HANDLE_EXEC, exec);
	LEAVE(cuGraphExecDestroy);
	return CUDA_SUCCESS;
}
