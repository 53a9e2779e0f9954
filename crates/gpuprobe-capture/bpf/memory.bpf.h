/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What calls do to live memory. The tables here are the truth about leaks, so nothing in this file depends on
 * the ring buffer.
 */
#ifndef GP_MEMORY_BPF_H
#define GP_MEMORY_BPF_H

#include "common.bpf.h"

/* What the call's process holds. A row that did not fit when the process began is tried for again. */
static __always_inline struct gp_memory *memory_of(const struct gp_call *call)
{
	struct gp_process_key key = {.instance = call->instance, .tgid = call->tgid};
	struct gp_memory *memory = bpf_map_lookup_elem(&processes, &key);

	if (!memory) {
		static const struct gp_memory none;

		bpf_map_update_elem(&processes, &key, &none, BPF_NOEXIST);
		memory = bpf_map_lookup_elem(&processes, &key);
		if (!memory)
			count_loss(GP_LOSS_PROCESSES_FULL);
	}
	return memory;
}

static __always_inline struct gp_live_key live_key(const struct gp_call *call)
{
	return (struct gp_live_key){.pointer = call->pointer, .instance = call->instance, .tgid = call->tgid};
}

static __always_inline void hold_bytes(struct gp_memory *memory, __u32 space, __u64 bytes, __s64 sign)
{
	if (space >= GP_SPACES)
		return;
	__sync_fetch_and_add(&memory->live_bytes[space], sign * bytes);
	__sync_fetch_and_add(&memory->live_allocations[space], sign);
}

/* Bytes that a call moves or asks for, from its arguments; 0 where the rule needs more than these. */
static __always_inline __u64 size_at_entry(const struct gp_call *call, const struct gp_function *function)
{
	__u64 a = 0, b = 1;

	if (function->size_rule != GP_SIZE_ARGUMENT && function->size_rule != GP_SIZE_PRODUCT)
		return 0;
	if (!argument(call, function->size_a, &a))
		return 0;
	if (function->size_rule == GP_SIZE_PRODUCT)
		argument(call, function->size_b, &b);
	return a * b * function->size_scale;
}

static __always_inline __u64 size_at_return(const struct gp_call *call, const struct gp_function *function)
{
	__u64 a = 0, b = 1;

	if (function->size_rule != GP_SIZE_PITCH)
		return call->bytes;
	if (call->flags & (GP_UNREAD_OUT << 1) || !argument(call, function->size_a, &a))
		return 0;
	argument(call, function->size_b, &b);
	return call->out[1] * a * b;
}

/*
 * A free leaves the table when it begins: the driver may give the address to another thread before this call
 * returns, and that thread's allocation must not be the one that is taken away.
 */
static __always_inline void begin_free(struct gp_call *call, const struct gp_function *function)
{
	struct gp_memory *memory;
	struct gp_live_key key;
	struct gp_live *old;

	if (!argument(call, function->pointer, &call->pointer) || !call->pointer)
		return;
	key = live_key(call);
	old = bpf_map_lookup_elem(&live, &key);
	if (!old)
		return;
	call->bytes = old->bytes;
	call->since_ns = old->since_ns;
	call->space = old->space;
	/* of two threads that free the same address at once, one finds it gone */
	if (bpf_map_delete_elem(&live, &key)) {
		call->bytes = 0;
		return;
	}
	call->flags |= GP_KNOWN_FREE;
	memory = memory_of(call);
	if (memory)
		hold_bytes(memory, call->space, call->bytes, -1);
}

/* A free that failed has freed nothing. */
static __always_inline void put_back(const struct gp_call *call, struct gp_memory *memory)
{
	struct gp_live_key key = live_key(call);
	struct gp_live back = {.bytes = call->bytes, .since_ns = call->since_ns, .space = call->space};
	long err = bpf_map_update_elem(&live, &key, &back, BPF_NOEXIST);

	if (!err)
		hold_bytes(memory, call->space, call->bytes, 1);
	else if (!bpf_map_lookup_elem(&live, &key))
		count_loss(GP_LOSS_LIVE_FULL);
	/* else the address was given out again after all, and its new owner is in the table */
}

static __always_inline void end_free(struct gp_call *call, bool failed)
{
	struct gp_memory *memory = memory_of(call);

	if (!memory)
		return;
	if (failed) {
		__sync_fetch_and_add(&memory->failed_frees, 1);
		if (call->flags & GP_KNOWN_FREE)
			put_back(call, memory);
		call->bytes = 0;
		return;
	}
	if (!call->pointer)
		return;
	if (!(call->flags & GP_KNOWN_FREE)) {
		__sync_fetch_and_add(&memory->unknown_frees, 1);
		return;
	}
	__sync_fetch_and_add(&memory->frees, 1);
	__sync_fetch_and_add(&memory->freed_bytes, call->bytes);
}

static __always_inline void keep_allocation(struct gp_call *call, struct gp_memory *memory)
{
	struct gp_live_key key = live_key(call);
	struct gp_live value = {
	    .bytes = call->bytes, .since_ns = call->start_ns + call->duration_ns, .space = call->space};
	struct gp_live *old = bpf_map_lookup_elem(&live, &key);

	if (old) {
		/* its free was never seen: what stood here is gone all the same */
		__u64 bytes = old->bytes;
		__u32 space = old->space;

		if (!bpf_map_update_elem(&live, &key, &value, BPF_EXIST)) {
			hold_bytes(memory, space, bytes, -1);
			__sync_fetch_and_add(&memory->replaced, 1);
			call->flags |= GP_REPLACED;
			call->since_ns = bytes;
		}
	} else if (bpf_map_update_elem(&live, &key, &value, BPF_ANY)) {
		count_loss(GP_LOSS_LIVE_FULL);
		return;
	}
	hold_bytes(memory, call->space, call->bytes, 1);
}

static __always_inline void end_alloc(struct gp_call *call, const struct gp_function *function, bool failed)
{
	struct gp_memory *memory = memory_of(call);

	if (!memory)
		return;
	if (failed) {
		__sync_fetch_and_add(&memory->failed_allocations, 1);
		call->bytes = 0;
		return;
	}
	call->bytes = size_at_return(call, function);
	call->space = function->space;
	if (function->flags & GP_POINTER_IS_ARGUMENT)
		argument(call, function->pointer, &call->pointer);
	else if (!(call->flags & GP_UNREAD_OUT))
		call->pointer = call->out[0];
	if (!call->pointer) {
		/* a size of 0 gives no address and holds nothing */
		if (call->bytes)
			count_loss(GP_LOSS_UNREAD_ALLOCATION);
		call->bytes = 0;
		return;
	}
	__sync_fetch_and_add(&memory->allocations, 1);
	__sync_fetch_and_add(&memory->allocated_bytes, call->bytes);
	keep_allocation(call, memory);
}

#endif
