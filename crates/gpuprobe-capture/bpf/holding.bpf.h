/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What is held, and where it is counted: with the process, and with the context that it was allocated in, so
 * that the end of a context ends all of it at once.
 */
#ifndef GP_HOLDING_BPF_H
#define GP_HOLDING_BPF_H

#include "common.bpf.h"

/* memory of a GPU that belongs to no context is counted under a number that is no address */
#define GP_OF_DEVICE(device) (1ULL << 63 | (device))
#define GP_UPDATES 8

static __always_inline struct gp_process_key who(const struct gp_call *call)
{
	return (struct gp_process_key){.instance = call->instance, .tgid = call->tgid};
}

/* What a process holds. A row that did not fit when the process began is tried for again. */
static __always_inline struct gp_memory *memory_of(struct gp_process_key key)
{
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

static __always_inline struct gp_context_key context_key(struct gp_process_key who, __u64 id)
{
	return (struct gp_context_key){.instance = who.instance, .id = id, .tgid = who.tgid};
}

/* What is held in the context of this number; nothing where it has ended. */
static __always_inline struct gp_context *context_of(struct gp_process_key who, __u64 number)
{
	struct gp_context_key key = context_key(who, number);

	return bpf_map_lookup_elem(&contexts, &key);
}

/* The number of the context at an address; 0 where none is known. */
static __always_inline __u64 number_of(struct gp_process_key who, __u64 address)
{
	struct gp_context_key key = context_key(who, address);
	__u64 *number = bpf_map_lookup_elem(&addresses, &key);

	return number ? *number : 0;
}

/* Gives a number and a row to a context; 0 where there is no room. */
static __always_inline __u64 new_context(struct gp_process_key who, __u64 address)
{
	/* too large for the stack */
	static const struct gp_context none;
	__u64 number = __sync_fetch_and_add(&gp_next_id, 1), before, *known;
	struct gp_context_key row = context_key(who, number), at = context_key(who, address);

	if (bpf_map_update_elem(&contexts, &row, &none, BPF_NOEXIST)) {
		count_loss(GP_LOSS_PROCESSES_FULL);
		return 0;
	}
	before = number_of(who, address);
	if (!before && !bpf_map_update_elem(&addresses, &at, &number, BPF_NOEXIST))
		return number;
	/* of two threads that do this at once, one wins */
	known = bpf_map_lookup_elem(&addresses, &at);
	if (known && __sync_val_compare_and_swap(known, before, number) == before)
		return number;
	bpf_map_delete_elem(&contexts, &row);
	return known ? *known : 0;
}

/* The number of the context at an address, which has a row from now on. */
static __always_inline __u64 known_context(struct gp_process_key who, __u64 address)
{
	__u64 number = number_of(who, address);

	return number && context_of(who, number) ? number : new_context(who, address);
}

/* The GPU that a context is on. */
static __always_inline __u32 device_of(const struct gp_context *row)
{
	return row->device ? row->device - 1 : GP_NO_DEVICE;
}

static __always_inline void raise_peak(struct gp_memory *memory, __u64 held)
{
	for (int i = 0; i < GP_UPDATES; i++) {
		__u64 peak = memory->peak_bytes;

		if (held <= peak || __sync_val_compare_and_swap(&memory->peak_bytes, peak, held) == peak)
			return;
	}
}

static __always_inline void hold_bytes(struct gp_memory *memory, struct gp_context *row, __u32 space,
				       __u64 bytes, __s64 sign)
{
	__u64 held;

	if (space >= GP_SPACES)
		return;
	__sync_fetch_and_add(&memory->live_bytes[space], sign * bytes);
	__sync_fetch_and_add(&memory->live_allocations[space], sign);
	held = __sync_fetch_and_add(&memory->held_bytes, sign * bytes) + sign * bytes;
	if (sign > 0)
		raise_peak(memory, held);
	if (row) {
		__sync_fetch_and_add(&row->live_bytes[space], sign * bytes);
		__sync_fetch_and_add(&row->live_allocations[space], sign);
	}
}

/*
 * A context has ended, and with it what was allocated in it. Its row goes, so that what is left in the table
 * of allocations is known to be over. Nobody else may use a context while it is ended, so nothing is added
 * meanwhile.
 */
static __always_inline bool end_context(struct gp_call *call, __u64 number)
{
	struct gp_context_key key = context_key(who(call), number);
	struct gp_context *row = bpf_map_lookup_elem(&contexts, &key);
	struct gp_memory *memory = memory_of(who(call));
	__u64 all = 0, allocations = 0;

	if (!row || !memory)
		return false;
	call->device = device_of(row);
	for (int space = 0; space < GP_SPACES; space++) {
		call->stack[2 * space] = row->live_allocations[space];
		call->stack[2 * space + 1] = row->live_bytes[space];
	}
	/* once */
	if (bpf_map_delete_elem(&contexts, &key))
		return false;
	for (int space = 0; space < GP_SPACES; space++) {
		__u64 count = call->stack[2 * space], bytes = call->stack[2 * space + 1];

		__sync_fetch_and_add(&memory->live_bytes[space], -bytes);
		__sync_fetch_and_add(&memory->live_allocations[space], -count);
		all += bytes;
		allocations += count;
	}
	__sync_fetch_and_add(&memory->held_bytes, -all);
	__sync_fetch_and_add(&memory->ended_allocations, allocations);
	__sync_fetch_and_add(&memory->ended_bytes, all);
	call->bytes = all;
	return true;
}

#endif
