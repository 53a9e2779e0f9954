/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Launches of recordings without a return probe. As in launch_entries.bpf.h, most launches need none: they
 * are taken to have succeeded, and to have taken as long as the last launch of the same CUDA kernel on the
 * same stream of the thread whose return was probed. But each of them has a record.
 *
 * A launch of the CUDA runtime calls a launch of the CUDA driver. Neither has a return probe then, so the
 * stack of open calls cannot show that one is inside the other. When both returns are probed, the distance
 * between the two on the stack is noted, and the address in the runtime that the inner one returns to. The
 * next call of a thread after a launch of the runtime is inside of it if both are the same again.
 *
 * If another call comes before that launch, it is inside the launch of the runtime as long as the return
 * address of that one is still on the stack. Its own return is probed then, and so is that of the next launch
 * of this kernel.
 *
 * Records are deferred until the next call of their thread begins after the launch: at the latest then, the
 * launches have returned. So they do not overlap, and an inner launch is sent before the outer one, as
 * always.
 */
#ifndef GP_DEFERRED_LAUNCHES_BPF_H
#define GP_DEFERRED_LAUNCHES_BPF_H

#include "launch_entries.bpf.h"
#include "../core/open_calls.bpf.h"

/* two functions whose addresses differ by less are in the same library */
#define GP_SAME_LIBRARY_BYTES (1 << 20)

/* What is remembered of the launches of this kernel on this stream. */
static __always_inline struct gp_probed_launches *probed_launches(struct gp_thread *thread,
								  const struct gp_launch_cache_entry *cached)
{
	__u64 at = launch_cache_set(cached->handle, cached->stream);

	if (!is_cached(&thread->launch_cache[at], cached->handle, cached->stream, cached->counted_as))
		at++;
	/* the verifier of Linux 6.1 does not know the bound without the mask */
	barrier_var(at);
	return &thread->probed_launches[at & (GP_LAUNCH_CACHE - 1)];
}

/* Fills in what a deferred launch does not have from its entry. It is taken to have succeeded. */
static __always_inline void begin_deferred(struct gp_thread *thread, struct gp_call *call,
					   const struct gp_call *outer, const struct gp_function *function,
					   __u64 duration_ns)
{
	__u16 weight = call->weight;

	begin_call(thread, call, outer, function, call->function);
	call->flags = outer ? GP_UNOBSERVED | GP_NESTED_OP : GP_UNOBSERVED;
	call->weight = weight;
	call->actions |= GP_OPEN_LAUNCH;
	call->result = 0;
	call->bytes = 0;
	call->space = 0;
	call->start_ns = bpf_ktime_get_ns();
	call->duration_ns = duration_ns;
	thread->deferred_count++;
}

/*
 * Defers the launch that begins now, if it needs no return probe. Its arguments are in the first deferred
 * call. Returns 0 if its return is to be probed.
 */
GP_GLOBAL_FUNC int defer_launch(struct gp_thread *thread, const struct gp_function *function)
{
	struct gp_launch_cache_entry *cached;
	struct gp_probed_launches *probed;
	struct launch launch = {};
	struct gp_call *call;

	if (!thread || !function)
		return 0;
	call = &thread->deferred[0];
	if (call->flags)
		return 0;
	read_launch(call, function, &launch);
	cached = launch_cache_entry(thread, launch.handle, launch.stream, call->function + 1);
	if (!cached->unprobed_left)
		return 0;
	if (gp_has_captured) {
		struct gp_stream *stream = stream_row(cached->stream_row);

		if (!stream || stream->capture)
			return 0;
	}
	probed = probed_launches(thread, cached);
	if (launch.shared > probed->shared_most ||
	    !is_within(probed->grid_least, probed->grid_most, launch.grid) ||
	    !is_within(probed->block_least, probed->block_most, launch.block))
		return 0;
	cached->unprobed_left--;
	thread->expected = probed->inner;
	begin_deferred(thread, call, NULL, function, cached->probed_ns);
	return 1;
}

/* Sends a deferred launch. It has returned before now. */
static __always_inline void send_deferred_call(struct gp_call *call, __u64 now)
{
	__u32 index = call->function;
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);

	if (call->duration_ns > now - call->start_ns)
		call->duration_ns = now - call->start_ns;
	if (function)
		send_call(call, function);
}

/* Makes the outer one of two deferred launches last until the inner one has ended. */
static __always_inline void enclose_deferred(struct gp_call *outer, const struct gp_call *inner)
{
	__u64 least = inner->start_ns + inner->duration_ns - outer->start_ns;

	if (outer->duration_ns < least)
		outer->duration_ns = least;
}

/* The next launch of the kernel that is deferred has a return probe. */
GP_GLOBAL_FUNC int probe_next_launch(struct gp_thread *thread)
{
	struct gp_function *function;
	struct launch launch = {};
	struct gp_call *call;
	__u32 index;

	if (!thread)
		return 0;
	call = &thread->deferred[0];
	index = call->function;
	function = bpf_map_lookup_elem(&functions, &index);
	if (!function)
		return 0;
	read_launch(call, function, &launch);
	launch_cache_entry(thread, launch.handle, launch.stream, index + 1)->unprobed_left = 0;
	return 0;
}

/*
 * Whether a call of this library that begins now is inside the deferred launch of the CUDA runtime, although
 * another one is expected there: it is made by the runtime, and the runtime has not returned. After the
 * expected one the runtime makes no calls: one that looks as if it did is made by another function of it.
 */
static __always_inline bool is_inside_deferred(const struct gp_thread *thread, __u64 stack_pointer,
					       __u16 library)
{
	const struct gp_call *outer = &thread->deferred[0];
	__u64 expected = thread->expected.return_address, address = 0;

	if (thread->deferred_count != 1 || !expected || outer->library == library ||
	    outer->stack_pointer <= stack_pointer ||
	    bpf_probe_read_user(&address, sizeof(address), (void *)stack_pointer) ||
	    address - expected + GP_SAME_LIBRARY_BYTES >= 2 * GP_SAME_LIBRARY_BYTES)
		return false;
	return !bpf_probe_read_user(&address, sizeof(address), (void *)outer->stack_pointer) &&
	       address == outer->return_address;
}

/* A call has returned, maybe inside the deferred launch. If it failed, it is not known how the launch ended.
 */
static __always_inline void end_inside_deferred(struct gp_thread *thread, const struct gp_call *call,
						bool failed)
{
	if (call->parent != thread->deferred[0].id)
		return;
	enclose_deferred(&thread->deferred[0], call);
	if (failed) {
		thread->deferred[0].flags |= GP_BEGUN;
		count_loss(GP_LOSS_UNOBSERVED_RETURN);
	}
}

/*
 * Sends the deferred launches of a thread, whose next call begins now, or which exits. If observation has
 * ended meanwhile, the iterator may have written them too; user space takes them once.
 */
GP_GLOBAL_FUNC int send_deferred(struct gp_thread *thread)
{
	__u64 now = bpf_ktime_get_ns();

	if (!thread)
		return 0;
	if (is_stopped_at(now))
		now = gp_stop_ns;
	if (thread->deferred_count == GP_DEFERRED) {
		send_deferred_call(&thread->deferred[1], now);
		enclose_deferred(&thread->deferred[0], &thread->deferred[1]);
	}
	if (thread->deferred_count)
		send_deferred_call(&thread->deferred[0], now);
	thread->deferred_count = 0;
	return 0;
}

/* Extends a range to include a value. */
static __always_inline void include(__u64 *least, __u64 *most, __u64 packed)
{
	if (volume(packed) < volume(*least))
		*least = packed;
	if (volume(packed) > volume(*most))
		*most = packed;
}

/*
 * A launch has returned. Decides which of the next ones have a return probe, and notes the launch that was
 * made inside it. If there were other calls inside, the next ones all have return probes.
 */
GP_GLOBAL_FUNC int plan_next_launches(struct gp_thread *thread, const struct gp_call *call,
				      const struct gp_function *function, bool failed, __u64 returned_to)
{
	struct gp_launch_cache_entry *cached;
	struct gp_probed_launches *probed;
	struct launch launch = {};
	bool is_new, has_inner, is_simple;

	if (!thread || !call || !function)
		return 0;
	if (!thread->depth && call->parent)
		return 0;
	if (thread->depth) {
		thread->inner_id = call->id;
		thread->inner.return_address = returned_to;
		thread->inner.distance = open_call(thread, 0)->stack_pointer - call->stack_pointer;
		thread->inner.function = call->function;
		thread->inner.duration_ns = call->duration_ns;
		return 0;
	}
	read_launch(call, function, &launch);
	cached = launch_cache_entry(thread, launch.handle, launch.stream, call->function + 1);
	probed = probed_launches(thread, cached);
	is_new = !cached->launches_row;
	cached->launches_row = 1;
	if (is_new) {
		probed->grid_least = probed->grid_most = launch.grid;
		probed->block_least = probed->block_most = launch.block;
		probed->shared_most = launch.shared;
	}
	/* a launch that failed does not show what is allowed */
	if (!failed) {
		include(&probed->grid_least, &probed->grid_most, launch.grid);
		include(&probed->block_least, &probed->block_most, launch.block);
		if (launch.shared > probed->shared_most)
			probed->shared_most = launch.shared;
	}
	if (gp_has_captured && !cached->stream_row)
		cached->stream_row = find_stream(call, launch.stream);
	has_inner = thread->inner_id == call->id + 1;
	is_simple = thread->next_id == call->id + 1 + has_inner;
	probed->inner = thread->inner;
	if (!has_inner)
		probed->inner.return_address = 0;
	plan_returns(thread, cached, call, is_new || !is_simple || call->flags & GP_CAPTURED, failed);
	return 0;
}

#endif
