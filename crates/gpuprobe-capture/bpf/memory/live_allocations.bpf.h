/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What calls do to live memory. The tables here decide what is a leak, so nothing in this file depends on
 * the ring buffer.
 */
#ifndef GP_LIVE_ALLOCATIONS_BPF_H
#define GP_LIVE_ALLOCATIONS_BPF_H

#include "allocation_sites.bpf.h"
#include "objects.bpf.h"

static __always_inline struct gp_live_key live_key(const struct gp_call *call)
{
	return (struct gp_live_key){.pointer = call->pointer, .instance = call->instance, .tgid = call->tgid};
}

/* The bytes that a call moves or asks for, from its arguments; 0 if the rule needs more than these. */
static __always_inline __u64 size_at_entry(const struct gp_call *call, const struct gp_function *function)
{
	__u64 a = 0, b = 1;

	if (function->size_rule != GP_SIZE_ARGUMENT && function->size_rule != GP_SIZE_PRODUCT)
		return 0;
	if (!argument(call, function->size_a, &a))
		return 0;
	/* by far the most frequent rule: one argument contains the bytes */
	if (function->size_rule == GP_SIZE_ARGUMENT && function->size_scale == 1)
		return a;
	if (function->size_rule == GP_SIZE_PRODUCT)
		argument(call, function->size_b, &b);
	return times(times(a, b), function->size_scale);
}

/* Bytes of one channel of a CUDA driver array; 0 for block and planar formats. */
static __always_inline __u64 format_bytes(__u32 format)
{
	switch (format) {
	case 1: /* unsigned and signed integers of 8, 16 and 32 bits */
	case 8:
		return 1;
	case 2:
	case 9:
	case 0x10: /* half */
		return 2;
	case 3:
	case 10:
	case 0x20: /* float */
		return 4;
	}
	return 0;
}

/* A dimension that does not exist is 0. */
static __always_inline __u64 at_least_one(__u64 n)
{
	return n ? n : 1;
}

/*
 * The elements of all mipmap levels: each level has half the elements of the previous one in every
 * dimension.
 */
GP_GLOBAL_FUNC __u64 elements(__u64 width, __u64 height, __u64 depth, __u64 levels)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < 16; i++) {
		if (i >= at_least_one(levels))
			break;
		sum = plus(sum, times(times(at_least_one(width >> i), at_least_one(height >> i)),
				      at_least_one(depth >> i)));
	}
	return sum;
}

static __always_inline __u64 array_bytes(const struct gp_call *call, const struct gp_function *function)
{
	const __u64 *words = (const __u64 *)call->pointee.bytes;
	const __u32 *halves = (const __u32 *)call->pointee.bytes;
	struct gp_arg_loc next = function->size_a;
	__u64 a = 0, b = 0, c = 0, levels = 1, bits;

	if (call->flags & GP_UNREAD_POINTEE)
		return 0;
	switch (function->size_rule) {
	case GP_SIZE_ARRAY_2D:
		return times(elements(words[0], words[1], 1, 1), (__u64)halves[5] * format_bytes(halves[4]));
	case GP_SIZE_ARRAY_3D:
		argument(call, function->size_a, &levels);
		return times(elements(words[0], words[1], words[2], levels),
			     (__u64)halves[7] * format_bytes(halves[6]));
	}
	bits = (__u64)halves[0] + halves[1] + halves[2] + halves[3];
	if (function->size_rule == GP_SIZE_CHANNELS) {
		argument(call, function->size_a, &a);
		argument(call, function->size_b, &b);
		return times(elements(a, b, 1, 1), bits) / 8;
	}
	argument(call, next, &a);
	next.index++;
	argument(call, next, &b);
	next.index++;
	argument(call, next, &c);
	argument(call, function->size_b, &levels);
	return times(elements(a, b, c, levels), bits) / 8;
}

/* The bytes of an allocation whose outs have been read. */
static __always_inline __u64 size_at_return(const struct gp_call *call, const struct gp_function *function)
{
	__u64 a = 0, b = 1;

	if (function->size_rule >= GP_SIZE_IMAGE)
		return image_bytes(call, function);
	if (function->size_rule >= GP_SIZE_ARRAY_2D)
		return array_bytes(call, function);
	if (function->size_rule != GP_SIZE_PITCH)
		return call->bytes;
	if (call->flags & (GP_UNREAD_OUT << 1) || !argument(call, function->size_a, &a))
		return 0;
	argument(call, function->size_b, &b);
	return times(times(call->out[1], a), b);
}

/* Marks an entry as freed, or as live again. Atomic, so that only one of several threads succeeds. */
static __always_inline bool swap_since(struct gp_live *entry, __u64 from, __u64 to)
{
	return __sync_val_compare_and_swap(&entry->since_ns, from, to) == from;
}

/*
 * A free removes the allocation from the table at its entry: the CUDA driver may give the address to
 * another thread before this call returns, and that thread's allocation must not be removed.
 */
GP_OWN_FRAME void begin_free(struct gp_thread *thread, struct gp_call *call,
			     const struct gp_function *function)
{
	struct gp_memory *memory = memory_of_thread(thread);
	struct gp_context *row;
	struct gp_live_key key;
	struct gp_live *old;
	__u64 since_ns, freed;

	if (!argument(call, function->pointer, &call->pointer) || !call->pointer)
		return;
	if (function->flags & GP_OBJECT) {
		freed = release_object(call, call->pointer);
		if (!freed) {
			call->effect = GP_EFFECT_KEPT;
			return;
		}
		call->pointer = freed;
	}
	key = live_key(call);
	old = bpf_map_lookup_elem(&live, &key);
	if (!old || !memory)
		return;
	since_ns = *(volatile __u64 *)&old->since_ns;
	if (since_ns & GP_SPARE)
		return;
	call->detail.freed.since_ns = since_ns;
	call->detail.freed.context = old->context;
	call->bytes = old->bytes;
	call->space = old->space;
	call->site = old->site;
	row = context_of(call->detail.freed.context);
	/*
	 * Memory that ended with its context is not freed by this call. Its entry stays until the address
	 * is allocated again, which may happen right now, and then the entry belongs to the new allocation.
	 * If two threads free the same address at once, one of them finds it already freed.
	 */
	if (!row || row->flags & GP_ENDING || !swap_since(old, since_ns, since_ns | GP_SPARE)) {
		call->bytes = 0;
		return;
	}
	if (memory->entries > gp_config.most_kept && !bpf_map_delete_elem(&live, &key))
		__sync_fetch_and_add(&memory->entries, -1);
	call->effect = GP_EFFECT_FREE;
	call->device = device_of(row);
	change_live_bytes(memory, row, call->space, call->bytes, -1);
	change_site_of_call(call, call->detail.freed.context, call->site, GP_SITE_FREED);
}

static __always_inline void count_free(const struct gp_call *call, struct gp_memory *memory)
{
	__sync_fetch_and_add(&memory->frees, 1);
	__sync_fetch_and_add(&memory->freed_bytes, call->bytes);
}

/*
 * A free that failed, or whose return was not observed, has freed nothing, unless its memory ended for
 * another reason.
 */
static __always_inline void restore_freed(struct gp_call *call, struct gp_memory *memory)
{
	struct gp_live_key key = live_key(call);
	struct gp_live back = {.bytes = call->bytes,
			       .since_ns = call->detail.freed.since_ns,
			       .context = call->detail.freed.context,
			       .space = call->space,
			       .site = call->site};
	struct gp_context *row = context_of(back.context);
	struct gp_live *spare = bpf_map_lookup_elem(&live, &key);

	call->effect = GP_EFFECT_NONE;
	if (!row) {
		/* it failed because its context ended in the meantime, and the memory with it */
		call->effect = GP_EFFECT_FREED_WITH_CONTEXT;
		__sync_fetch_and_add(&memory->freed_with_context_allocations, 1);
		__sync_fetch_and_add(&memory->freed_with_context_bytes, call->bytes);
	} else if (spare ? swap_since(spare, back.since_ns | GP_SPARE, back.since_ns)
			 : !bpf_map_update_elem(&live, &key, &back, BPF_NOEXIST)) {
		if (!spare)
			__sync_fetch_and_add(&memory->entries, 1);
		change_live_bytes(memory, row, call->space, call->bytes, 1);
		change_site_of_call(call, back.context, call->site, GP_SITE_BACK);
	} else if (!bpf_map_lookup_elem(&live, &key)) {
		count_loss(GP_LOSS_LIVE_FULL);
	} else {
		/* the address has been allocated again */
		call->effect = GP_EFFECT_REUSED;
		count_free(call, memory);
	}
}

/* A free has returned: counts it, or restores the allocation if it failed. */
GP_OWN_FRAME void end_free(struct gp_thread *thread, struct gp_call *call, bool failed)
{
	struct gp_memory *memory = memory_of_thread(thread);

	if (!memory)
		return;
	if (call->effect == GP_EFFECT_KEPT && failed) {
		call->effect = GP_EFFECT_NONE;
		retain_object(call, call->pointer);
	}
	if (failed) {
		/* failures of state-only probes are not counted */
		__sync_fetch_and_add(&memory->failed_frees, call->reported);
		if (call->effect == GP_EFFECT_FREE)
			restore_freed(call, memory);
		else
			call->bytes = 0;
		return;
	}
	if (!call->pointer || call->effect == GP_EFFECT_KEPT)
		return;
	if (call->effect != GP_EFFECT_FREE) {
		/* nor are frees of addresses that unprobed functions allocated */
		__sync_fetch_and_add(&memory->unknown_frees, call->reported);
		return;
	}
	count_free(call, memory);
}

/*
 * An address is allocated whose last free was not observed. The memory that was there has been freed, or it
 * ended with its context.
 */
static __always_inline void replace(struct gp_call *call, struct gp_memory *memory, const struct gp_live *old)
{
	struct gp_context *before = context_of(old->context);

	/* memory of a context that is ending is counted when the context has ended */
	if (before && !(before->flags & (GP_ENDING | GP_MAY_END))) {
		change_live_bytes(memory, before, old->space, old->bytes, -1);
		change_site(call->instance, old->context, process_and_site(call->tgid, old->site), old->bytes,
			    GP_SITE_FREED);
		__sync_fetch_and_add(&memory->replaced, 1);
		__sync_fetch_and_add(&memory->replaced_bytes, old->bytes);
		call->effect = GP_EFFECT_REPLACE;
		call->detail.allocated.replaced_bytes = old->bytes;
		call->replaced_space = old->space;
	}
}

/*
 * Adds an allocation to the table. An entry at the same address is reused: it was freed and kept, or its
 * free was not observed.
 */
static __always_inline void store_allocation(struct gp_call *call, struct gp_memory *memory, __u64 context)
{
	struct gp_live_key key = live_key(call);
	struct gp_context *row = context_of(context);
	struct gp_live value = {.bytes = call->bytes,
				.since_ns = call->start_ns + call->duration_ns,
				.context = context,
				.space = call->space};
	struct gp_live *old = bpf_map_lookup_elem(&live, &key);

	if (!row)
		return;
	call->device = device_of(row);
	if (old) {
		/* a free that fails must not restore an entry that is about to be overwritten */
		if (!(__sync_lock_test_and_set(&old->since_ns, ~0ULL) & GP_SPARE))
			replace(call, memory, old);
	}
	value.site = change_site_of_call(call, context, call->site, GP_SITE_NEW);
	if (old) {
		old->bytes = value.bytes;
		old->context = value.context;
		old->space = value.space;
		old->site = value.site;
		*(volatile __u64 *)&old->since_ns = value.since_ns;
	} else if (bpf_map_update_elem(&live, &key, &value, BPF_ANY)) {
		change_site_of_call(call, context, value.site, GP_SITE_FREED);
		count_loss(GP_LOSS_LIVE_FULL);
		return;
	} else {
		__sync_fetch_and_add(&memory->entries, 1);
	}
	annotate_live(call, memory, change_live_bytes(memory, row, call->space, call->bytes, 1));
}

/* Memory of a context whose GPU was not chosen is on the first one. */
static __always_inline void use_first_device(__u64 context)
{
	struct gp_context *row = context_of(context);

	if (row && !row->device)
		row->device = 1;
}

/* `address` is that of the thread's current context. */
GP_OWN_FRAME void end_alloc(struct gp_thread *thread, struct gp_call *call,
			    const struct gp_function *function, bool failed, __u64 address)
{
	struct gp_memory *memory = memory_of_thread(thread);

	if (!memory)
		return;
	if (failed) {
		__sync_fetch_and_add(&memory->failed_allocations, 1);
		call->bytes = 0;
		return;
	}
	if (function->flags & GP_OBJECT && is_shared_object(call, function)) {
		call->bytes = 0;
		return;
	}
	call->bytes = plausible(size_at_return(call, function));
	call->space = function->space;
	if (function->flags & GP_POINTER_IS_ARGUMENT)
		argument(call, function->pointer, &call->pointer);
	else if (function->flags & GP_OUTPUT_IS_RESULT)
		call->pointer = call->result;
	else if (!(call->flags & GP_UNREAD_OUT))
		call->pointer = call->out[0];
	if (!call->pointer) {
		/* a size of 0 yields no address and no memory */
		if (call->bytes)
			count_loss(GP_LOSS_UNREAD_ALLOCATION);
		call->bytes = 0;
		return;
	}
	__sync_fetch_and_add(&memory->allocations, 1);
	__sync_fetch_and_add(&memory->allocated_bytes, call->bytes);
	address = context_of_thread(thread, address);
	if (function->flags & GP_FIRST_DEVICE)
		use_first_device(address);
	store_allocation(call, memory, address);
}

#endif
