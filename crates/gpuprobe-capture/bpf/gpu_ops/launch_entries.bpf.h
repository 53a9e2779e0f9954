/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Launches without a return probe. A return probe says how long the launch took and whether it failed, and
 * is about a third of the cost of a launch. So where a probe can decline its return, most launches are
 * counted at their entry, and take as long as the last launch of the same CUDA kernel on the same stream of
 * the thread whose return was probed.
 *
 * Returns are probed at random, once in 16 launches on average, and whenever something is new: the first two
 * launches of a kernel, a launch whose grid or block is larger or smaller than those before in any dimension,
 * one that is captured, and every launch after a call that failed or a launch that took long. So a launch
 * that fails because of its size is seen to fail. The others are taken to have succeeded.
 */
#ifndef GP_LAUNCH_ENTRIES_BPF_H
#define GP_LAUNCH_ENTRIES_BPF_H

#include "launches.bpf.h"

static __always_inline bool is_between(__u32 a, __u32 b, __u32 value)
{
	return a < b ? value >= a && value <= b : value >= b && value <= a;
}

/*
 * Whether a grid or block is not larger than one that was launched before, as a whole and in each dimension:
 * CUDA limits both. `least` and `most` have the smallest and the largest volume.
 */
static __always_inline bool is_within(__u64 least, __u64 most, __u64 packed)
{
	return packed == least || packed == most ||
	       (volume(packed) <= volume(most) && is_between(least, most, packed) &&
		is_between(least >> 32 & 0xffff, most >> 32 & 0xffff, packed >> 32 & 0xffff) &&
		is_between(least >> 48, most >> 48, packed >> 48));
}

/* Counts the launch as one that succeeded. */
static __always_inline void count_unprobed(struct gp_launches *row, const struct gp_call *call,
					   const struct launch *launch)
{
	__sync_fetch_and_add(&row->total_ns, call->duration_ns * call->weight);
	__sync_fetch_and_add(&row->latency[log2_bucket(call->duration_ns)], call->weight);
	__sync_fetch_and_add(&row->threads, volume(launch->grid) * volume(launch->block) * call->weight);
	__sync_fetch_and_add(&row->unprobed_returns, call->weight);
}

/*
 * Counts a launch that begins, if it needs no return probe. The thread has no open calls. Returns 0 if its
 * return is to be probed. Nothing is counted then.
 */
GP_GLOBAL_FUNC int count_launch_at_entry(struct gp_thread *thread, const struct gp_function *function)
{
	struct gp_launch_cache_entry *cached;
	struct launch launch = {};
	struct gp_launches *row;
	struct gp_stream *stream;
	struct gp_call *call;
	__u32 number;

	if (!thread || !function)
		return 0;
	call = open_call(thread, 0);
	launch.counted_as = call->function + 1;
	read_launch(call, function, &launch);
	cached = launch_cache_entry(thread, launch.handle, launch.stream, launch.counted_as);
	if (!cached->unprobed_left)
		return 0;
	stream = stream_row(cached->stream_row);
	if (!stream || stream->capture)
		return 0;
	number = cached->launches_row;
	row = number ? bpf_map_lookup_elem(&launch_rows, &number) : NULL;
	if (!row || launch.shared > row->shared_most ||
	    !is_within(row->grid_least, row->grid_most, launch.grid) ||
	    !is_within(row->block_least, row->block_most, launch.block))
		return 0;
	cached->unprobed_left--;
	call->start_ns = bpf_ktime_get_ns();
	call->duration_ns = cached->probed_ns;
	count_unprobed(row, call, &launch);
	note_launch(thread, call, stream, false);
	thread->last_launch.function = call->function;
	thread->last_launch.stack_pointer = call->stack_pointer;
	thread->last_launch.return_address = call->return_address;
	thread->last_launch.start_ns = call->start_ns;
	return 1;
}

#endif
