/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * GPU operations (launches, copies, memsets, waits) and calls on streams and graphs, at the entry and at
 * the return of a call. In this folder "kernel" means a CUDA kernel, unless it says Linux.
 */
#ifndef GP_GPU_OPS_BPF_H
#define GP_GPU_OPS_BPF_H

#include "copies.bpf.h"
#include "deferred_launches.bpf.h"

static __always_inline bool is_launch(const struct gp_function *function)
{
	return function->op_desc.op_kind == GP_OP_LAUNCH || function->op_desc.op_kind == GP_OP_GRAPH_LAUNCH;
}

static __always_inline bool is_copy(const struct gp_function *function)
{
	return function->op_desc.op_kind == GP_OP_COPY || function->op_desc.op_kind == GP_OP_MEMSET;
}

/* Whether a call matters only if something was captured, and nothing ever was. */
static __always_inline bool is_irrelevant(__u8 op_kind)
{
	return !gp_config.rows && !gp_has_captured && op_kind >= GP_OP_STREAM_DESTROY &&
	       op_kind <= GP_OP_EVENT_DESTROY;
}

/* Begins the operation: marks nested ones, and removes what is being destroyed from its table. */
static __always_inline void begin_op(struct gp_thread *thread, struct gp_call *call,
				     const struct gp_function *function)
{
	__u8 op_kind = function->op_desc.op_kind;
	__u8 open_op = is_launch(function) ? GP_OPEN_LAUNCH : is_copy(function) ? GP_OPEN_COPY : 0;

	/* one operation is counted once, by the outermost call */
	if (call->actions & open_op)
		call->flags |= GP_NESTED_OP;
	call->actions |= open_op;
	if (op_kind == GP_OP_EVENT_DESTROY && !is_irrelevant(op_kind))
		forget_event(call, function);
	if ((op_kind == GP_OP_GRAPH_DESTROY || op_kind == GP_OP_EXEC_DESTROY ||
	     op_kind == GP_OP_STREAM_DESTROY) &&
	    !is_irrelevant(op_kind))
		begin_destroy(thread, call, function);
}

/*
 * Annotates a launch that has returned. A nested launch is a launch of the same kernel, which is captured
 * once.
 */
GP_GLOBAL_FUNC int annotate_launch(struct gp_thread *thread, struct gp_call *call,
				   const struct gp_function *function, bool failed)
{
	struct launch launch = {};
	struct gp_stream *stream;

	if (!thread || !call || !function)
		return 0;
	read_launch(call, function, &launch);
	stream = used_stream(thread, call, launch.stream);
	if (stream && is_captured(call, stream, launch.handle, call->flags & GP_NESTED_OP ? 0 : 1, failed))
		call->flags |= GP_CAPTURED;
	return 0;
}

/* Annotates the operation without counting it in rows. Returns true if nothing remains to be done. */
static __always_inline bool annotate_op(struct gp_thread *thread, struct gp_call *call,
					const struct gp_function *function, bool failed)
{
	__u8 op_kind = function->op_desc.op_kind;

	if (op_kind == GP_OP_GRAPH_LAUNCH)
		annotate_graph_launch(thread, call, function, failed);
	else if (op_kind == GP_OP_LAUNCH && gp_has_captured && function->op_desc.shape < GP_LAUNCH_LIST)
		annotate_launch(thread, call, function, failed);
	return is_launch(function) || is_irrelevant(op_kind);
}

/* Ends the operation. Returns whether the call is counted with it, in the row of its launch. */
static __always_inline bool end_op(struct gp_thread *thread, struct gp_call *call,
				   const struct gp_function *function, bool failed)
{
	__u8 op_kind = function->op_desc.op_kind;

	/* an operation that is counted in rows is annotated while it is counted */
	if (gp_config.annotate_records && (!gp_config.rows || call->flags & GP_NESTED_OP) &&
	    annotate_op(thread, call, function, failed))
		return false;
	if (call->flags & GP_NESTED_OP)
		return false;
	if (op_kind == GP_OP_LAUNCH) {
		if (function->op_desc.shape < GP_LAUNCH_LIST)
			return end_launch(thread, call, function, failed);
		end_launches(thread, call, function, failed);
	} else if (op_kind == GP_OP_GRAPH_LAUNCH) {
		end_graph_launch(thread, call, function, failed);
	} else if (is_copy(function)) {
		end_move(thread, call, function, failed);
	} else if (op_kind == GP_OP_SYNC_ALL) {
		if (!failed)
			note_sync(thread, call, all_streams(thread, call));
	} else if (op_kind == GP_OP_EVENT_DESTROY) {
		return false;
	} else if (op_kind <= GP_OP_CAPTURE_END) {
		after_stream_call(thread, call, function, failed);
	} else if (failed) {
		cancel_destroy(call, function);
	} else {
		after_graph_call(call, function);
	}
	return false;
}

#endif
