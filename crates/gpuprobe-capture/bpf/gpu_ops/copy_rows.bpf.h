/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The rows that copies and memsets are counted in. Threads that copy at once would wait for each other if
 * they wrote the same row, so a process has several lanes: each thread writes the rows of one lane, and user
 * space adds up the lanes. A lane belongs to no thread, so nothing is lost when a thread exits, and nothing
 * is left behind. Threads that share a lane, or the row of all lanes, are counted as exactly, only slower.
 */
#ifndef GP_COPY_ROWS_BPF_H
#define GP_COPY_ROWS_BPF_H

#include "../core/common.bpf.h"
#include "gpu_op_maps.bpf.h"

/* What is counted of a copy, in one word: gp_copy_kind, gp_host_memory << 8, and these bits. */
#define GP_COPY_ASYNC (1 << 16)
#define GP_COPY_FAILED (1 << 17)
/* not the first copy of a batch: the time of the batch is counted with the first */
#define GP_COPY_UNTIMED (1 << 18)

/* The place of a sort of copies in the thread's cache of row numbers: every sort has its own. */
static __always_inline __u32 copy_place(__u32 sort)
{
	__u32 place = (sort & 7) | (sort >> 8 & 7) << 3 | !!(sort & GP_COPY_ASYNC) << 6;

	/* the compiler knows the bound, but the verifier of Linux 6.1 does not, so the mask must stay */
	barrier_var(place);
	return place & (GP_COPY_CACHE - 1);
}

/* The lane of a thread, from 1. The threads of a process take turns. */
static __always_inline __u32 copy_lane(struct gp_thread *thread)
{
	__u32 row = thread->memory_row;
	struct gp_memory *process;

	if (!thread->copy_lane) {
		process = row ? bpf_map_lookup_elem(&memory_rows, &row) : NULL;
		/* its threads are not known */
		if (!process)
			return GP_ALL_LANES;
		thread->copy_lane = 1 + (__sync_fetch_and_add(&process->copy_threads, 1) & (GP_LANES - 1));
	}
	return thread->copy_lane;
}

/* The row number of a sort of copies for this thread; 0 if there is no room. */
GP_GLOBAL_FUNC int find_copy_row(struct gp_thread *thread, __u32 sort)
{
	struct gp_copy_key key = {.kind = sort, .host = sort >> 8, .is_async = !!(sort & GP_COPY_ASYNC)};
	__u32 *known, row;

	if (!thread)
		return 0;
	key.instance = thread->instance;
	key.tgid = thread->tgid;
	key.lane = copy_lane(thread);
	known = bpf_map_lookup_elem(&copies, &key);
	if (known)
		return *known;
	row = take_row(&copy_rows, &unused_copies, &gp_copy_rows_used);
	/* the table is nearly full: what is left is for processes, not for lanes */
	if (!row || row > gp_config.rows_by_lane)
		key.lane = GP_ALL_LANES;
	row = put_row(&copies, &unused_copies, &key, row);
	if (!row)
		count_loss(GP_LOSS_GPU_OPS_FULL);
	return row;
}

/* Counts a copy or a memset. */
GP_GLOBAL_FUNC int add_copy(struct gp_thread *thread, const struct gp_call *call, __u32 sort, __u64 bytes)
{
	struct gp_copies *counters;
	__u32 place = copy_place(sort), row;

	if (!thread || !call)
		return 0;
	row = thread->copy_cache[place];
	if (!row) {
		row = find_copy_row(thread, sort);
		thread->copy_cache[place] = row;
	}
	counters = row ? bpf_map_lookup_elem(&copy_rows, &row) : NULL;
	if (!counters)
		return 0;
	if (sort & GP_COPY_FAILED) {
		__sync_fetch_and_add(&counters->errors, call->weight);
		return 0;
	}
	add_bytes(&counters->bytes, bytes * call->weight);
	/* the number of copies is the sum of the sizes */
	__sync_fetch_and_add(&counters->sizes[log2_bucket(bytes)], call->weight);
	if (!(sort & GP_COPY_UNTIMED))
		__sync_fetch_and_add(&counters->total_ns, call->duration_ns * call->weight);
	return 0;
}

#endif
