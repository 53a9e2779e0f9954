/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The return probe of every function: the call is popped off its thread's stack, accounted for, annotated,
 * counted and emitted.
 */
#ifndef GP_CALL_RETURN_BPF_H
#define GP_CALL_RETURN_BPF_H

#include "call_entry.bpf.h"

/* Reads the output words through the pointer arguments. */
static __always_inline void read_at_return(struct gp_call *call, const struct gp_function *function)
{
	for (int i = 0; i < GP_OUTS; i++) {
		__u64 address = 0, value = 0, bytes;

		if (i >= function->outs)
			return;
		bytes = function->out[i].bytes == 4 ? 4 : 8;
		if (!argument(call, function->out[i].loc, &address) ||
		    bpf_probe_read_user(&value, bytes, (void *)(address + function->out[i].offset)))
			call->flags |= GP_UNREAD_OUT << i;
		call->out[i] = value;
	}
}

/* Whether a call has failed. It has returned, and its outs have been read. */
static __always_inline bool has_failed(const struct gp_call *call, const struct gp_function *function)
{
	__u32 status = status_of_call(call, function);

	if (function->flags & GP_OUTPUT_IS_RESULT && !call->result)
		return true;
	return status && status != function->answer;
}

static __always_inline bool is_same_call(const struct gp_call *call, __u64 stack_pointer, __u32 function)
{
	return call->stack_pointer == stack_pointer && call->function == function;
}

/*
 * Whether a return without an observed entry loses nothing: the function is probed only for its effect, and
 * an open call around it has the same effect and accounts for it.
 */
static __always_inline bool is_accounted_by_outer(struct gp_thread *thread, __u32 index)
{
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);

	return function && function->action && !(function->flags & (GP_COUNT | GP_STREAM)) && thread->depth &&
	       open_call(thread, thread->depth - 1)->actions & (1 << (function->action & 3));
}

/*
 * Drops the calls that the program jumped out of, which are above the one that returns now on the stack of
 * open calls. Returns 1 if the returning call is there.
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

/* Pops the call that returns now. Calls above it were abandoned. */
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
 * The steps when a call returns, in this order:
 *
 * 1. account: apply its effect to live memory, call sites, address ranges and contexts;
 * 2. end_op: count its GPU operation in rows, or annotate the record with it;
 * 3. annotate: pass on to the enclosing call what only this call knows;
 * 4. count: add it to the counters of its function and process;
 * 5. emit: send its record.
 *
 * Accounting comes first because the record carries its result (bytes, call site, live bytes). Emitting
 * comes last because all other steps write to the record.
 */

/* Accounts for memory, its call sites and address ranges, contexts and physical memory. */
static __always_inline void account(struct gp_thread *thread, struct gp_call *call,
				    const struct gp_function *function, struct pt_regs *ctx, bool failed)
{
	if (gp_config.copies && failed && function->action == GP_FREE)
		restore_ranges(call);
	if (gets_site(call, function, failed))
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

/*
 * Annotates a copy or memset, and passes it on to the enclosing call. For a call of the CUDA runtime the
 * record shows whether it called the CUDA driver at all.
 */
static __always_inline void annotate_move(struct gp_thread *thread, struct gp_call *call,
					  const struct gp_function *function, bool failed)
{
	bool is_driver_call = function->op_desc.op_kind || call->flags & GP_CALLED_CUDA_DRIVER;

	if (!is_driver_call && call->effect == GP_EFFECT_NONE)
		call->effect = GP_EFFECT_NO_DRIVER_CALL;
	if (!thread->depth)
		return;
	if (is_driver_call)
		open_call(thread, thread->depth - 1)->flags |= GP_CALLED_CUDA_DRIVER;
	if (call->flags & GP_NESTED_ACTION)
		propagate_to_parent(thread, call, failed);
}

/* Adds to the record of the enclosing call what only this call knows. */
static __always_inline void annotate(struct gp_thread *thread, struct gp_call *call,
				     const struct gp_function *function, bool failed)
{
	if (gp_config.annotate_records && function->action == GP_MOVE)
		annotate_move(thread, call, function, failed);
	if (gp_config.device_syscalls && call->entered)
		propagate_device_time(thread, call);
}

static __always_inline void count_call(struct gp_thread *thread, const struct gp_call *call,
				       const struct gp_function *function, bool failed)
{
	struct gp_count *count = count_of(thread, call->function);

	if (!count)
		return;
	if (!failed && function->action == GP_MOVE && !(call->flags & (GP_NESTED_ACTION | GP_CAPTURED)))
		add_bytes(&count->bytes, call->bytes * call->weight);
	count_latency(count, call, failed);
}

/* Counts the call, unless it was already counted with its launch (`is_counted`). */
static __always_inline void count(struct gp_thread *thread, struct gp_call *call,
				  const struct gp_function *function, bool failed, bool is_counted,
				  __u64 returned_to)
{
	/* a call of a state-only probe is not in any output */
	if (gp_config.launches && gp_config.rows && call->reported && !call->parent && !is_launch(function))
		note_meanwhile(thread, call);
	if (failed) {
		thread->has_failed = 1;
		thread->last_failed.return_address = returned_to;
		thread->last_failed.stack_pointer = call->stack_pointer;
		thread->last_failed.next_id = thread->next_id;
		if (function->flags & (GP_COUNT | GP_FAILURES) || call->inner_failed)
			count_failure(thread, call, function);
	}
	if (!(function->flags & GP_COUNT))
		return;
	if (!is_counted)
		count_call(thread, call, function, failed);
	if (gp_config.device_syscalls && call->entered)
		count_device_time(thread, call);
}

/* Sends the name that the call gave to a handle, and the record of the call with its stack. */
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

/* The return of a call. pop() finds nothing if the entry was not observed, and counts that. */
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
	if (call->weight > 1)
		__sync_fetch_and_add(&gp_turn.open, -1);
	call->result = PT_REGS_RC(ctx);
	read_at_return(call, function);
	failed = has_failed(call, function);
	account(thread, call, function, ctx, failed);
	/* counts or annotates the GPU operation, depending on the configuration */
	if (function->op_desc.op_kind)
		is_counted = end_op(thread, call, function, failed);
	annotate(thread, call, function, failed);
	count(thread, call, function, failed, is_counted, PT_REGS_IP(ctx));
	/* before emit(), which needs the most stack: `thread` is not kept on it meanwhile */
	if (thread->deferred_count && !thread->depth)
		end_inside_deferred(thread, call, failed);
	if (function->flags & GP_SAMPLES_RETURNS && function->flags & GP_STREAM)
		plan_next_launches(thread, call, function, failed, PT_REGS_IP(ctx));
	emit(call, function, ctx, failed);
	return 0;
}

#endif
