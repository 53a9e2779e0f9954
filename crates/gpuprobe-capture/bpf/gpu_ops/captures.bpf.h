/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Captures. What is submitted to a stream in capture mode is not run; it becomes part of a graph and runs
 * each time the graph is launched. A capture spreads to other streams through events that are recorded in
 * it.
 */
#ifndef GP_CAPTURES_BPF_H
#define GP_CAPTURES_BPF_H

#include "graph_contents.bpf.h"

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

static __always_inline void count_captured(const struct gp_call *call, __u64 kernels)
{
	struct gp_graph_counts *counts = gp_config.rows ? graph_counts_of(call) : NULL;

	if (counts)
		__sync_fetch_and_add(&counts->captured, kernels * call->weight);
}

/* Adds `kernels` (0 or 1) of a kernel to the capture of a stream. Returns whether there is one. */
GP_GLOBAL_FUNC int add_captured(const struct gp_call *call, struct gp_stream *stream, __u64 handle,
				__u64 kernels, bool failed)
{
	struct gp_capture *capture;

	if (!call || !stream)
		return 0;
	capture = capture_on(call, stream);
	if (!capture)
		return 0;
	if (failed || !kernels)
		return 1;
	__sync_fetch_and_add(&capture->size.kernels, kernels);
	/* in this frame: a list of launches that is captured is as deep as the stack allows */
	put_graph_change(call, stream->capture, handle, kernels, GP_GRAPH_ADD_KERNEL);
	count_captured(call, kernels);
	return 1;
}

/*
 * Whether an operation on a stream was captured and not run. If so, its kernels, of which there are 0 or 1,
 * belong to a graph.
 */
static __always_inline bool is_captured(const struct gp_call *call, struct gp_stream *stream, __u64 handle,
					__u64 kernels, bool failed)
{
	return stream->capture && add_captured(call, stream, handle, kernels, failed);
}

/* Adds an executable graph to the capture of a stream. Returns whether there is one. */
GP_GLOBAL_FUNC int add_captured_graph(const struct gp_call *call, struct gp_stream *stream, __u64 handle,
				      bool failed)
{
	struct gp_capture *capture;
	struct gp_graph *exec;

	if (!call || !stream || !stream->capture)
		return 0;
	capture = capture_on(call, stream);
	if (!capture)
		return 0;
	if (failed)
		return 1;
	exec = find_graph(&execs, call, handle);
	if (!exec) {
		capture->size.incomplete = 1;
		return 1;
	}
	__sync_fetch_and_add(&capture->size.kernels, exec->size.kernels);
	capture->size.incomplete |= exec->size.incomplete;
	capture->size.conditional += exec->size.conditional;
	send_graph_change(call, stream->capture, exec->size.contents, 1, GP_GRAPH_ADD_GRAPH);
	count_captured(call, exec->size.kernels);
	return 1;
}

static __always_inline void begin_capture(struct gp_stream *stream, const struct gp_call *call, __u64 graph,
					  bool replaces)
{
	__u64 number = new_contents();
	struct gp_context_key key = context_key(process_of(call), number);
	struct gp_capture capture = {.size.contents = number, .graph = graph, .replaces = replaces};

	gp_has_captured = 1;
	if (bpf_map_update_elem(&captures, &key, &capture, BPF_NOEXIST))
		count_loss(GP_LOSS_GPU_OPS_FULL);
	else
		stream->capture = number;
}

/* Adds what was captured to a graph that existed before. */
static __always_inline void add_capture(const struct gp_call *call, struct gp_graph *graph,
					const struct gp_graph_size *captured)
{
	__sync_fetch_and_add(&graph->size.kernels, captured->kernels);
	graph->size.incomplete |= captured->incomplete;
	graph->size.conditional += captured->conditional;
	send_graph_change(call, graph->size.contents, captured->contents, 1, GP_GRAPH_ADD_GRAPH);
	forget_contents(call, captured->contents);
}

/* What was captured becomes a graph, or a part of one. */
static __always_inline void store_capture(const struct gp_call *call, const struct gp_capture *capture)
{
	bool is_new = !capture->graph;
	__u64 handle = is_new ? call->out[0] : capture->graph;
	struct gp_graph *graph = capture->replaces ? NULL : find_graph(&graphs, call, handle);

	/* nodes were added to the graph while it was being captured */
	if (graph && is_new && graph->size.incomplete) {
		graph->size.incomplete = 0;
		add_capture(call, graph, &capture->size);
	} else if (graph && !is_new) {
		add_capture(call, graph, &capture->size);
	} else {
		put_graph(&graphs, call, handle, &capture->size);
	}
}

/* The captured operations become a graph, unless the capture failed. */
static __always_inline void end_capture(struct gp_stream *stream, const struct gp_call *call, bool failed)
{
	struct gp_capture *capture = capture_on(call, stream);
	struct gp_context_key key;

	if (!capture)
		return;
	if (!failed && !(call->flags & GP_UNREAD_OUT))
		store_capture(call, capture);
	else
		forget_contents(call, capture->size.contents);
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

#endif
