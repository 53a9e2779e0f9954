/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Nodes of graphs, described by structs in the program's memory, and nodes that change later. */
#ifndef GP_GRAPH_NODES_BPF_H
#define GP_GRAPH_NODES_BPF_H

#include "graph_contents.bpf.h"

/* types of nodes, and the offset of what follows the type, in CUgraphNodeParams */
#define GP_NODE_KERNEL 0
#define GP_NODE_GRAPH 4
#define GP_NODE_CONDITIONAL 13
#define GP_NODE_PARAMS 16

/* in CUDA_KERNEL_NODE_PARAMS: a CUkernel, which is used if there is no function */
#define GP_NODE_CUKERNEL 56

/* The handle of the kernel in a CUDA_KERNEL_NODE_PARAMS; 0 if it could not be read. */
static __always_inline __u64 kernel_in_params(__u64 params)
{
	__u64 handle = 0;

	if (bpf_probe_read_user(&handle, sizeof(handle), (void *)params) ||
	    (!handle && bpf_probe_read_user(&handle, sizeof(handle), (void *)(params + GP_NODE_CUKERNEL)))) {
		count_loss(GP_LOSS_UNREAD_GPU_OP);
		return 0;
	}
	return handle;
}

GP_GLOBAL_FUNC int add_kernel_node(const struct gp_call *call, __u64 graph, __u64 params)
{
	struct gp_node_kernels of = {.kernels = 1};

	if (!call)
		return 0;
	of.member = kernel_in_params(params);
	add_node(call, graph, &of);
	return 0;
}

/* The type of a node whose parameters contain it. */
static __always_inline __u32 type_in_params(__u64 params)
{
	__u32 type = ~0;

	if (bpf_probe_read_user(&type, sizeof(type), (void *)params))
		count_loss(GP_LOSS_UNREAD_GPU_OP);
	return type;
}

static __always_inline void add_any_node(const struct gp_call *call, __u64 handle, __u64 params,
					 __u32 kernel_at)
{
	struct gp_graph *graph;
	__u64 child = 0;

	switch (type_in_params(params)) {
	case GP_NODE_KERNEL:
		add_kernel_node(call, handle, params + GP_NODE_PARAMS + kernel_at);
		break;
	case GP_NODE_GRAPH:
		bpf_probe_read_user(&child, sizeof(child), (void *)(params + GP_NODE_PARAMS));
		add_child_node(call, handle, child);
		break;
	case GP_NODE_CONDITIONAL:
		graph = graph_to_change(call, handle);
		if (graph)
			graph->size.conditional++;
		break;
	}
}

/* A node of a graph got other parameters, and with them perhaps another kernel. */
GP_GLOBAL_FUNC int set_kernel(const struct gp_call *call, __u64 handle, __u64 params)
{
	struct gp_live_key key;
	struct gp_graph *graph;
	struct gp_node *node;
	__u64 kernel;

	if (!call)
		return 0;
	key = key_of(call, handle);
	node = bpf_map_lookup_elem(&nodes, &key);
	/* a captured node: most programs change its arguments, not its kernel */
	if (!node || node->of.is_graph)
		return 0;
	kernel = kernel_in_params(params);
	graph = find_graph(&graphs, call, node->graph);
	if (!graph || kernel == node->of.member)
		return 0;
	send_graph_change(call, graph->size.contents, node->of.member, -1, GP_GRAPH_ADD_KERNEL);
	send_graph_change(call, graph->size.contents, kernel, 1, GP_GRAPH_ADD_KERNEL);
	node->former = node->of.member;
	node->former_since = node->changed;
	node->changed = new_contents();
	node->of.member = kernel;
	return 0;
}

static __always_inline struct gp_exec_node_key exec_node_key(const struct gp_call *call,
							     const struct gp_graph *exec, __u64 node)
{
	return (struct gp_exec_node_key){
	    .instance = call->instance, .exec_id = exec->id, .node = node, .tgid = call->tgid};
}

/* The kernels of a node in an executable graph: as they were changed there, or as in the graph. */
static __always_inline bool find_exec_node(const struct gp_call *call, const struct gp_graph *exec,
					   __u64 node, struct gp_node_kernels *of)
{
	struct gp_exec_node_key exec_key = exec_node_key(call, exec, node);
	struct gp_node_kernels *changed = bpf_map_lookup_elem(&exec_nodes, &exec_key);
	struct gp_live_key key = key_of(call, node);
	struct gp_node *in_graph;

	if (changed) {
		*of = *changed;
		return true;
	}
	in_graph = bpf_map_lookup_elem(&nodes, &key);
	if (!in_graph)
		return false;
	*of = in_graph->of;
	if (exec->id < in_graph->changed) {
		/* the node has another kernel since the executable graph was created */
		of->member = in_graph->former;
		return exec->id >= in_graph->former_since;
	}
	return true;
}

static __always_inline struct gp_thread *own_thread(void)
{
	return bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
}

/*
 * Replaces the kernels of a node in an executable graph, from node_before to node_after of the thread. Its
 * contents get a new number, so that its launches so far stay those of the contents it had.
 */
GP_GLOBAL_FUNC int replace_exec_node(const struct gp_call *call, __u64 handle, __u64 node)
{
	struct gp_thread *thread = own_thread();
	struct gp_node_kernels *before, *after;
	struct gp_exec_node_key key;
	struct gp_graph_size *size;
	struct gp_graph *exec;
	__u64 former;

	if (!call || !thread)
		return 0;
	before = &thread->node_before;
	after = &thread->node_after;
	exec = find_graph(&execs, call, handle);
	if (!exec)
		return 0;
	key = exec_node_key(call, exec, node);
	bpf_map_update_elem(&exec_nodes, &key, after, BPF_ANY);
	/* changed in place, because all frames together have 512 bytes; no launch runs at the same time */
	size = &exec->size;
	former = size->contents;
	size->contents = new_contents();
	send_graph_change(call, size->contents, former, 1, GP_GRAPH_ADD_GRAPH);
	if (before->disabled) {
		size->disabled -= before->kernels;
	} else {
		size->kernels -= before->kernels;
		send_removed_node(call, size->contents, before);
	}
	if (after->disabled)
		size->disabled += after->kernels;
	else
		size->kernels += after->kernels;
	if (after->is_graph && after->member != before->member)
		send_graph_change(call, size->contents, after->member, !after->disabled, GP_GRAPH_ADD_CHILD);
	else if (!after->disabled)
		send_graph_change(call, size->contents, after->member, 1,
				  after->is_graph ? GP_GRAPH_ADD_GRAPH : GP_GRAPH_ADD_KERNEL);
	if (before->of_exec && before->is_graph && before->member != after->member)
		forget_contents(call, before->member);
	put_exec_launches(call, size);
	send_graph_change(call, former, size->contents, 0, GP_GRAPH_FORGET);
	return 0;
}

/* A node of an executable graph got another kernel, or other arguments for the same one. */
GP_GLOBAL_FUNC int set_exec_kernel(const struct gp_call *call, __u64 handle, __u64 node, __u64 params)
{
	struct gp_thread *thread = own_thread();
	struct gp_node_kernels *before, *after;
	struct gp_graph *exec;

	if (!call || !thread)
		return 0;
	before = &thread->node_before;
	after = &thread->node_after;
	exec = find_graph(&execs, call, handle);
	if (!exec)
		return 0;
	after->member = kernel_in_params(params);
	after->kernels = 1;
	after->is_graph = 0;
	after->of_exec = 1;
	if (!find_exec_node(call, exec, node, before)) {
		send_graph_change(call, exec->size.contents, after->member, 0, GP_GRAPH_SET_KERNEL);
		return 0;
	}
	after->disabled = before->disabled;
	if (!before->is_graph && after->member != before->member)
		replace_exec_node(call, handle, node);
	return 0;
}

/* A child node of an executable graph got other contents. */
GP_GLOBAL_FUNC int set_exec_child(const struct gp_call *call, __u64 handle, __u64 node, __u64 child)
{
	struct gp_thread *thread = own_thread();
	struct gp_graph *exec;

	if (!call || !thread)
		return 0;
	exec = find_graph(&execs, call, handle);
	if (!exec)
		return 0;
	if (!find_exec_node(call, exec, node, &thread->node_before) ||
	    !child_kernels(call, child, &thread->node_after)) {
		exec->size.incomplete = 1;
		return 0;
	}
	thread->node_after.of_exec = 1;
	thread->node_after.disabled = thread->node_before.disabled;
	replace_exec_node(call, handle, node);
	return 0;
}

/* A node of an executable graph was enabled or disabled. */
GP_GLOBAL_FUNC int enable_node(const struct gp_call *call, __u64 handle, __u64 node, bool enabled)
{
	struct gp_thread *thread = own_thread();
	struct gp_graph *exec;

	if (!call || !thread)
		return 0;
	exec = find_graph(&execs, call, handle);
	if (!exec)
		return 0;
	if (!find_exec_node(call, exec, node, &thread->node_before)) {
		/* a captured node, or one without kernels: which one is not known */
		exec->size.incomplete = 1;
		return 0;
	}
	thread->node_after = thread->node_before;
	thread->node_after.disabled = !enabled;
	if (thread->node_after.disabled != thread->node_before.disabled)
		replace_exec_node(call, handle, node);
	return 0;
}

#endif
