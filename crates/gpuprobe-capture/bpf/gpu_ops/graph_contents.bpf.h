/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What graphs consist of. BPF counts the kernels of each graph. User space has them by handle: every change
 * is sent as a record, which is rare, because programs build graphs once and launch them often. A launch
 * then only counts how often these contents were launched.
 *
 * Contents have numbers. Each belongs to one graph, one executable graph, one capture or one child node. An
 * executable graph gets a new number whenever it changes, so that the launches before and after are counted
 * separately.
 */
#ifndef GP_GRAPH_CONTENTS_BPF_H
#define GP_GRAPH_CONTENTS_BPF_H

#include "streams.bpf.h"

static __always_inline __u64 new_contents(void)
{
	return __sync_fetch_and_add(&gp_next_id, 1);
}

/* Sends a change of contents, in the frame of its caller. */
static __always_inline int put_graph_change(const struct gp_call *call, __u64 contents, __u64 member,
					    __s64 count, __u32 change)
{
	struct gp_graph_record *record;
	__u64 flags;

	if (!call || !gp_config.names || !contents)
		return 0;
	/* a capture of many launches fills the ring quickly */
	flags = wakes_reader(sizeof(*record));
	/* not on the stack: these calls are the deepest, and all frames together have 512 bytes */
	record = bpf_ringbuf_reserve(&calls, sizeof(*record), 0);
	if (!record) {
		count_loss(GP_LOSS_LOST_NAME);
		return 0;
	}
	record->kind = GP_RECORD_GRAPH;
	record->change = change;
	record->tgid = call->tgid;
	record->instance = call->instance;
	record->contents = contents;
	record->member = member;
	record->count = count;
	bpf_ringbuf_submit(record, flags);
	return 0;
}

GP_GLOBAL_FUNC int send_graph_change(const struct gp_call *call, __u64 contents, __u64 member, __s64 count,
				     __u32 change)
{
	return put_graph_change(call, contents, member, count, change);
}

static __always_inline void forget_contents(const struct gp_call *call, __u64 contents)
{
	send_graph_change(call, contents, 0, 0, GP_GRAPH_FORGET);
}

/* Adds the kernels of a node to contents. */
static __always_inline void send_node(const struct gp_call *call, __u64 contents,
				      const struct gp_node_kernels *node)
{
	send_graph_change(call, contents, node->member, 1,
			  node->is_graph ? GP_GRAPH_ADD_CHILD : GP_GRAPH_ADD_KERNEL);
}

/* Removes the kernels of a node from contents. */
static __always_inline void send_removed_node(const struct gp_call *call, __u64 contents,
					      const struct gp_node_kernels *node)
{
	send_graph_change(call, contents, node->member, -1,
			  node->is_graph ? GP_GRAPH_ADD_GRAPH : GP_GRAPH_ADD_KERNEL);
}

/* Contents that are equal to others now, under a new number. */
static __always_inline void copy_contents(const struct gp_call *call, struct gp_graph_size *to,
					  const struct gp_graph_size *from)
{
	*to = *from;
	to->contents = new_contents();
	send_graph_change(call, to->contents, from->contents, 1, GP_GRAPH_ADD_GRAPH);
}

static __always_inline struct gp_graph *find_graph(void *map, const struct gp_call *call, __u64 handle)
{
	struct gp_live_key key = key_of(call, handle);

	return bpf_map_lookup_elem(map, &key);
}

/* Stores a graph or an executable graph. What the handle referred to before does not exist any more. */
static __always_inline void put_graph(void *map, const struct gp_call *call, __u64 handle,
				      const struct gp_graph_size *size)
{
	struct gp_live_key key = key_of(call, handle);
	struct gp_graph *before = bpf_map_lookup_elem(map, &key);
	struct gp_graph graph = {.size = *size, .id = size->contents};

	if (before && before->size.contents != size->contents)
		forget_contents(call, before->size.contents);
	if (handle && bpf_map_update_elem(map, &key, &graph, BPF_ANY))
		count_loss(GP_LOSS_GPU_OPS_FULL);
}

/* Prepares the counter for launches of these contents. */
static __always_inline void put_exec_launches(const struct gp_call *call, const struct gp_graph_size *size)
{
	struct gp_context_key key = context_key(process_of(call), size->contents);
	struct gp_exec_launches none = {.kernels = size->kernels};

	if (gp_config.rows && bpf_map_update_elem(&exec_launches, &key, &none, BPF_NOEXIST))
		count_loss(GP_LOSS_GPU_OPS_FULL);
}

static __always_inline void count_exec_launch(const struct gp_call *call, __u64 contents)
{
	struct gp_context_key key = context_key(process_of(call), contents);
	struct gp_exec_launches *row = bpf_map_lookup_elem(&exec_launches, &key);

	if (row)
		__sync_fetch_and_add(&row->launches, call->weight);
}

/* An executable graph has the contents of a graph from now on: it was created or updated. */
GP_GLOBAL_FUNC int put_exec(const struct gp_call *call, __u64 exec, __u64 graph)
{
	struct gp_graph_size size;
	struct gp_graph *from;
	struct gp_live_key key;

	if (!call)
		return 0;
	from = find_graph(&graphs, call, graph);
	if (from) {
		struct gp_graph *before = find_graph(&execs, call, exec);

		copy_contents(call, &size, &from->size);
		/* an update leaves nodes disabled; which ones is not known here */
		if (before && before->size.disabled)
			size.incomplete = 1;
		put_graph(&execs, call, exec, &size);
		put_exec_launches(call, &size);
		return 0;
	}
	/* the creation of the graph was not observed */
	from = find_graph(&execs, call, exec);
	if (from)
		forget_contents(call, from->size.contents);
	key = key_of(call, exec);
	bpf_map_delete_elem(&execs, &key);
	return 0;
}

/*
 * The graph that a node is added to. If its creation was not observed, it is either older than the probes or
 * is still being captured; end_capture() completes it then.
 */
static __always_inline struct gp_graph *graph_to_change(const struct gp_call *call, __u64 handle)
{
	struct gp_graph *graph = find_graph(&graphs, call, handle);
	struct gp_graph_size none = {.incomplete = 1};

	if (graph)
		return graph;
	none.contents = new_contents();
	put_graph(&graphs, call, handle, &none);
	return find_graph(&graphs, call, handle);
}

/* A node with kernels was added. Its handle is known only if the node was created by a call of its own. */
static __always_inline void add_node(const struct gp_call *call, __u64 handle,
				     const struct gp_node_kernels *kernels)
{
	struct gp_live_key key = key_of(call, call->out[0]);
	struct gp_node node = {.graph = handle, .of = *kernels};
	struct gp_graph *graph = graph_to_change(call, handle);

	if (!graph)
		return;
	__sync_fetch_and_add(&graph->size.kernels, kernels->kernels);
	send_node(call, graph->size.contents, kernels);
	if (!(call->flags & GP_UNREAD_OUT))
		bpf_map_update_elem(&nodes, &key, &node, BPF_ANY);
}

/* The contents of a child graph as they are now. */
static __always_inline bool child_kernels(const struct gp_call *call, __u64 child, struct gp_node_kernels *of)
{
	struct gp_graph *graph = find_graph(&graphs, call, child);
	struct gp_graph_size size;

	if (!graph)
		return false;
	copy_contents(call, &size, &graph->size);
	of->member = size.contents;
	of->kernels = size.kernels;
	of->is_graph = 1;
	return true;
}

GP_GLOBAL_FUNC int add_child_node(const struct gp_call *call, __u64 handle, __u64 child)
{
	struct gp_node_kernels of = {};
	struct gp_graph *graph, *added;

	if (!call)
		return 0;
	if (child_kernels(call, child, &of))
		add_node(call, handle, &of);
	graph = graph_to_change(call, handle);
	added = find_graph(&graphs, call, child);
	if (!graph)
		return 0;
	if (!added || added->size.incomplete)
		graph->size.incomplete = 1;
	if (added)
		graph->size.conditional += added->size.conditional;
	return 0;
}

static __always_inline void destroy_node(const struct gp_call *call, __u64 handle)
{
	struct gp_live_key key = key_of(call, handle);
	struct gp_node *node = bpf_map_lookup_elem(&nodes, &key);
	struct gp_graph *graph;

	if (!node)
		return;
	graph = find_graph(&graphs, call, node->graph);
	if (graph) {
		__sync_fetch_and_add(&graph->size.kernels, -node->of.kernels);
		send_removed_node(call, graph->size.contents, &node->of);
	}
	if (node->of.is_graph)
		forget_contents(call, node->of.member);
	bpf_map_delete_elem(&nodes, &key);
}

#endif
