/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Finds the memory that an address is in. A range is stored as aligned parts whose sizes are powers of two.
 * A range that is found is checked against the table of live allocations or mappings, because stale ranges
 * can remain after a context has ended, or after an unmap of several mappings at once.
 */
#ifndef GP_ADDRESS_RANGES_BPF_H
#define GP_ADDRESS_RANGES_BPF_H

#include "../memory/contexts.bpf.h"
#include "gpu_op_maps.bpf.h"

/* bits of a key before the address: process and instance */
#define GP_PROCESS_BITS 96
/* a range has at most two parts of each size */
#define GP_MOST_PARTS 128
/* stale ranges that one lookup removes at most */
#define GP_MOST_STALE_RANGES 4

struct range {
	struct gp_range_key key;
	struct gp_range value;
	__u64 from;
	__u64 to;
	__u64 is_new;
};

/* Adds or removes one part: the largest that begins where the rest of the range does. */
static long change_part(__u64 index, struct range *range)
{
	__u64 left = range->to - range->from;
	__u32 bits = 0;

	if (!left)
		return 1;
	for (__u32 shift = 32; shift; shift >>= 1) {
		__u64 bytes = 1ULL << (bits + shift);

		if (bytes <= left && !(range->from & (bytes - 1)))
			bits += shift;
	}
	range->key.prefix = GP_PROCESS_BITS + 64 - bits;
	range->key.address = __builtin_bswap64(range->from);
	range->value.prefix = range->key.prefix;
	if (!range->is_new)
		bpf_map_delete_elem(&ranges, &range->key);
	else if (bpf_map_update_elem(&ranges, &range->key, &range->value, BPF_ANY))
		count_loss(GP_LOSS_GPU_OPS_FULL);
	range->from += 1ULL << bits;
	return 0;
}

/* Adds a range, or removes it. */
GP_GLOBAL_FUNC int change_range(const struct gp_call *call, __u64 start, __u64 bytes, bool is_mapping,
				bool is_new)
{
	struct range range = {.value = {.start = start, .is_mapping = is_mapping},
			      .from = start,
			      .to = start + bytes,
			      .is_new = is_new};

	if (!call)
		return 0;
	range.key.tgid = call->tgid;
	range.key.instance = call->instance;
	if (start && range.to > start)
		bpf_loop(GP_MOST_PARTS, change_part, &range, 0);
	return 0;
}

/* The memory that an address is in. */
struct address_info {
	bool is_known;
	__u8 space;
	__u8 device;
};

/* Whether the range that was found is still live; if so, fills in its kind. */
static __always_inline bool is_still_live(const struct gp_call *call, const struct gp_range *range,
					  __u64 address, struct address_info *info)
{
	struct gp_live_key key = {.pointer = range->start, .instance = call->instance, .tgid = call->tgid};

	if (range->is_mapping) {
		struct gp_mapped *mapping = bpf_map_lookup_elem(&mapped, &key);
		struct gp_physical *memory;

		if (!mapping || address - range->start >= mapping->bytes)
			return false;
		memory = bpf_map_lookup_elem(&physical, &mapping->physical);
		info->space = GP_SPACE_VMM;
		info->device = memory ? memory->device : GP_NO_DEVICE;
	} else {
		struct gp_live *entry = bpf_map_lookup_elem(&live, &key);
		struct gp_context *context;

		if (!entry || entry->since_ns & GP_SPARE || address - range->start >= entry->bytes)
			return false;
		context = context_of(entry->context);
		if (!context)
			return false;
		info->space = entry->space;
		info->device = device_of(context);
	}
	info->is_known = true;
	return true;
}

/* Finds the memory that an address is in. */
GP_GLOBAL_FUNC int find_memory_at(const struct gp_call *call, __u64 address, struct address_info *info)
{
	struct gp_range_key key = {.address = __builtin_bswap64(address)};

	if (!call || !info)
		return 0;
	key.tgid = call->tgid;
	key.instance = call->instance;
	info->is_known = false;
	info->device = GP_NO_DEVICE;
	for (int i = 0; i < GP_MOST_STALE_RANGES; i++) {
		struct gp_range *range;

		key.prefix = GP_PROCESS_BITS + 64;
		range = bpf_map_lookup_elem(&ranges, &key);
		if (!range || is_still_live(call, range, address, info))
			return 0;
		/* the address bits beyond the prefix do not matter */
		key.prefix = range->prefix;
		bpf_map_delete_elem(&ranges, &key);
	}
	return 0;
}

/* A free removes its range when it begins, and adds it again if it fails. */
static __always_inline void begin_ranges(const struct gp_call *call)
{
	if (call->effect == GP_EFFECT_FREE)
		change_range(call, call->pointer, call->bytes, false, false);
}

static __always_inline void restore_ranges(const struct gp_call *call)
{
	if (call->effect == GP_EFFECT_FREE)
		change_range(call, call->pointer, call->bytes, false, true);
}

/* Adds or removes what a successful call allocated, mapped or unmapped. */
static __always_inline void end_ranges(const struct gp_call *call, const struct gp_function *function)
{
	__u64 address = 0, bytes = 0;

	if (function->memory_op == GP_VMM_MAP || function->memory_op == GP_VMM_UNMAP) {
		argument(call, function->pointer, &address);
		argument(call, function->size_a, &bytes);
		change_range(call, address, bytes, true, function->memory_op == GP_VMM_MAP);
	} else if (function->action == GP_ALLOC && !(call->flags & GP_NESTED_ACTION) &&
		   call->space != GP_SPACE_ARRAY && !(function->flags & GP_OBJECT)) {
		change_range(call, call->pointer, call->bytes, false, true);
	}
}

#endif
