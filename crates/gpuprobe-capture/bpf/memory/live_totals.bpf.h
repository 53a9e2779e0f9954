/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Live memory totals. They are kept per process and per context, so that the end of a context subtracts all
 * of its memory at once.
 */
#ifndef GP_LIVE_TOTALS_BPF_H
#define GP_LIVE_TOTALS_BPF_H

#include "../core/common.bpf.h"

#define GP_UPDATES 8
/* a power of two: the low bits of a context's number are its row */
#define GP_MOST_CONTEXTS (1 << 24)

static __always_inline struct gp_process_key process_of(const struct gp_call *call)
{
	return (struct gp_process_key){.instance = call->instance, .tgid = call->tgid};
}

/* The memory totals of a process; NULL if there was no room. */
static __always_inline struct gp_memory *memory_of(struct gp_process_key process)
{
	__u32 row = row_of_process(process.instance, process.tgid);

	return row ? bpf_map_lookup_elem(&memory_rows, &row) : NULL;
}

static __always_inline struct gp_memory *memory_of_thread(struct gp_thread *thread)
{
	__u32 row = thread->memory_row;

	if (!row) {
		row = row_of_process(thread->instance, thread->tgid);
		thread->memory_row = row;
		if (!row)
			return NULL;
	}
	return bpf_map_lookup_elem(&memory_rows, &row);
}

static __always_inline struct gp_context_key context_key(struct gp_process_key process, __u64 id)
{
	return (struct gp_context_key){.instance = process.instance, .id = id, .tgid = process.tgid};
}

/* The row of the context with this number; NULL if it has ended. */
static __always_inline struct gp_context *context_of(__u64 number)
{
	__u32 row = number & (GP_MOST_CONTEXTS - 1);
	struct gp_context *context = row ? bpf_map_lookup_elem(&context_rows, &row) : NULL;

	return context && context->number == number ? context : NULL;
}

/* The number of the context at an address; 0 if none is known. */
static __always_inline __u64 context_number_at(struct gp_process_key process, __u64 address)
{
	struct gp_context_key key = context_key(process, address);
	__u64 *number = bpf_map_lookup_elem(&addresses, &key);

	return number ? *number : 0;
}

/* Returns the row of a context. If two threads do this at once, one of them gets true. */
static __always_inline bool drop_context(struct gp_process_key process, __u64 number)
{
	struct gp_context_key key = context_key(process, number);
	struct gp_context *context = context_of(number);
	__u32 row = number & (GP_MOST_CONTEXTS - 1);

	if (!context || bpf_map_delete_elem(&contexts, &key))
		return false;
	context->number = 0;
	give_back_row(&unused_contexts, row);
	return true;
}

/* Takes a row for a new context and returns the context's number; 0 if there is no room. */
static __always_inline __u64 new_context_number(struct gp_process_key process)
{
	__u32 row = take_row(&context_rows, &unused_contexts, &gp_context_rows_used);
	__u64 number = __sync_fetch_and_add(&gp_next_context, 1) * GP_MOST_CONTEXTS + row;
	struct gp_context *context = bpf_map_lookup_elem(&context_rows, &row);
	struct gp_context_key key = context_key(process, number);

	if (!row || !context)
		return 0;
	__builtin_memset(context, 0, sizeof(*context));
	if (!put_row(&contexts, &unused_contexts, &key, row))
		return 0;
	context->number = number;
	return number;
}

/*
 * Assigns a number and a row to the context at an address, in place of the one with the number `before`; 0
 * if there is no room. If another thread has assigned one since that was looked up, it is that one.
 */
GP_GLOBAL_FUNC __u64 new_context(__u64 instance, __u32 tgid, __u64 address, __u64 before)
{
	struct gp_process_key process = {.instance = instance, .tgid = tgid};
	struct gp_context_key at = context_key(process, address);
	__u64 number = new_context_number(process), *known;
	struct gp_context *succeeded;

	if (!number) {
		count_loss(GP_LOSS_PROCESSES_FULL);
		return 0;
	}
	if (!before && !bpf_map_update_elem(&addresses, &at, &number, BPF_NOEXIST))
		return number;
	/* if two threads do this at once, one wins */
	known = bpf_map_lookup_elem(&addresses, &at);
	if (known && __sync_val_compare_and_swap(known, before, number) == before) {
		succeeded = context_of(before);
		if (succeeded)
			__sync_fetch_and_or(&succeeded->flags, GP_SUCCEEDED);
		return number;
	}
	drop_context(process, number);
	return known ? *known : 0;
}

/* The number of the context at an address, which gets a row if it has none. */
static __always_inline __u64 known_context(struct gp_process_key process, __u64 address)
{
	__u64 number = context_number_at(process, address);

	return context_of(number) ? number : new_context(process.instance, process.tgid, address, number);
}

/*
 * The same for the context that a thread allocates in. That is nearly always the one that it last allocated
 * in, so the address need not be looked up while it still belongs to that context.
 */
static __always_inline __u64 context_of_thread(struct gp_thread *thread, __u64 address)
{
	struct gp_process_key process = {.instance = thread->instance, .tgid = thread->tgid};
	struct gp_context *last = context_of(thread->context);

	if (!last || thread->context_address != address || last->flags & (GP_ENDING | GP_SUCCEEDED)) {
		thread->context = known_context(process, address);
		thread->context_address = address;
	}
	return thread->context;
}

/* The GPU that a context is on. */
static __always_inline __u32 device_of(const struct gp_context *row)
{
	return row->device ? row->device - 1 : GP_NO_DEVICE;
}

static __always_inline void raise_peak(struct gp_memory *memory, __u64 live_bytes)
{
	for (int i = 0; i < GP_UPDATES; i++) {
		__u64 peak = memory->peak_bytes;

		if (live_bytes <= peak ||
		    __sync_val_compare_and_swap(&memory->peak_bytes, peak, live_bytes) == peak)
			return;
	}
}

/*
 * Adds to the live memory of a process and of one of its contexts, or subtracts from it. Returns the live
 * bytes of the process afterwards.
 */
static __always_inline __u64 change_live_bytes(struct gp_memory *memory, struct gp_context *row, __u32 space,
					       __u64 bytes, __s64 sign)
{
	__u64 live_bytes;

	if (space >= GP_SPACES)
		return 0;
	live_bytes = __sync_fetch_and_add(&memory->live_bytes, sign * bytes) + sign * bytes;
	__sync_fetch_and_add(&row->live_bytes[space], sign * bytes);
	__sync_fetch_and_add(&row->live_allocations[space], sign);
	return live_bytes;
}

/* Annotates an allocation with the live bytes of the process after it. */
static __always_inline void annotate_live(struct gp_call *call, struct gp_memory *memory, __u64 live_bytes)
{
	raise_peak(memory, live_bytes);
	if (call->effect != GP_EFFECT_REPLACE)
		call->effect = GP_EFFECT_ALLOC;
	call->detail.allocated.live_bytes = live_bytes;
}

/*
 * A context has ended, and with it everything allocated in it. Its row is returned, so that entries left in
 * the table of allocations are known to have ended. CUDA does not allow other threads to use a context
 * while it is being ended, so nothing is added in the meantime.
 */
static __always_inline bool end_context(struct gp_call *call, __u64 number)
{
	struct gp_context *row = context_of(number);
	struct gp_memory *memory = memory_of(process_of(call));
	__u64 all = 0, allocations = 0;

	if (!row || !memory)
		return false;
	call->device = device_of(row);
	for (int space = 0; space < GP_SPACES; space++) {
		call->stack.ended[space].allocations = row->live_allocations[space];
		call->stack.ended[space].bytes = row->live_bytes[space];
	}
	/* only the thread that drops the context counts it */
	if (!drop_context(process_of(call), number))
		return false;
	for (int space = 0; space < GP_SPACES; space++) {
		allocations += call->stack.ended[space].allocations;
		all += call->stack.ended[space].bytes;
	}
	__sync_fetch_and_add(&memory->live_bytes, -all);
	__sync_fetch_and_add(&memory->freed_with_context_allocations, allocations);
	__sync_fetch_and_add(&memory->freed_with_context_bytes, all);
	call->bytes = all;
	call->effect = GP_EFFECT_CONTEXT_END;
	return true;
}

#endif
