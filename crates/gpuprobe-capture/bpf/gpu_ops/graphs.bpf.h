/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Graphs. What is submitted to a stream in capture mode is not run; it becomes part of a graph and runs
 * each time the graph is launched. A capture spreads to other streams through events that are recorded in
 * it. The number of kernels of a graph is counted while the graph is built.
 */
#ifndef GP_GRAPHS_BPF_H
#define GP_GRAPHS_BPF_H

#include "streams.bpf.h"

/* types of nodes, and the offset of the child graph, in CUgraphNodeParams */
#define GP_NODE_KERNEL 0
#define GP_NODE_GRAPH 4
#define GP_NODE_CHILD 16

enum {
	GP_CAPTURE_UNMATCHED = 903,
	GP_CAPTURE_WRONG_THREAD = 908,
};

static __always_inline struct gp_capture *capture_of(const struct gp_call *call, __u64 number)
{
	struct gp_context_key key = context_key(process_of(call), number);

	return number ? bpf_map_lookup_elem(&captures, &key) : NULL;
}

/* The capture that a stream takes part in now. */
static __always_inline struct gp_capture *capture_on(const struct gp_call *call, struct gp_stream *stream)
{
	struct gp_capture *capture;

	if (!stream->capture)
		return NULL;
	capture = capture_of(call, stream->capture);
	/* the capture has ended; streams that it spread to are not updated when that happens */
	if (!capture)
		stream->capture = 0;
	return capture;
}

static __always_inline struct gp_graph_counts *graph_counts_of(const struct gp_call *call)
{
	struct gp_process_key key = process_of(call);
	struct gp_graph_counts *counts = bpf_map_lookup_elem(&graph_counts, &key);

	if (!counts) {
		static const struct gp_graph_counts none;

		bpf_map_update_elem(&graph_counts, &key, &none, BPF_NOEXIST);
		counts = bpf_map_lookup_elem(&graph_counts, &key);
		if (!counts)
			count_loss(GP_LOSS_GPU_OPS_FULL);
	}
	return counts;
}

GP_GLOBAL_FUNC int add_captured(const struct gp_call *call, struct gp_stream *stream, __u64 kernels,
				bool failed)
{
	struct gp_graph_counts *counts;
	struct gp_capture *capture;

	if (!call || !stream)
		return 0;
	capture = capture_on(call, stream);
	if (!capture)
		return 0;
	if (failed)
		return 1;
	__sync_fetch_and_add(&capture->kernels, kernels);
	counts = gp_config.rows ? graph_counts_of(call) : NULL;
	if (counts)
		__sync_fetch_and_add(&counts->captured, kernels);
	return 1;
}

/* Whether an operation on a stream was captured and not run. If so, its kernels belong to a graph. */
static __always_inline bool is_captured(const struct gp_call *call, struct gp_stream *stream, __u64 kernels,
					bool failed)
{
	return stream->capture && add_captured(call, stream, kernels, failed);
}

/* How many kernels a graph or an executable graph has. */
static __always_inline __u64 kernel_count_of(void *map, const struct gp_call *call, __u64 handle)
{
	struct gp_live_key key = key_of(call, handle);
	struct gp_graph *graph = bpf_map_lookup_elem(map, &key);

	return graph ? graph->kernels : 0;
}

static __always_inline void set_graph(void *map, const struct gp_call *call, __u64 handle, __u64 kernels)
{
	struct gp_live_key key = key_of(call, handle);
	struct gp_graph graph = {.kernels = kernels};

	if (handle && bpf_map_update_elem(map, &key, &graph, BPF_ANY))
		count_loss(GP_LOSS_GPU_OPS_FULL);
}

static __always_inline void add_kernels(const struct gp_call *call, __u64 handle, __u64 kernels)
{
	struct gp_live_key key = key_of(call, handle);
	struct gp_graph *graph = bpf_map_lookup_elem(&graphs, &key);

	if (graph)
		__sync_fetch_and_add(&graph->kernels, kernels);
	else
		set_graph(&graphs, call, handle, kernels);
}

/* A node with kernels was added. Its handle is known only if the node was created by a call of its own. */
static __always_inline void add_node(const struct gp_call *call, __u64 graph, __u64 kernels)
{
	struct gp_live_key key = key_of(call, call->out[0]);
	struct gp_node node = {.graph = graph, .kernels = kernels};

	add_kernels(call, graph, kernels);
	if (!(call->flags & GP_UNREAD_OUT) && bpf_map_update_elem(&nodes, &key, &node, BPF_ANY))
		count_loss(GP_LOSS_GPU_OPS_FULL);
}

/* A node of any type: its parameters contain the type. */
static __always_inline void add_any_node(const struct gp_call *call, const struct gp_function *function,
					 __u64 graph)
{
	__u64 at = 0, child = 0;
	__u32 type = ~0;

	if (!argument(call, function->op_desc.params, &at) ||
	    bpf_probe_read_user(&type, sizeof(type), (void *)at)) {
		count_loss(GP_LOSS_UNREAD_GPU_OP);
	} else if (type == GP_NODE_KERNEL) {
		add_node(call, graph, 1);
	} else if (type == GP_NODE_GRAPH) {
		bpf_probe_read_user(&child, sizeof(child), (void *)(at + GP_NODE_CHILD));
		add_node(call, graph, kernel_count_of(&graphs, call, child));
	}
}

static __always_inline void destroy_node(const struct gp_call *call, __u64 handle)
{
	struct gp_live_key key = key_of(call, handle);
	struct gp_node *node = bpf_map_lookup_elem(&nodes, &key);

	if (!node)
		return;
	add_kernels(call, node->graph, -node->kernels);
	bpf_map_delete_elem(&nodes, &key);
}

static __always_inline void begin_capture(struct gp_stream *stream, const struct gp_call *call, __u64 graph,
					  bool replaces)
{
	__u64 number = __sync_fetch_and_add(&gp_next_id, 1);
	struct gp_context_key key = context_key(process_of(call), number);
	struct gp_capture capture = {.graph = graph, .replaces = replaces};

	gp_has_captured = 1;
	if (bpf_map_update_elem(&captures, &key, &capture, BPF_NOEXIST))
		count_loss(GP_LOSS_GPU_OPS_FULL);
	else
		stream->capture = number;
}

/* The captured operations become a graph, unless the capture failed. */
static __always_inline void end_capture(struct gp_stream *stream, const struct gp_call *call, bool failed)
{
	struct gp_capture *capture = capture_on(call, stream);
	struct gp_context_key key;

	if (!capture)
		return;
	if (!failed && !(call->flags & GP_UNREAD_OUT)) {
		if (capture->graph && !capture->replaces)
			add_kernels(call, capture->graph, capture->kernels);
		else
			set_graph(&graphs, call, capture->graph ? capture->graph : call->out[0],
				  capture->kernels);
	}
	key = context_key(process_of(call), stream->capture);
	bpf_map_delete_elem(&captures, &key);
	stream->capture = 0;
}

/* An event belongs to the capture that it was recorded in, until it is recorded elsewhere. */
static __always_inline void record_event(const struct gp_call *call, struct gp_stream *stream, __u64 event)
{
	struct gp_live_key key = key_of(call, event);

	if (!capture_on(call, stream)) {
		bpf_map_delete_elem(&recorded, &key);
		return;
	}
	if (bpf_map_update_elem(&recorded, &key, &stream->capture, BPF_ANY))
		count_loss(GP_LOSS_GPU_OPS_FULL);
}

/* A destroyed event belongs to no capture: its handle may be reused. */
static __always_inline void forget_event(const struct gp_call *call, const struct gp_function *function)
{
	struct gp_live_key key;
	__u64 event = 0;

	argument(call, function->op_desc.other, &event);
	key = key_of(call, event);
	bpf_map_delete_elem(&recorded, &key);
}

/* A stream that waits for such an event takes part in the capture from then on. */
static __always_inline void wait_for_event(const struct gp_call *call, struct gp_stream *stream, __u64 event)
{
	struct gp_live_key key = key_of(call, event);
	__u64 *number = bpf_map_lookup_elem(&recorded, &key);

	if (number && capture_of(call, *number))
		stream->capture = *number;
}

/* A graph launch has returned, successfully or not. */
GP_GLOBAL_FUNC int end_graph_launch(struct gp_thread *thread, struct gp_call *call,
				    const struct gp_function *function, bool failed)
{
	struct gp_graph_counts *counts;
	struct gp_stream *stream;
	struct gp_live_key key;
	struct gp_graph *exec;
	__u64 handle = 0;
	__u32 number;

	if (!thread || !call || !function)
		return 0;
	number = used_stream_row(thread, call, stream_of(call, function));
	stream = stream_row(number);
	argument(call, function->op_desc.graph, &handle);
	key = key_of(call, handle);
	exec = bpf_map_lookup_elem(&execs, &key);
	if (exec && !failed)
		annotate_kernels(call, exec->kernels);
	if (stream && is_captured(call, stream, exec ? exec->kernels : 0, failed)) {
		call->flags |= GP_CAPTURED;
		return 0;
	}
	counts = graph_counts_of(call);
	if (!counts)
		return 0;
	if (failed) {
		__sync_fetch_and_add(&counts->errors, 1);
		return 0;
	}
	__sync_fetch_and_add(&counts->launches, 1);
	if (exec)
		__sync_fetch_and_add(&counts->derived, exec->kernels);
	else
		__sync_fetch_and_add(&counts->unknown, 1);
	/* looked up again, because the verifier of Linux 6.1 does not remember that it was not NULL */
	stream = stream_row(number);
	if (stream)
		note_launch(thread, call, stream);
	return 0;
}

/*
 * An object is removed from its table when the call that destroys it begins: its handle may be reused by
 * another thread before the call returns.
 */
GP_GLOBAL_FUNC int begin_destroy(struct gp_thread *thread, struct gp_call *call,
				 const struct gp_function *function)
{
	struct gp_live_key key;
	struct gp_graph *graph;
	__u64 handle = 0;
	void *map;

	if (!thread || !call || !function)
		return 0;
	if (function->op_desc.op_kind == GP_OP_STREAM_DESTROY) {
		struct gp_stream *stream = used_stream(thread, call, stream_of(call, function));

		if (stream) {
			stream->launched_ns = 0;
			stream->synced_ns = 0;
			stream->capture = 0;
		}
		return 0;
	}
	map = function->op_desc.op_kind == GP_OP_GRAPH_DESTROY ? (void *)&graphs : (void *)&execs;
	argument(call, function->op_desc.graph, &handle);
	key = key_of(call, handle);
	graph = bpf_map_lookup_elem(map, &key);
	if (!graph)
		return 0;
	/* to restore it if the call fails */
	annotate_kernels(call, graph->kernels);
	bpf_map_delete_elem(map, &key);
	return 0;
}

static __always_inline void cancel_destroy(const struct gp_call *call, const struct gp_function *function)
{
	__u64 handle = 0;

	argument(call, function->op_desc.graph, &handle);
	if (call->effect != GP_EFFECT_GRAPH)
		return;
	if (function->op_desc.op_kind == GP_OP_GRAPH_DESTROY)
		set_graph(&graphs, call, handle, call->detail.graph.kernels);
	else if (function->op_desc.op_kind == GP_OP_EXEC_DESTROY)
		set_graph(&execs, call, handle, call->detail.graph.kernels);
}

/* A call on graphs has succeeded. */
GP_GLOBAL_FUNC int after_graph_call(const struct gp_call *call, const struct gp_function *function)
{
	__u64 graph = 0, other = 0, out;

	if (!call || !function)
		return 0;
	out = call->flags & GP_UNREAD_OUT ? 0 : call->out[0];
	argument(call, function->op_desc.graph, &graph);
	argument(call, function->op_desc.other, &other);
	switch (function->op_desc.op_kind) {
	case GP_OP_GRAPH_CREATE:
		set_graph(&graphs, call, out, 0);
		break;
	case GP_OP_GRAPH_CLONE:
		set_graph(&graphs, call, out, kernel_count_of(&graphs, call, graph));
		break;
	case GP_OP_ADD_KERNEL:
		add_node(call, graph, 1);
		break;
	case GP_OP_ADD_GRAPH:
		add_node(call, graph, kernel_count_of(&graphs, call, other));
		break;
	case GP_OP_ADD_NODE:
		add_any_node(call, function, graph);
		break;
	case GP_OP_DESTROY_NODE:
		destroy_node(call, graph);
		break;
	case GP_OP_EXEC_CREATE:
		set_graph(&execs, call, out, kernel_count_of(&graphs, call, graph));
		break;
	case GP_OP_EXEC_UPDATE:
		set_graph(&execs, call, other, kernel_count_of(&graphs, call, graph));
		break;
	}
	return 0;
}

/* A call on a stream has returned. */
GP_GLOBAL_FUNC int after_stream_call(struct gp_thread *thread, const struct gp_call *call,
				     const struct gp_function *function, bool failed)
{
	__u64 graph = 0, event = 0;
	struct gp_stream *stream;
	__u32 status;

	if (!thread || !call || !function)
		return 0;
	stream = used_stream(thread, call, stream_of(call, function));
	if (!stream)
		return 0;
	status = call->result;
	argument(call, function->op_desc.graph, &graph);
	argument(call, function->op_desc.other, &event);
	if (function->op_desc.op_kind == GP_OP_CAPTURE_END) {
		/* these two errors leave the capture as it is */
		if (status != GP_CAPTURE_UNMATCHED && status != GP_CAPTURE_WRONG_THREAD)
			end_capture(stream, call, failed);
		return 0;
	}
	if (failed)
		return 0;
	switch (function->op_desc.op_kind) {
	case GP_OP_SYNC_STREAM:
		note_sync(thread, call, stream);
		break;
	case GP_OP_EVENT_RECORD:
		record_event(call, stream, event);
		break;
	case GP_OP_EVENT_WAIT:
		wait_for_event(call, stream, event);
		break;
	case GP_OP_CAPTURE_BEGIN:
	case GP_OP_CAPTURE_ADD:
	case GP_OP_CAPTURE_AGAIN:
		begin_capture(stream, call, graph, function->op_desc.op_kind == GP_OP_CAPTURE_AGAIN);
		break;
	}
	return 0;
}

#endif
