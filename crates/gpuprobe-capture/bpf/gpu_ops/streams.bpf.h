/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Streams and their gaps: the time between the return of a launch or a wait and the beginning of the next
 * launch, when nothing was launched.
 */
#ifndef GP_STREAMS_BPF_H
#define GP_STREAMS_BPF_H

#include "../memory/live_totals.bpf.h"
#include "gpu_op_maps.bpf.h"

/* CU_STREAM_PER_THREAD: the calling thread's own default stream */
#define GP_PER_THREAD_STREAM 2
/* stand-ins for that stream and for all streams of a process; no stream has such an address */
#define GP_STREAM_OF(tid) (1ULL << 63 | (tid))
#define GP_ALL_STREAMS (~0ULL)

static __always_inline struct gp_live_key key_of(const struct gp_call *call, __u64 handle)
{
	return (struct gp_live_key){.pointer = handle, .instance = call->instance, .tgid = call->tgid};
}

/* The stream that the handle in a call refers to. */
static __always_inline __u64 stream_named(const struct gp_call *call, const struct gp_function *function,
					  __u64 handle)
{
	if (handle == GP_PER_THREAD_STREAM || (!handle && function->flags & GP_PER_THREAD))
		return GP_STREAM_OF(call->tid);
	/* CU_STREAM_LEGACY is another name of the default stream */
	return handle == 1 ? 0 : handle;
}

static __always_inline __u64 stream_of(const struct gp_call *call, const struct gp_function *function)
{
	__u64 handle = 0;

	argument(call, function->op_desc.stream, &handle);
	return stream_named(call, function, handle);
}

static __always_inline bool is_cached(const struct gp_launch_cache_entry *cached, __u64 handle, __u64 stream,
				      __u32 counted_as)
{
	return cached->handle == handle && cached->stream == stream && cached->counted_as == counted_as;
}

/* The first entry of the set of the launch cache where a kernel and a stream may be. */
static __always_inline __u64 launch_cache_set(__u64 handle, __u64 stream)
{
	return (handle ^ stream << 1) * 0x9e3779b97f4a7c15ULL >> 32 & (GP_LAUNCH_CACHE - 2);
}

/*
 * The launch cache entry of a kernel and a stream. Its row numbers are 0 if it was not in the cache. Each
 * set has two entries: a new one takes the first and moves the previous one to the second.
 */
static __always_inline struct gp_launch_cache_entry *
launch_cache_entry(struct gp_thread *thread, __u64 handle, __u64 stream, __u32 counted_as)
{
	__u64 set = launch_cache_set(handle, stream);
	struct gp_launch_cache_entry *first = &thread->launch_cache[set];
	struct gp_launch_cache_entry *second = &thread->launch_cache[set + 1];

	if (is_cached(first, handle, stream, counted_as))
		return first;
	if (is_cached(second, handle, stream, counted_as))
		return second;
	*second = *first;
	if (!gp_config.rows)
		thread->probed_launches[set + 1] = thread->probed_launches[set];
	first->handle = handle;
	first->stream = stream;
	first->counted_as = counted_as;
	first->launches_row = 0;
	first->stream_row = 0;
	first->unprobed_left = 0;
	return first;
}

/* The row number of a stream; 0 if there is no room. */
GP_GLOBAL_FUNC int find_stream(const struct gp_call *call, __u64 stream)
{
	struct gp_live_key key;

	if (!call)
		return 0;
	key = key_of(call, stream);
	return row_of(&streams, &stream_rows, &unused_streams, &gp_stream_rows_used, &key,
		      GP_LOSS_GPU_OPS_FULL);
}

static __always_inline struct gp_stream *stream_row(__u32 number)
{
	return number ? bpf_map_lookup_elem(&stream_rows, &number) : NULL;
}

/* The row number of a stream, from the launch cache. */
static __always_inline __u32 used_stream_row(struct gp_thread *thread, const struct gp_call *call,
					     __u64 stream)
{
	struct gp_launch_cache_entry *cached = launch_cache_entry(thread, 0, stream, 0);

	if (!cached->stream_row)
		cached->stream_row = find_stream(call, stream);
	return cached->stream_row;
}

static __always_inline struct gp_stream *used_stream(struct gp_thread *thread, const struct gp_call *call,
						     __u64 stream)
{
	return stream_row(used_stream_row(thread, call, stream));
}

static __always_inline struct gp_stream *all_streams(struct gp_thread *thread, const struct gp_call *call)
{
	if (!thread->all_streams_row)
		thread->all_streams_row = find_stream(call, GP_ALL_STREAMS);
	return stream_row(thread->all_streams_row);
}

/*
 * Stores a gap in place of the shortest of the longest gaps. If two threads do this at once, one gap may be
 * lost.
 */
GP_GLOBAL_FUNC int keep_gap(struct gp_stream *row, const struct gp_gap *gap)
{
	__u64 least = ~0ULL;
	__u32 at = 0;

	if (!row || !gap)
		return 0;
	for (__u32 i = 0; i < GP_LONGEST; i++) {
		if (row->longest[i].ns < least) {
			least = row->longest[i].ns;
			at = i;
		}
	}
	barrier_var(at);
	if (at >= GP_LONGEST)
		return 0;
	row->longest[at] = *gap;
	least = ~0ULL;
	for (__u32 i = 0; i < GP_LONGEST; i++) {
		if (row->longest[i].ns < least)
			least = row->longest[i].ns;
	}
	row->kept_ns = least;
	return 0;
}

/* A launch begins on a stream, which ends its gap. Before the first launch on a stream there is no gap. */
static __always_inline void end_gap(struct gp_thread *thread, const struct gp_call *call,
				    struct gp_stream *row)
{
	struct gp_stream *all = all_streams(thread, call);
	__u64 synced_ns = row->synced_ns, after_ns = row->launched_after_ns;
	struct gp_gap gap = {.since_ns = row->launched_ns, .kind = GP_AFTER_LAUNCH};
	struct gp_gaps *gaps;

	if (!row->launched_ns)
		return;
	if (all && all->synced_ns > synced_ns)
		synced_ns = all->synced_ns;
	if (synced_ns >= after_ns) {
		after_ns = gap.since_ns = synced_ns;
		gap.kind = GP_AFTER_SYNC;
	}
	/* a launch of another thread returned after this one began */
	if (call->start_ns <= after_ns)
		return;
	/* between turns, launches are not seen */
	if (call->weight > 1 && after_ns < gp_turn.from_ns)
		return;
	/* the last launch took less than was estimated: it has returned at some time in between */
	if (call->start_ns <= gap.since_ns)
		gap.since_ns = after_ns + (call->start_ns - after_ns) / 2;
	gap.ns = call->start_ns - gap.since_ns;
	gaps = &row->gaps[gap.kind & 1];
	__sync_fetch_and_add(&gaps->total_ns, gap.ns * call->weight);
	__sync_fetch_and_add(&gaps->lengths[log2_bucket(gap.ns)], call->weight);
	if (gap.ns > row->kept_ns) {
		if (thread->meanwhile_since_ns >= after_ns)
			gap.meanwhile = thread->meanwhile;
		keep_gap(row, &gap);
	}
}

/* Something was submitted to a stream, or waited for. */
static __always_inline void forget_meanwhile(struct gp_thread *thread)
{
	thread->meanwhile = 0;
	thread->meanwhile_ns = 0;
	thread->meanwhile_since_ns = 0;
}

/* Something was launched. `is_returned`: its return was probed, otherwise its duration is an estimate. */
static __always_inline void note_launch(struct gp_thread *thread, const struct gp_call *call,
					struct gp_stream *row, bool is_returned)
{
	end_gap(thread, call, row);
	row->launched_ns = call->start_ns + call->duration_ns;
	row->launched_after_ns = is_returned ? row->launched_ns : call->start_ns;
	forget_meanwhile(thread);
}

/* A wait has returned. */
static __always_inline void note_sync(struct gp_thread *thread, const struct gp_call *call,
				      struct gp_stream *row)
{
	if (row)
		row->synced_ns = call->start_ns + call->duration_ns;
	forget_meanwhile(thread);
}

/* Keeps the longest call of the host between two launches. */
static __always_inline void note_meanwhile(struct gp_thread *thread, const struct gp_call *call)
{
	if (call->duration_ns < thread->meanwhile_ns)
		return;
	thread->meanwhile = call->function + 1;
	thread->meanwhile_ns = call->duration_ns;
	thread->meanwhile_since_ns = call->start_ns;
}

#endif
