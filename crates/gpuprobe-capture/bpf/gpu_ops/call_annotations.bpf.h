/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Annotates the record of a call with its GPU operation: the direction of a copy, the number of CUDA
 * kernels in a graph, whether it was captured. This writes to the record only, not to the rows of counters.
 */
#ifndef GP_CALL_ANNOTATIONS_BPF_H
#define GP_CALL_ANNOTATIONS_BPF_H

#include "graphs.bpf.h"

static __always_inline bool is_batch(const struct gp_function *function)
{
	return function->op_desc.shape == GP_COPY_BATCH || function->op_desc.shape == GP_COPY_OPERATIONS;
}

/* The part of a batch where copies of this kind and size are added; GP_PARTS if there is no room. */
static __always_inline __u32 find_part(const struct gp_call *call, __u8 kind, __u8 host, __u8 size_log2)
{
	__u32 same_kind = GP_PARTS;

	for (__u32 i = 0; i < GP_PARTS; i++) {
		const struct gp_part *part = &call->pointee.parts[i];
		bool is_same = part->kind == kind && part->host == host;

		if (!part->copies || (is_same && part->size_log2 == size_log2))
			return i;
		if (is_same)
			same_kind = i;
	}
	/* from here on the sizes are not exact */
	count_loss(GP_LOSS_UNREAD_GPU_OP);
	return same_kind;
}

/* Adds a copy to the parts of a batch, which are distinguished by kind and size. */
GP_GLOBAL_FUNC int add_part(struct gp_call *call, __u32 kind_and_host, __u64 bytes)
{
	__u8 kind = kind_and_host + 1, host = kind_and_host >> 8, size_log2 = log2_bucket(bytes);
	struct gp_part *part;
	__u32 at;

	if (!call)
		return 0;
	at = find_part(call, kind, host, size_log2);
	barrier_var(at);
	if (at >= GP_PARTS) {
		/* nor are the kinds */
		at = GP_PARTS - 1;
		kind = GP_UNKNOWN_COPY + 1;
		host = GP_UNKNOWN_HOST;
	}
	part = &call->pointee.parts[at];
	part->kind = kind;
	part->host = host;
	/* copies of the first size are found again, also if others were added */
	if (!part->copies)
		part->size_log2 = size_log2;
	part->copies++;
	part->bytes += bytes;
	call->bytes += bytes;
	return 0;
}

GP_GLOBAL_FUNC int annotate_copy(struct gp_call *call, __u32 kind_and_host, __u64 bytes, bool failed)
{
	if (!call)
		return 0;
	call->effect = GP_EFFECT_COPY;
	call->detail.copy.kind = kind_and_host + 1;
	call->detail.copy.host = kind_and_host >> 8;
	/* a copy described by a struct has no size yet */
	if (!call->bytes && !failed)
		call->bytes = bytes;
	return 0;
}

/* A graph launch has returned, successfully or not. */
GP_GLOBAL_FUNC int annotate_graph_launch(struct gp_thread *thread, struct gp_call *call,
					 const struct gp_function *function, bool failed)
{
	bool is_nested, captured;
	struct gp_stream *stream;
	struct gp_graph *exec;
	__u64 handle = 0;

	if (!thread || !call || !function)
		return 0;
	is_nested = call->flags & GP_NESTED_OP;
	argument(call, function->op_desc.graph, &handle);
	exec = is_nested ? NULL : find_graph(&execs, call, handle);
	if (exec && !failed)
		annotate_graph(call, &exec->size);
	if (!gp_has_captured)
		return 0;
	stream = used_stream(thread, call, stream_of(call, function));
	if (!stream)
		return 0;
	/* the outer call adds the graph to the capture */
	captured = is_nested ? is_captured(call, stream, 0, 0, failed)
			     : add_captured_graph(call, stream, handle, failed);
	if (captured)
		call->flags |= GP_CAPTURED;
	return 0;
}

/* Copies what is known about a copy to the enclosing call, which is the same copy. */
static __always_inline void propagate_to_parent(struct gp_thread *thread, const struct gp_call *call,
						bool failed)
{
	struct gp_call *outer = open_call(thread, thread->depth - 1);
	__u32 index = outer->function & (GP_FUNCTIONS - 1);
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);

	if (!function || function->action != GP_MOVE)
		return;
	outer->flags |= call->flags & GP_CAPTURED;
	if (call->effect == GP_EFFECT_COPY) {
		outer->effect = GP_EFFECT_COPY;
		outer->detail.copy = call->detail.copy;
	}
	if (call->effect == GP_EFFECT_BATCH) {
		outer->effect = GP_EFFECT_BATCH;
		outer->pointee = call->pointee;
	}
	if (!failed && (!outer->bytes || outer->flags & GP_BYTES_OF_INNER)) {
		outer->bytes += call->bytes;
		outer->flags |= GP_BYTES_OF_INNER;
	}
}

#endif
