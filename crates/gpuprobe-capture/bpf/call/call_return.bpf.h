/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The return of a call: it is taken off its thread's stack, accounted for, annotated, counted and emitted. */
#ifndef GP_CALL_RETURN_BPF_H
#define GP_CALL_RETURN_BPF_H

#include "call_entry.bpf.h"

static __always_inline void read_at_return(struct gp_call *call, const struct gp_function *function)
{
	for (int i = 0; i < GP_OUTS; i++) {
		__u64 address = 0, value = 0, bytes;

		if (i >= function->outs)
			return;
		bytes = function->out[i].bytes == 4 ? 4 : 8;
		if (!argument(call, function->out[i].place, &address) ||
		    bpf_probe_read_user(&value, bytes, (void *)(address + function->out[i].offset)))
			call->flags |= GP_UNREAD_OUT << i;
		call->out[i] = value;
	}
}

/* Whether a call that has returned, and whose outs were read, has failed. */
static __always_inline bool has_failed(const struct gp_call *call, const struct gp_function *function)
{
	__u32 status = status_of_call(call, function);

	if (function->flags & GP_GIVES_RESULT && !call->result)
		return true;
	/* 600 (not ready) is an answer, not a failure */
	return status && status != 600;
}

static __always_inline bool is_same_call(const struct gp_call *call, __u64 stack_pointer, __u32 function)
{
	return call->stack_pointer == stack_pointer && call->function == function;
}

/*
 * Whether nothing is missed with a call whose beginning was not observed: its function is probed only for
 * what it does, and an open call around it does the same and accounts for it.
 */
static __always_inline bool is_accounted_by_outer(struct gp_thread *thread, __u32 index)
{
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);

	return function && function->action && !(function->flags & (GP_COUNT | GP_STREAM)) && thread->depth &&
	       open_call(thread, thread->depth - 1)->actions & (1 << (function->action & 3));
}

/* Forgets calls that the program jumped out of, above the one that returns now. Tells whether that is there.
 */
GP_GLOBAL_FUNC int drop_above(struct gp_thread *thread, __u64 stack_pointer, __u64 cookie)
{
	__u32 function = cookie & (GP_FUNCTIONS - 1);

	if (!thread)
		return 0;
	for (int i = 0; i < GP_DEPTH; i++) {
		struct gp_call *top;

		if (!thread->depth)
			break;
		top = open_call(thread, thread->depth - 1);
		if (is_same_call(top, stack_pointer, function))
			return 1;
		if (top->stack_pointer > stack_pointer && !is_linux_call(top))
			break;
		drop_innermost(thread);
	}
	if (!is_accounted_by_outer(thread, function))
		count_unmatched(cookie);
	return 0;
}

/* The open call that returns now, taken off the stack; those above it were abandoned. */
static __always_inline struct gp_call *pop(struct gp_thread *thread, __u64 stack_pointer, __u64 cookie)
{
	__u32 function = cookie & (GP_FUNCTIONS - 1);
	struct gp_call *top = innermost(thread);

	if (!(top && is_same_call(top, stack_pointer, function))) {
		if (!drop_above(thread, stack_pointer, cookie))
			return NULL;
		top = innermost(thread);
	}
	if (top)
		thread->depth--;
	return top;
}

/*
 * What is done when a call returns, in this order: account for what it did to memory and contexts, annotate
 * its record and that of the call around it, count it, and emit its record.
 */

/* Accounts for memory, its call sites and address ranges, contexts and physical memory. */
static __always_inline void account(struct gp_thread *thread, struct gp_call *call,
				    const struct gp_function *function, struct pt_regs *ctx, bool failed)
{
	if (gp_config.copies && failed && function->action == GP_FREE)
		restore_ranges(call);
	if (gp_config.sites && !failed && has_site(call, function))
		call->site = find_site(thread, call, ctx);
	if (function->action && !(call->flags & GP_NESTED_ACTION)) {
		if (function->action == GP_FREE)
			end_free(thread, call, failed);
		else if (function->action == GP_ALLOC)
			end_alloc(thread, call, function, failed, current_context(thread));
		else if (failed)
			call->bytes = 0;
		else
			set_bytes_moved(call, function);
	}
	account_object(thread, call, function, failed);
	if (gp_config.copies && !failed)
		end_ranges(call, function);
}

/* The same of a copy or memset: of the runtime's, whether the driver was called at all. */
static __always_inline void annotate_move(struct gp_thread *thread, struct gp_call *call,
					  const struct gp_function *function, bool failed)
{
	bool is_driver_call = function->task.work || call->flags & GP_ASKED_DRIVER;

	if (!is_driver_call && call->effect == GP_EFFECT_NONE)
		call->effect = GP_EFFECT_UNASKED;
	if (!thread->depth)
		return;
	if (is_driver_call)
		open_call(thread, thread->depth - 1)->flags |= GP_ASKED_DRIVER;
	if (call->flags & GP_NESTED_ACTION)
		propagate_to_parent(thread, call, failed);
}

/* Adds to the record of the call around it what only this call knows. */
static __always_inline void annotate(struct gp_thread *thread, struct gp_call *call,
				     const struct gp_function *function, bool failed)
{
	if (gp_config.told && function->action == GP_MOVE)
		annotate_move(thread, call, function, failed);
	if (gp_config.driver && call->entered)
		propagate_device_time(thread, call);
}

static __always_inline void count_call(struct gp_thread *thread, const struct gp_call *call,
				       const struct gp_function *function, bool failed)
{
	struct gp_count *count = count_of(thread, call->function);

	if (!count)
		return;
	if (!failed && function->action == GP_MOVE && !(call->flags & (GP_NESTED_ACTION | GP_CAPTURED)))
		__sync_fetch_and_add(&count->bytes, call->bytes);
	count_latency(count, call->duration_ns, failed);
}

/* Counts the call, unless it is counted with what it did. */
static __always_inline void count(struct gp_thread *thread, struct gp_call *call,
				  const struct gp_function *function, bool failed, bool is_counted)
{
	if (gp_config.launches && gp_config.rows && !thread->depth && !is_launch(function))
		note_meanwhile(thread, call);
	if (failed && (function->flags & (GP_COUNT | GP_FAILURES) || call->inner_failed))
		count_failure(thread, call, function);
	if (!(function->flags & GP_COUNT))
		return;
	if (!is_counted)
		count_call(thread, call, function, failed);
	if (gp_config.driver && call->entered)
		count_device_time(thread, call);
}

/* Sends the name that the call gave a handle, and the record of the call with its stack. */
static __always_inline void emit(struct gp_call *call, const struct gp_function *function,
				 struct pt_regs *ctx, bool failed)
{
	if (function->flags & GP_NAMES && gp_config.names && !failed)
		send_kernel_name(call, function);
	if (function->flags & GP_STREAM && is_wanted(call, failed)) {
		if (gp_config.stacks)
			send_stack(call, ctx);
		send_call(call, function);
	}
}

static __always_inline int leave(struct pt_regs *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	struct gp_thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 index = cookie & (GP_FUNCTIONS - 1);
	struct gp_function *function;
	bool failed, is_counted = false;
	struct gp_call *call;

	/* a call that is open when observation ends stays open */
	if (is_stopped_at(now))
		return 0;
	if (!thread) {
		count_unmatched(cookie);
		return 0;
	}
	call = pop(thread, PT_REGS_SP(ctx) - GP_POPPED_BY_RETURN, cookie);
	function = bpf_map_lookup_elem(&functions, &index);
	if (!call || !function)
		return 0;
	call->duration_ns = now - call->start_ns;
	call->result = PT_REGS_RC(ctx);
	read_at_return(call, function);
	failed = has_failed(call, function);
	account(thread, call, function, ctx, failed);
	/* counts or annotates, as it was configured */
	if (function->task.work)
		is_counted = end_op(thread, call, function, failed);
	annotate(thread, call, function, failed);
	count(thread, call, function, failed, is_counted);
	emit(call, function, ctx, failed);
	return 0;
}

#endif
