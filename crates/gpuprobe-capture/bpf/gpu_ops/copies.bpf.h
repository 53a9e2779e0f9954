/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Copies, counted by direction, by whether the call waits for them, and by the host memory they use. The
 * direction is in the function's name, in an argument or in a struct, or follows from the two addresses.
 */
#ifndef GP_COPIES_BPF_H
#define GP_COPIES_BPF_H

#include "graphs.bpf.h"
#include "copy_bytes.bpf.h"
#include "copy_rows.bpf.h"
#include "address_ranges.bpf.h"
#include "call_annotations.bpf.h"

/* CUmemorytype; with GP_TYPE_UNIFIED the address decides */
enum {
	GP_TYPE_HOST = 1,
	GP_TYPE_DEVICE = 2,
	GP_TYPE_ARRAY = 3,
	GP_TYPE_UNIFIED = 4,
};

/* one end of a copy: its address, if it has one, and its CUmemorytype */
struct end {
	__u64 address;
	__u64 type;
};

struct copy {
	struct end source;
	struct end target;
	__u64 bytes;
	__u32 is_peer;
	__u32 failed;
	/* see GP_COPY_UNTIMED */
	__u32 is_untimed;
	__u32 reserved;
};

/* The offsets of the members in the structs that describe copies. */
struct layout {
	__u8 source;
	__u8 target;
	__u8 type;
	__u8 host;
	__u8 device;
	__u8 word;
};

static __always_inline struct layout layout_of(__u32 shape)
{
	switch (shape) {
	case GP_COPY_2D:
		return (struct layout){0, 56, 16, 24, 32, 8};
	case GP_COPY_2D_OLD:
		return (struct layout){0, 44, 8, 16, 24, 4};
	case GP_COPY_3D_OLD:
		return (struct layout){0, 64, 16, 24, 32, 4};
	}
	return (struct layout){0, 88, 32, 40, 48, 8};
}

static __always_inline struct end end_of_struct(__u64 at, struct layout layout, bool *failed)
{
	struct end end = {.type = user_word(at + layout.type, 4, failed)};

	end.address = user_word(at + (end.type == GP_TYPE_HOST ? layout.host : layout.device),
				end.type == GP_TYPE_HOST ? 8 : layout.word, failed);
	return end;
}

GP_GLOBAL_FUNC int read_struct(__u64 at, __u32 shape, struct copy *copy)
{
	struct layout layout = layout_of(shape);
	__u64 target = at + layout.target;
	bool failed = false;

	if (!copy)
		return 0;
	/* in the old struct the second half is aligned differently, so its members have other offsets */
	copy->source = end_of_struct(at, layout, &failed);
	if (shape == GP_COPY_2D_OLD) {
		layout.host = 12;
		layout.device = 20;
	}
	copy->target = end_of_struct(target, layout, &failed);
	return !failed;
}

/* Sets the types of the two ends from a gp_copy_kind. */
static __always_inline void set_types(struct copy *copy, __u32 kind)
{
	if (kind == GP_BY_ADDRESS || kind > GP_PEER) {
		copy->source.type = copy->target.type = GP_TYPE_UNIFIED;
		return;
	}
	copy->source.type = kind == GP_H2H || kind == GP_H2D ? GP_TYPE_HOST : GP_TYPE_DEVICE;
	copy->target.type = kind == GP_H2H || kind == GP_D2H ? GP_TYPE_HOST : GP_TYPE_DEVICE;
}

#include "hip_copies.bpf.h"

/* An operand of an operation is an address or an array. */
static __always_inline struct end operand(__u64 at, bool *failed)
{
	struct end end = {.address = user_word(at + 8, 8, failed)};

	end.type = user_word(at, 4, failed) == 2 ? GP_TYPE_ARRAY : GP_TYPE_UNIFIED;
	return end;
}

GP_GLOBAL_FUNC int read_operation(__u64 at, struct copy *copy)
{
	bool failed = false;

	if (!copy)
		return 0;
	copy->source = operand(at, &failed);
	copy->target = operand(at + 40, &failed);
	return !failed;
}

/* One end of a copy after its address has been looked up. */
struct found {
	bool is_host;
	bool is_unknown;
	__u8 host;
	__u8 device;
};

/* Finds out which memory one end of a copy is in. */
static __always_inline void look_up(const struct gp_call *call, const struct end *end, struct found *found)
{
	bool may_be_host = end->type == GP_TYPE_HOST || end->type == GP_TYPE_UNIFIED;
	struct address_info info = {.device = GP_NO_DEVICE};

	if (may_be_host)
		find_memory_at(call, end->address, &info);
	found->device = info.device;
	found->host = GP_NO_HOST;
	found->is_host = end->type == GP_TYPE_HOST;
	found->is_unknown = false;
	if (!may_be_host)
		return;
	if (!info.is_known) {
		/*
		 * memory of the program itself, unless it may have been allocated before the probes were
		 * attached
		 */
		bool is_pageable = is_known_from_start(call);

		found->is_host |= is_pageable;
		found->is_unknown = !found->is_host;
		found->host = is_pageable ? GP_PAGEABLE : GP_UNKNOWN_HOST;
	} else if (info.space == GP_SPACE_PINNED) {
		found->is_host = true;
		found->host = GP_PINNED;
	} else if (found->is_host) {
		found->host = GP_MANAGED;
	}
}

/* The direction of a copy. A copy between two GPUs is a peer copy. */
static __always_inline __u32 kind_of(const struct found *source, const struct found *target, bool is_peer)
{
	if (is_peer)
		return GP_PEER;
	if (source->is_unknown || target->is_unknown)
		return GP_UNKNOWN_COPY;
	if (!source->is_host && !target->is_host && source->device != target->device &&
	    source->device != GP_NO_DEVICE && target->device != GP_NO_DEVICE)
		return GP_PEER;
	return source->is_host ? (target->is_host ? GP_H2H : GP_H2D) : (target->is_host ? GP_D2H : GP_D2D);
}

/* The host memory that determines the speed: memory that is not pinned is copied twice. */
static __always_inline __u32 host_of(const struct found *source, const struct found *target)
{
	__u32 one = source->is_host ? source->host : GP_NO_HOST;
	__u32 other = target->is_host ? target->host : GP_NO_HOST;

	return one > other ? one : other;
}

/* An argument may make an asynchronous function wait. */
static __always_inline bool is_async(const struct gp_call *call, const struct gp_function *function)
{
	__u64 waits = 0;

	if (!(function->flags & GP_ASYNC))
		return false;
	return !argument(call, function->op_desc.other, &waits) || !(__u32)waits;
}

/* The bits of add_copy() that say how the copy ended. */
static __always_inline __u32 copy_bits(const struct gp_call *call, const struct gp_function *function,
				       bool failed)
{
	return (is_async(call, function) ? GP_COPY_ASYNC : 0) | (failed ? GP_COPY_FAILED : 0);
}

/* Looks up both ends of a copy, annotates the record with it, and counts it in a row. */
GP_GLOBAL_FUNC int count_copy(struct gp_thread *thread, struct gp_call *call,
			      const struct gp_function *function, const struct copy *copy)
{
	struct found source, target;
	__u32 kind_and_host;

	if (!thread || !call || !function || !copy)
		return 0;
	look_up(call, &copy->source, &source);
	look_up(call, &copy->target, &target);
	kind_and_host = kind_of(&source, &target, copy->is_peer) | host_of(&source, &target) << 8;
	/* a batch that failed is annotated like a single copy */
	if (gp_config.annotate_records && is_batch(function) && !copy->failed)
		add_part(call, kind_and_host, copy->bytes);
	else if (gp_config.annotate_records)
		annotate_copy(call, kind_and_host, copy->bytes, copy->failed);
	if (gp_config.rows)
		add_copy(thread, call,
			 kind_and_host | copy_bits(call, function, copy->failed) |
			     (copy->is_untimed ? GP_COPY_UNTIMED : 0),
			 copy->bytes);
	return 0;
}

struct batch {
	struct gp_thread *thread;
	struct gp_call *call;
	const struct gp_function *function;
	__u64 targets;
	__u64 sources;
	__u64 sizes;
	__u64 failed;
	/* the bytes of the copies so far */
	__u64 bytes;
};

/* One copy of a batch: from three lists, or from one list of operations. */
static long copy_of_batch(__u64 index, struct batch *batch)
{
	const struct gp_extent *extent = &batch->function->extent;
	struct copy copy = {.failed = batch->failed, .is_untimed = index > 0};
	bool unread = false;

	if (batch->function->op_desc.shape == GP_COPY_OPERATIONS) {
		__u64 at = batch->sources + index * extent->stride;

		unread = !read_operation(at, &copy);
		copy.bytes = box_bytes(at, extent, &unread);
	} else {
		copy.source.address = user_word(batch->sources + index * 8, 8, &unread);
		copy.target.address = user_word(batch->targets + index * 8, 8, &unread);
		copy.bytes = user_word(batch->sizes + index * 8, 8, &unread);
		set_types(&copy, GP_BY_ADDRESS);
	}
	/* a failed call may have had any arguments */
	if (unread && !batch->failed) {
		count_loss(GP_LOSS_UNREAD_GPU_OP);
		return 1;
	}
	/* an implausible size or sum was already counted when the sizes were added up */
	if (plus(batch->bytes, copy.bytes) > GP_MOST_BYTES)
		copy.bytes = 0;
	batch->bytes += copy.bytes;
	count_copy(batch->thread, batch->call, batch->function, &copy);
	return 0;
}

/* A batch of copies has returned. */
GP_GLOBAL_FUNC int end_batch(struct gp_thread *thread, struct gp_call *call,
			     const struct gp_function *function, bool failed)
{
	struct batch batch = {.failed = failed};
	const struct gp_op_desc *op;
	__u64 count = 0;

	if (!thread || !call || !function)
		return 0;
	op = &function->op_desc;
	if (gp_config.annotate_records) {
		/* the parts are added one by one below */
		call->effect = GP_EFFECT_BATCH;
		__builtin_memset(&call->pointee, 0, sizeof(call->pointee));
		call->bytes = 0;
	}
	batch.thread = thread;
	batch.call = call;
	batch.function = function;
	argument(call, op->count, &count);
	argument(call, op->sizes, &batch.sizes);
	argument(call, op->target, &batch.targets);
	argument(call, op->shape == GP_COPY_OPERATIONS ? op->params : op->source, &batch.sources);
	if (count > GP_MOST_COPIES) {
		count_loss(GP_LOSS_UNREAD_GPU_OP);
		count = GP_MOST_COPIES;
	}
	/* a failed batch is one failure, of the kind of its first copy */
	bpf_loop(failed ? 1 : count, copy_of_batch, &batch, 0);
	return 0;
}

/* A single copy has returned. */
GP_GLOBAL_FUNC int end_copy(struct gp_thread *thread, struct gp_call *call,
			    const struct gp_function *function, bool failed)
{
	struct copy copy = {.failed = failed};
	const struct gp_op_desc *op;
	__u64 kind, at = 0;
	bool is_read = true;

	if (!thread || !call || !function)
		return 0;
	op = &function->op_desc;
	kind = op->copy_kind;
	copy.is_peer = kind == GP_PEER;
	argument(call, op->params, &at);
	switch (op->shape) {
	case GP_COPY_LINEAR:
		if (kind == GP_BY_ARGUMENT) {
			argument(call, op->kind, &kind);
			kind = (__u32)kind <= GP_D2D ? (__u32)kind : GP_BY_ADDRESS;
		}
		set_types(&copy, kind);
		argument(call, op->source, &copy.source.address);
		argument(call, op->target, &copy.target.address);
		copy.bytes = call->bytes;
		break;
	case GP_COPY_OPERATION:
		is_read = read_operation(at, &copy) && described_bytes(call, function, &copy.bytes);
		break;
	case GP_COPY_HIP_2D:
	case GP_COPY_HIP_3D:
		is_read =
		    read_hip_struct(at, op->shape, &copy) && described_bytes(call, function, &copy.bytes);
		break;
	case GP_COPY_PARMS:
		is_read = read_parms(at, &copy) && described_bytes(call, function, &copy.bytes);
		break;
	default:
		is_read = read_struct(at, op->shape, &copy) && described_bytes(call, function, &copy.bytes);
	}
	/* it was counted when the bytes of the outermost call were set */
	if (copy.bytes > GP_MOST_BYTES)
		copy.bytes = 0;
	/* a failed call may have had any arguments */
	if (!is_read && !failed)
		count_loss(GP_LOSS_UNREAD_GPU_OP);
	if (is_read || failed)
		count_copy(thread, call, function, &copy);
	return 0;
}

/* A copy or a memset has returned. */
static __always_inline void end_move(struct gp_thread *thread, struct gp_call *call,
				     const struct gp_function *function, bool failed)
{
	struct gp_stream *stream = NULL;

	/* a copy that waits is never captured */
	if (is_async(call, function) && (gp_has_captured || gp_config.rows))
		stream = used_stream(thread, call, stream_of(call, function));
	if (stream && is_captured(call, stream, 0, 0, failed)) {
		call->flags |= GP_CAPTURED;
		return;
	}
	/* only the outermost call has checked it, and counted it as a loss */
	if (call->bytes > GP_MOST_BYTES)
		call->bytes = 0;
	if (function->op_desc.op_kind == GP_OP_MEMSET) {
		if (gp_config.annotate_records)
			annotate_copy(call, GP_FILL, call->bytes, failed);
		if (gp_config.rows)
			add_copy(thread, call, GP_FILL | copy_bits(call, function, failed), call->bytes);
	} else if (is_batch(function)) {
		end_batch(thread, call, function, failed);
	} else {
		end_copy(thread, call, function, failed);
	}
}

#endif
