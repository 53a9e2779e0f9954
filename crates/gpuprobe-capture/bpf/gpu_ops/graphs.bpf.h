/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Calls on graphs and on streams: what they create, change, launch and destroy. */
#ifndef GP_GRAPHS_BPF_H
#define GP_GRAPHS_BPF_H

#include "captures.bpf.h"
#include "graph_nodes.bpf.h"

/* errors of cuStreamEndCapture that leave the capture as it is */
enum {
	GP_CAPTURE_UNMATCHED = 903,
	GP_CAPTURE_WRONG_THREAD = 908,
};

/* The call is on this graph. */
static __always_inline void annotate_graph(struct gp_call *call, const struct gp_graph_size *size)
{
	struct gp_on_graph *on = &call->detail.graph;

	call->effect = GP_EFFECT_GRAPH;
	on->contents = size->contents;
	on->kernels = size->kernels < 0xffffffff ? size->kernels : 0xffffffff;
	on->disabled = size->disabled < 0xffff ? size->disabled : 0xffff;
	on->conditional = size->conditional < 0xff ? size->conditional : 0xff;
	on->incomplete = size->incomplete != 0;
}

static __always_inline void count_graph_launch(const struct gp_call *call, struct gp_graph_counts *counts,
					       const struct gp_graph_size *size)
{
	count_exec_launch(call, size->contents);
	__sync_fetch_and_add(&counts->derived, size->kernels * call->weight);
	if (size->incomplete)
		__sync_fetch_and_add(&counts->unknown, call->weight);
	if (size->disabled)
		__sync_fetch_and_add(&counts->disabled, size->disabled * call->weight);
	if (size->conditional)
		__sync_fetch_and_add(&counts->conditional, size->conditional * call->weight);
}

/* A graph launch has returned, successfully or not. */
GP_GLOBAL_FUNC int end_graph_launch(struct gp_thread *thread, struct gp_call *call,
				    const struct gp_function *function, bool failed)
{
	struct gp_graph_counts *counts;
	struct gp_stream *stream;
	struct gp_graph *exec;
	__u64 handle = 0;
	__u32 number;

	if (!thread || !call || !function)
		return 0;
	number = used_stream_row(thread, call, stream_of(call, function));
	stream = stream_row(number);
	argument(call, function->op_desc.graph, &handle);
	exec = find_graph(&execs, call, handle);
	if (exec && !failed)
		annotate_graph(call, &exec->size);
	if (stream && add_captured_graph(call, stream, handle, failed)) {
		call->flags |= GP_CAPTURED;
		return 0;
	}
	counts = graph_counts_of(call);
	if (!counts)
		return 0;
	if (failed) {
		__sync_fetch_and_add(&counts->errors, call->weight);
		return 0;
	}
	__sync_fetch_and_add(&counts->launches, call->weight);
	/* looked up again, because the verifier of Linux 6.1 does not remember that it was not NULL */
	exec = find_graph(&execs, call, handle);
	if (exec)
		count_graph_launch(call, counts, &exec->size);
	else
		__sync_fetch_and_add(&counts->unknown, call->weight);
	/* looked up again, because the verifier of Linux 6.1 does not remember that it was not NULL */
	stream = stream_row(number);
	if (stream)
		note_launch(thread, call, stream, true);
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
	annotate_graph(call, &graph->size);
	bpf_map_delete_elem(map, &key);
	return 0;
}

/* The call that was to destroy a graph or an executable graph failed. */
GP_GLOBAL_FUNC int cancel_destroy(const struct gp_call *call, const struct gp_function *function)
{
	struct gp_graph_size size = {};
	__u64 handle = 0;

	if (!call || !function || call->effect != GP_EFFECT_GRAPH)
		return 0;
	size.contents = call->detail.graph.contents;
	size.kernels = call->detail.graph.kernels;
	size.disabled = call->detail.graph.disabled;
	size.conditional = call->detail.graph.conditional;
	size.incomplete = call->detail.graph.incomplete;
	argument(call, function->op_desc.graph, &handle);
	if (function->op_desc.op_kind == GP_OP_GRAPH_DESTROY)
		put_graph(&graphs, call, handle, &size);
	else if (function->op_desc.op_kind == GP_OP_EXEC_DESTROY)
		put_graph(&execs, call, handle, &size);
	return 0;
}

/* A graph was created, empty or as a copy of another one. */
GP_GLOBAL_FUNC int create_graph(const struct gp_call *call, __u64 handle, __u64 original)
{
	struct gp_graph_size size = {};
	struct gp_graph *from;

	if (!call)
		return 0;
	from = original ? find_graph(&graphs, call, original) : NULL;
	if (from) {
		copy_contents(call, &size, &from->size);
	} else {
		size.contents = new_contents();
		size.incomplete = original != 0;
	}
	put_graph(&graphs, call, handle, &size);
	return 0;
}

/* A node of an executable graph got other parameters, which contain its type. */
static __always_inline void set_exec_node(const struct gp_call *call, __u64 exec, __u64 node, __u64 params,
					  __u32 kernel_at)
{
	__u32 type = type_in_params(params);
	__u64 child = 0;

	if (type == GP_NODE_KERNEL) {
		set_exec_kernel(call, exec, node, params + GP_NODE_PARAMS + kernel_at);
	} else if (type == GP_NODE_GRAPH) {
		bpf_probe_read_user(&child, sizeof(child), (void *)(params + GP_NODE_PARAMS));
		set_exec_child(call, exec, node, child);
	}
}

/* The handle that a call returned; 0 if it could not be read. */
static __always_inline __u64 output_of(const struct gp_call *call)
{
	return call->flags & GP_UNREAD_OUT ? 0 : call->out[0];
}

/* A call on graphs has succeeded. */
GP_GLOBAL_FUNC int after_graph_call(const struct gp_call *call, const struct gp_function *function)
{
	__u64 graph = 0, other = 0, params = 0;
	__u32 kernel_at;

	if (!call || !function)
		return 0;
	kernel_at = function->op_desc.shape;
	argument(call, function->op_desc.graph, &graph);
	argument(call, function->op_desc.other, &other);
	argument(call, function->op_desc.params, &params);
	switch (function->op_desc.op_kind) {
	case GP_OP_GRAPH_CREATE:
		create_graph(call, output_of(call), 0);
		break;
	case GP_OP_GRAPH_CLONE:
		create_graph(call, output_of(call), graph);
		break;
	case GP_OP_ADD_KERNEL:
		add_kernel_node(call, graph, params + kernel_at);
		break;
	case GP_OP_ADD_GRAPH:
		add_child_node(call, graph, other);
		break;
	case GP_OP_ADD_NODE:
		add_any_node(call, graph, params, kernel_at);
		break;
	case GP_OP_DESTROY_NODE:
		destroy_node(call, graph);
		break;
	case GP_OP_EXEC_CREATE:
		put_exec(call, output_of(call), graph);
		break;
	case GP_OP_EXEC_UPDATE:
		put_exec(call, other, graph);
		break;
	case GP_OP_GRAPH_DESTROY:
	case GP_OP_EXEC_DESTROY:
		if (call->effect == GP_EFFECT_GRAPH)
			forget_contents(call, call->detail.graph.contents);
		break;
	case GP_OP_SET_KERNEL:
		set_kernel(call, graph, params + kernel_at);
		break;
	case GP_OP_SET_NODE:
		if (type_in_params(params) == GP_NODE_KERNEL)
			set_kernel(call, graph, params + GP_NODE_PARAMS + kernel_at);
		break;
	case GP_OP_EXEC_SET_KERNEL:
		set_exec_kernel(call, graph, other, params + kernel_at);
		break;
	case GP_OP_EXEC_SET_NODE:
		set_exec_node(call, graph, other, params, kernel_at);
		break;
	case GP_OP_EXEC_SET_GRAPH:
		set_exec_child(call, graph, other, params);
		break;
	case GP_OP_ENABLE_NODE:
		argument(call, function->op_desc.count, &params);
		enable_node(call, graph, other, (__u32)params != 0);
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
