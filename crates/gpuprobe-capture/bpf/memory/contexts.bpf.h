/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Which context is current on a thread, which GPU it is on, and when it ends. */
#ifndef GP_CONTEXTS_BPF_H
#define GP_CONTEXTS_BPF_H

#include "physical_memory.bpf.h"
#include "objects.bpf.h"

/*
 * the address of the context of a GPU of HIP, besides its number: no address of a program, nor GP_OF_DEVICE
 */
#define GP_DEVICE_CONTEXT (1ULL << 62)

/* The context that a thread allocates in; 0 if it was made current before the probes were attached. */
static __always_inline __u64 current_context(const struct gp_thread *thread)
{
	__u32 top = thread->contexts_depth - 1;

	if (!thread->contexts_depth)
		return 0;
	barrier_var(top);
	return thread->contexts[top & (GP_CONTEXTS - 1)];
}

static __always_inline void push_context(struct gp_thread *thread, __u64 context)
{
	__u32 top = thread->contexts_depth;

	/* a context above the maximum depth replaces the last one */
	if (top >= GP_CONTEXTS)
		top = GP_CONTEXTS - 1;
	else
		thread->contexts_depth = top + 1;
	barrier_var(top);
	thread->contexts[top & (GP_CONTEXTS - 1)] = context;
}

static __always_inline void pop_context(struct gp_thread *thread)
{
	if (thread->contexts_depth)
		thread->contexts_depth--;
}

static __always_inline void set_context(struct gp_thread *thread, __u64 context)
{
	pop_context(thread);
	if (context)
		push_context(thread, context);
}

static __always_inline __u32 device_argument(const struct gp_call *call, const struct gp_function *function)
{
	__u64 device = GP_NO_DEVICE;

	argument(call, function->device, &device);
	return (__u32)device < GP_NO_DEVICE ? (__u32)device : GP_NO_DEVICE;
}

/*
 * A new context. If another one is known at this address, it has ended, but the call that ended it has not
 * returned yet.
 */
static __always_inline void create_context(struct gp_call *call, __u64 address, __u32 device)
{
	__u64 before = context_number_at(process_of(call), address);
	__u64 number = new_context(call->instance, call->tgid, address, before);
	struct gp_context *row = context_of(number);

	if (row)
		row->device = device + 1;
	call->device = device;
}

/*
 * Whether all calls of the process to the library of this call have been observed. A process that was paused
 * while it mapped its libraries has made none before. Any other process may have, unless it started later
 * than the observation of the library.
 */
static __always_inline bool is_known_from_start(const struct gp_call *call)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 started_ns = BPF_CORE_READ(task, group_leader, start_boottime);
	__u32 row = call->library & (GP_LIBRARIES - 1);
	struct gp_library *library;

	if (started_ns <= gp_config.watched_since_ns)
		return false;
	if (gp_config.pause != GP_PAUSE_NOT)
		return true;
	library = bpf_map_lookup_elem(&libraries, &row);
	return library && started_ns > library->observed_since_ns;
}

/*
 * A reference to a GPU's primary context was taken. The last release is recognised only if the first
 * reference was observed, so references count only for processes that were observed from their start.
 */
static __always_inline void retain_primary(struct gp_call *call, const struct gp_function *function)
{
	__u32 device = device_argument(call, function);
	struct gp_context_key key = context_key(process_of(call), device);
	__u64 context = call->out[0];
	struct gp_context *row;

	if (call->flags & GP_UNREAD_OUT)
		return;
	row = context_of(known_context(process_of(call), context));
	if (!row)
		return;
	row->device = device + 1;
	call->device = device;
	if (bpf_map_update_elem(&primaries, &key, &context, BPF_NOEXIST)) {
		bpf_map_update_elem(&primaries, &key, &context, BPF_ANY);
	} else if (is_known_from_start(call)) {
		__sync_fetch_and_or(&row->flags, GP_COUNTS_REFERENCES);
	}
	__sync_fetch_and_add(&row->references, 1);
}

/*
 * HIP has a context for each GPU. That of the first one, which threads use that have chosen none, has the
 * address 0.
 */
static __always_inline __u64 device_context(__u32 device)
{
	return device ? GP_DEVICE_CONTEXT | device : 0;
}

/* The thread has chosen a GPU. */
static __always_inline void set_device(struct gp_thread *thread, struct gp_call *call,
				       const struct gp_function *function)
{
	__u32 device = device_argument(call, function);
	struct gp_context *row;

	if (device == GP_NO_DEVICE)
		return;
	set_context(thread, device_context(device));
	row = context_of(known_context(process_of(call), device_context(device)));
	if (row)
		row->device = device + 1;
}

/* Everything on the GPU of the thread has ended. */
static __always_inline void reset_device(struct gp_thread *thread, struct gp_call *call)
{
	struct gp_context *row = context_of(call->detail.ending.context);
	__u32 device;

	if (!row)
		return;
	device = row->device;
	if (!end_context(call, call->detail.ending.context))
		return;
	row = context_of(known_context(process_of(call), current_context(thread)));
	if (row)
		row->device = device;
}

/* The number of the context that a call ends if it succeeds; 0 if none. */
static __always_inline __u64 ending_context(const struct gp_call *call, const struct gp_function *function,
					    __u64 current)
{
	struct gp_context_key key = context_key(process_of(call), device_argument(call, function));
	__u64 *primary, address = 0, number;
	struct gp_context *row;

	if (function->memory_op == GP_DEVICE_RESET)
		return context_number_at(process_of(call), current);
	if (function->memory_op == GP_CONTEXT_DESTROY) {
		argument(call, function->pointer, &address);
		return context_number_at(process_of(call), address);
	}
	primary = bpf_map_lookup_elem(&primaries, &key);
	if (!primary)
		return 0;
	number = context_number_at(process_of(call), *primary);
	if (function->memory_op == GP_PRIMARY_RESET)
		return number;
	row = context_of(number);
	return row && row->references == 1 && row->flags & GP_COUNTS_REFERENCES ? number : 0;
}

/*
 * A call may end a context. The context is marked at the entry, because its addresses may be reused before
 * the call returns.
 */
GP_OWN_FRAME void begin_end(struct gp_call *call, const struct gp_function *function, __u64 current)
{
	struct gp_context *row;

	call->effect = GP_EFFECT_ENDING;
	call->detail.ending.context = ending_context(call, function, current);
	row = context_of(call->detail.ending.context);
	if (row)
		__sync_fetch_and_or(&row->flags,
				    function->memory_op == GP_PRIMARY_RELEASE ? GP_MAY_END : GP_ENDING);
}

/* The call did not end the context. */
static __always_inline void cancel_end(struct gp_call *call)
{
	struct gp_context *row = context_of(call->detail.ending.context);

	if (row)
		__sync_fetch_and_and(&row->flags, ~(GP_ENDING | GP_MAY_END));
}

static __always_inline bool ends_contexts(const struct gp_function *function)
{
	return function->memory_op == GP_CONTEXT_DESTROY || function->memory_op == GP_PRIMARY_RELEASE ||
	       function->memory_op == GP_PRIMARY_RESET || function->memory_op == GP_DEVICE_RESET;
}

/* The primary context of a GPU ends with its last reference. */
static __always_inline void release_primary(struct gp_call *call, const struct gp_function *function)
{
	struct gp_context_key key = context_key(process_of(call), device_argument(call, function));
	__u64 *primary = bpf_map_lookup_elem(&primaries, &key);
	struct gp_context *row;

	if (!primary)
		return;
	row = context_of(context_number_at(process_of(call), *primary));
	if (!row)
		return;
	if (__sync_fetch_and_add(&row->references, -1) != 1 || !call->detail.ending.context)
		return cancel_end(call);
	bpf_map_delete_elem(&primaries, &key);
	end_context(call, call->detail.ending.context);
}

/*
 * A reset ends everything in the context. The context exists again at its next use, and keeps its
 * references.
 */
static __always_inline void reset_primary(struct gp_call *call, const struct gp_function *function)
{
	struct gp_context_key key = context_key(process_of(call), device_argument(call, function));
	__u64 *primary = bpf_map_lookup_elem(&primaries, &key);
	struct gp_context *row = context_of(call->detail.ending.context);
	__u64 references, address;
	__u32 device, flags;

	if (!primary || !row)
		return;
	address = *primary;
	references = row->references;
	device = row->device;
	flags = row->flags;
	if (!end_context(call, call->detail.ending.context))
		return;
	row = context_of(
	    new_context(call->instance, call->tgid, address, context_number_at(process_of(call), address)));
	if (!row)
		return;
	row->references = references;
	row->device = device;
	row->flags = flags & ~GP_ENDING;
}

/*
 * Stores how the CUDA driver identifies one of the process's GPUs. If there is no room, the GPU is shown by
 * the process's own number.
 */
GP_OWN_FRAME void record_gpu_identity(struct gp_call *call, const struct gp_function *function)
{
	struct gp_context_key key = context_key(process_of(call), device_argument(call, function));
	__u8 identity[16] = {};
	__u64 address = 0;

	if (key.id >= GP_NO_DEVICE || !argument(call, function->pointer, &address) ||
	    bpf_probe_read_user(identity, sizeof(identity), (void *)address))
		return;
	key.id |= (__u64)call->function << 32;
	bpf_map_update_elem(&identities, &key, identity, BPF_ANY);
}

/* Accounts for what a successful call did to contexts and physical memory. */
GP_OWN_FRAME void after_memory_op(struct gp_thread *thread, struct gp_call *call,
				  const struct gp_function *function)
{
	__u64 context = 0;

	argument(call, function->pointer, &context);
	switch (function->memory_op) {
	case GP_VMM_CREATE:
		return vmm_create(call, false);
	case GP_VMM_IMPORT:
		return vmm_create(call, true);
	case GP_VMM_RETAIN:
		return vmm_retain(call, function);
	case GP_VMM_MAP:
		return vmm_map(call, function);
	case GP_CONTEXT_CREATE:
		if (call->flags & GP_UNREAD_OUT)
			return;
		create_context(call, call->out[0], device_argument(call, function));
		return push_context(thread, call->out[0]);
	case GP_CONTEXT_DESTROY:
		if (current_context(thread) == context)
			pop_context(thread);
		end_context(call, call->detail.ending.context);
		return;
	case GP_CONTEXT_SET:
		return set_context(thread, context);
	case GP_CONTEXT_PUSH:
		return push_context(thread, context);
	case GP_CONTEXT_POP:
		return pop_context(thread);
	case GP_PRIMARY_RETAIN:
		return retain_primary(call, function);
	case GP_PRIMARY_RELEASE:
		return release_primary(call, function);
	case GP_PRIMARY_RESET:
		return reset_primary(call, function);
	case GP_DEVICE_SET:
		return set_device(thread, call, function);
	case GP_DEVICE_RESET:
		return reset_device(thread, call);
	case GP_RETAIN_OBJECT:
		retain_object(call, context);
		return;
	case GP_SHARE_OBJECT:
		return share_object(call, call->result, context, 0);
	case GP_DEVICE_IDENTITY:
		return record_gpu_identity(call, function);
	}
}

#endif
