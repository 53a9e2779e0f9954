/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Launches, counted by kernel and stream at the outermost call that launches. */
#ifndef GP_LAUNCHES_BPF_H
#define GP_LAUNCHES_BPF_H

#include "graphs.bpf.h"
#include "cuda_kernel_names.bpf.h"

#define GP_LIST_ENTRY 56

struct launch {
	__u64 handle;
	__u64 stream;
	/* x in the low half, then y and z; 0 if not known */
	__u64 grid;
	__u64 block;
	__u64 shared;
	/* as in gp_launch_key */
	__u32 counted_as;
	/* see GP_SAMPLES_RETURNS */
	__u32 samples_returns;
};

/* at most so many launches follow each other without a return probe; one less than a power of two */
#define GP_MOST_UNPROBED 31
/* a launch that took longer says nothing about the next one, which is then probed */
#define GP_MOST_TYPICAL_NS 10000000

/* Packs three dimensions into one word: see gp_launches. */
static __always_inline __u64 dimensions(__u64 x, __u64 y, __u64 z)
{
	return (__u32)x | (y & 0xffff) << 32 | (z & 0xffff) << 48;
}

static __always_inline __u64 volume(__u64 packed)
{
	return (__u32)packed * (packed >> 32 & 0xffff) * (packed >> 48);
}

static __always_inline void three_dimensions(const struct gp_call *call, const struct gp_arg_loc *locs,
					     __u64 *packed)
{
	__u64 x = 0, y = 1, z = 1;

	if (!argument(call, locs[0], &x))
		return;
	argument(call, locs[1], &y);
	argument(call, locs[2], &z);
	*packed = dimensions(x, y, z);
}

/* A dim3 is two words: x and y are in the first. */
static __always_inline void dim3_argument(const struct gp_call *call, const struct gp_arg_loc *locs,
					  __u64 *packed)
{
	__u64 xy = 0, z = 0;

	if (argument(call, locs[0], &xy) && argument(call, locs[1], &z))
		*packed = dimensions(xy, xy >> 32, z);
}

/*
 * Reads the arguments of cuLaunchKernel by the calling convention, without looking up the location of each.
 */
static __always_inline __u64 read_usual(const struct gp_call *call, struct launch *launch)
{
	const __u64 *registers = call->registers, *stack = call->stack.words;

	launch->handle = registers[0];
	launch->grid = dimensions(registers[1], registers[2], registers[3]);
#if defined(__TARGET_ARCH_x86)
	launch->block = dimensions(registers[4], registers[5], stack[0]);
	launch->shared = (__u32)stack[1];
	return stack[2];
#else
	launch->block = dimensions(registers[4], registers[5], registers[6]);
	launch->shared = (__u32)registers[7];
	return stack[0];
#endif
}

#include "launch_sizes.bpf.h"

/* Reads what a call launches from its arguments. */
static __always_inline void read_launch(const struct gp_call *call, const struct gp_function *function,
					struct launch *launch)
{
	const struct gp_op_desc *op = &function->op_desc;
	const __u32 *config = (const __u32 *)call->pointee.bytes;
	__u64 stream_handle = 0;

	if (op->shape == GP_LAUNCH_USUAL && !(call->flags & GP_UNREAD_STACK)) {
		launch->stream = stream_named(call, function, read_usual(call, launch));
		return;
	}
	argument(call, function->cuda_kernel, &launch->handle);
	if (op->shape == GP_LAUNCH_SIZES) {
		read_launch_by_sizes(call, function, launch);
		argument(call, op->stream, &stream_handle);
	} else if (op->shape == GP_LAUNCH_THREADS) {
		read_launch_by_threads(call, op, launch);
		argument(call, op->shared, &launch->shared);
		launch->shared = (__u32)launch->shared;
		argument(call, op->stream, &stream_handle);
	} else if (op->shape == GP_LAUNCH_GROUPS) {
		launch->handle |= kernel_tag(call, launch->handle);
		if (!(call->flags & GP_UNREAD_POINTEE))
			launch->grid = dimensions_within(config[0], config[1], config[2]);
		argument(call, op->stream, &stream_handle);
	} else if (op->shape == GP_LAUNCH_CONFIG) {
		if (!(call->flags & GP_UNREAD_POINTEE)) {
			launch->grid = dimensions(config[0], config[1], config[2]);
			launch->block = dimensions(config[3], config[4], config[5]);
			launch->shared = config[6];
			stream_handle = *(const __u64 *)(call->pointee.bytes + 32);
		}
	} else {
		if (op->shape == GP_LAUNCH_DIM3) {
			dim3_argument(call, op->grid, &launch->grid);
			dim3_argument(call, op->block, &launch->block);
		} else {
			three_dimensions(call, op->grid, &launch->grid);
			three_dimensions(call, op->block, &launch->block);
		}
		if (argument(call, op->shared, &launch->shared))
			launch->shared = (__u32)launch->shared;
		argument(call, op->stream, &stream_handle);
	}
	launch->stream = stream_named(call, function, stream_handle);
}

/* The row number of a kernel on a stream; 0 if there is no room. */
GP_GLOBAL_FUNC int find_launches(const struct gp_call *call, const struct launch *launch)
{
	__u32 *known, row;
	struct gp_launch_key key;

	if (!call || !launch)
		return 0;
	key = (struct gp_launch_key){.instance = call->instance,
				     .handle = launch->handle,
				     .stream = launch->stream,
				     .tgid = call->tgid,
				     .counted_as = launch->counted_as};
	known = bpf_map_lookup_elem(&launches, &key);
	if (known)
		return *known;
	row = take_row(&launch_rows, &unused_launches, &gp_launch_rows_used);
	/* there were very many streams: the remaining ones of this kernel are counted together */
	if (!row || row > gp_config.rows_by_stream)
		key.stream = GP_ALL_STREAMS;
	row = put_row(&launches, &unused_launches, &key, row);
	if (!row)
		count_loss(GP_LOSS_GPU_OPS_FULL);
	return row;
}

/* Extends a range to include a value. 0 means that the row has no range yet. */
GP_GLOBAL_FUNC int widen(__u64 *least, __u64 *most, __u64 packed)
{
	if (!least || !most)
		return 0;
	for (int i = 0; i < GP_UPDATES; i++) {
		__u64 before = *least;

		if (before && volume(before) <= volume(packed))
			break;
		if (__sync_val_compare_and_swap(least, before, packed) == before)
			break;
	}
	for (int i = 0; i < GP_UPDATES; i++) {
		__u64 before = *most;

		if (before && volume(before) >= volume(packed))
			break;
		if (__sync_val_compare_and_swap(most, before, packed) == before)
			break;
	}
	return 0;
}

static __always_inline void raise(__u64 *most, __u64 value)
{
	for (int i = 0; i < GP_UPDATES; i++) {
		__u64 before = *most;

		if (value <= before || __sync_val_compare_and_swap(most, before, value) == before)
			return;
	}
}

static __always_inline void count_in_row(struct gp_launches *row, const struct gp_call *call,
					 const struct launch *launch, bool failed)
{
	__sync_fetch_and_add(&row->total_ns, call->duration_ns * call->weight);
	__sync_fetch_and_add(&row->latency[log2_bucket(call->duration_ns)], call->weight);
	if (failed) {
		__sync_fetch_and_add(&row->errors, call->weight);
		return;
	}
	__sync_fetch_and_add(&row->threads, volume(launch->grid) * volume(launch->block) * call->weight);
	if (launch->grid && (row->grid_least != launch->grid || row->grid_most != launch->grid))
		widen(&row->grid_least, &row->grid_most, launch->grid);
	if (launch->block && (row->block_least != launch->block || row->block_most != launch->block))
		widen(&row->block_least, &row->block_most, launch->block);
	raise(&row->shared_most, launch->shared);
}

/* Decides, when a launch has returned, which of the next ones have a return probe: see launch_entries.bpf.h
 */
static __always_inline void plan_returns(struct gp_thread *thread, struct gp_launch_cache_entry *cached,
					 const struct gp_call *call, bool is_new, bool failed)
{
	bool is_typical = !failed && !is_new && call->duration_ns <= GP_MOST_TYPICAL_NS;

	cached->unprobed_left = is_typical ? bpf_get_prandom_u32() & GP_MOST_UNPROBED : 0;
	if (is_typical)
		cached->probed_ns = call->duration_ns;
	if (!failed)
		thread->has_failed = 0;
}

/*
 * The outcome of count_launch(), as bits: this thread may never have launched the kernel before, and the
 * launch is counted in a row.
 */
#define GP_NEW_KERNEL 1
#define GP_IN_A_ROW 2

/* Counts one launch of a kernel, successful or not. */
GP_GLOBAL_FUNC int count_launch(struct gp_thread *thread, struct gp_call *call, const struct launch *launch,
				bool failed)
{
	struct gp_launches *row;
	struct gp_stream *stream;
	struct gp_launch_cache_entry *cached;
	__u32 number;
	int outcome = 0;

	if (!thread || !call || !launch)
		return 0;
	cached = launch_cache_entry(thread, launch->handle, launch->stream, launch->counted_as);
	if (!cached->launches_row) {
		cached->stream_row = find_stream(call, launch->stream);
		cached->launches_row = find_launches(call, launch);
		outcome = GP_NEW_KERNEL;
	}
	stream = stream_row(cached->stream_row);
	if (stream && is_captured(call, stream, launch->handle, 1, failed)) {
		call->flags |= GP_CAPTURED;
		return outcome;
	}
	if (launch->samples_returns)
		plan_returns(thread, cached, call, outcome & GP_NEW_KERNEL, failed);
	number = cached->launches_row;
	row = number ? bpf_map_lookup_elem(&launch_rows, &number) : NULL;
	if (row) {
		count_in_row(row, call, launch, failed);
		outcome |= GP_IN_A_ROW;
	}
	if (failed)
		return outcome;
	/* looked up again, because the verifier of Linux 6.1 does not remember that it was not NULL */
	stream = stream_row(cached->stream_row);
	if (stream)
		note_launch(thread, call, stream, true);
	return outcome;
}

struct listing {
	struct gp_thread *thread;
	struct gp_call *call;
	__u64 failed;
	struct launch first;
};

static long count_list_entry(__u64 index, struct listing *listing)
{
	count_launch(listing->thread, listing->call, &listing->first, listing->failed);
	return 0;
}

/*
 * Reads the first entry of a list: the kernel, six dimensions, shared memory and stream. In the CUDA
 * runtime's struct the last two follow the kernel's arguments.
 */
GP_GLOBAL_FUNC int read_list(const struct gp_call *call, const struct gp_function *function,
			     struct launch *launch)
{
	__u64 at = 0, words[GP_LIST_ENTRY / 8];
	const __u32 *halves = (const __u32 *)words;
	bool is_runtime_list;

	if (!call || !function || !launch)
		return 0;
	is_runtime_list = function->op_desc.shape == GP_LAUNCH_RUNTIME_LIST;
	launch->stream = stream_named(call, function, 0);
	if (!argument(call, function->op_desc.params, &at) ||
	    bpf_probe_read_user(words, sizeof(words), (void *)at))
		return 0;
	launch->handle = words[0];
	launch->grid = dimensions(halves[2], halves[3], halves[4]);
	launch->block = dimensions(halves[5], halves[6], halves[7]);
	launch->shared = (__u32)words[is_runtime_list ? 5 : 4];
	launch->stream = stream_named(call, function, words[is_runtime_list ? 6 : 5]);
	return 1;
}

/* A launch has returned. Returns whether the call is counted in the row of the launch. */
GP_GLOBAL_FUNC int end_launch(struct gp_thread *thread, struct gp_call *call,
			      const struct gp_function *function, bool failed)
{
	struct launch launch = {};
	int outcome;

	if (!thread || !call || !function)
		return 0;
	if (function->flags & GP_COUNT)
		launch.counted_as = call->function + 1;
	launch.samples_returns = function->flags & GP_SAMPLES_RETURNS;
	read_launch(call, function, &launch);
	outcome = count_launch(thread, call, &launch, failed);
	if (outcome & GP_NEW_KERNEL && gp_config.names)
		report_new_kernel(call, function, NULL);
	return !!(outcome & GP_IN_A_ROW);
}

/*
 * One kernel was launched on several GPUs. CUDA requires all entries of the list to be equal except for
 * their streams, so each counts as a launch like the first, on the stream of the first.
 */
GP_GLOBAL_FUNC int end_launches(struct gp_thread *thread, struct gp_call *call,
				const struct gp_function *function, bool failed)
{
	struct listing listing = {.failed = failed};
	__u64 count = 0;

	if (!thread || !call || !function)
		return 0;
	listing.thread = thread;
	listing.call = call;
	argument(call, function->op_desc.count, &count);
	count = (__u32)count;
	/* a failed call may have had any arguments */
	if (!read_list(call, function, &listing.first) && !failed)
		count_loss(GP_LOSS_UNREAD_GPU_OP);
	bpf_loop(count < GP_MOST_LAUNCHED ? count : GP_MOST_LAUNCHED, count_list_entry, &listing, 0);
	return 0;
}

#endif
