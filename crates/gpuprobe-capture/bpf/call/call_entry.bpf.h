/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The entry probe of every function, on every attach tier; call_return.bpf.h has the return probe. The open
 * calls of a thread form a stack: entry pushes, return pops. A program may jump out of calls (longjmp,
 * exceptions). The stack pointer shows which open calls are still there, because an enclosing call always
 * has a higher one.
 */
#ifndef GP_CALL_ENTRY_BPF_H
#define GP_CALL_ENTRY_BPF_H

#include "call_accounting.bpf.h"
#include "entry_arguments.bpf.h"
#include "../core/failures.bpf.h"
#include "../core/open_calls.bpf.h"
#include "../core/return_safety.bpf.h"
#include "../gpu_ops/gpu_ops.bpf.h"

/*
 * Whether the function entered now was reached by a tail jump from the call that was entered at the same
 * stack pointer. In that case its return address is the Linux kernel's return trampoline, which was written
 * for the first call. A new call has a return address in the program's own code.
 */
static __always_inline bool is_jumped_to(struct pt_regs *ctx)
{
	__u64 code = 0, address = 0;

#if defined(__TARGET_ARCH_x86)
	if (bpf_probe_read_user(&address, sizeof(address), (void *)PT_REGS_SP(ctx)) ||
	    bpf_probe_read_user(&code, sizeof(code), (void *)address))
		return false;
	/* push %rax; push %rcx; push %r11 since Linux 6.11, a breakpoint before */
	return (__u32)code == 0x53415150 || (__u8)code == 0xcc;
#else
	address = link_register(ctx);
	if (bpf_probe_read_user(&code, sizeof(__u32), (void *)address))
		return false;
	/* brk #5 */
	return code == 0xd42000a0;
#endif
}

/* Whether an open call still encloses the call that begins now. */
static __always_inline bool is_enclosing(const struct gp_call *top, struct pt_regs *ctx, __u32 function)
{
	__u64 stack_pointer = PT_REGS_SP(ctx);

	/*
	 * equal stack pointers: either the open call jumped here at its end and returns after this one, or
	 * the program jumped out of it. While a program runs in user space, no Linux function is open.
	 */
	return !is_linux_call(top) &&
	       (top->stack_pointer > stack_pointer ||
		(top->stack_pointer == stack_pointer && top->function != function && is_jumped_to(ctx)));
}

/* Whether the innermost open call is the same one, to the loader of this library. */
GP_OWN_FRAME int is_repeated(const struct gp_call *outer, struct pt_regs *ctx, __u32 function, __u16 library)
{
	__u64 stack_pointer = PT_REGS_SP(ctx);

	return outer->function == function && outer->library != library &&
	       (outer->stack_pointer > stack_pointer ||
		(outer->stack_pointer == stack_pointer && is_jumped_to(ctx)));
}

/*
 * Drops a call that the program jumped out of. This applies to frees too: the loss marks the memory totals
 * as incomplete.
 */
static __always_inline void drop_innermost(struct gp_thread *thread)
{
	thread->depth--;
	if (open_call(thread, thread->depth)->weight > 1)
		__sync_fetch_and_add(&gp_turn.open, -1);
	count_loss(GP_LOSS_ABANDONED);
}

/* Drops calls that the program jumped out of before this one began. */
GP_OWN_FRAME int drop_abandoned(struct gp_thread *thread, struct pt_regs *ctx, __u32 function)
{
	for (int i = 0; i < GP_DEPTH; i++) {
		if (!thread->depth || is_enclosing(open_call(thread, thread->depth - 1), ctx, function))
			break;
		drop_innermost(thread);
	}
	return 0;
}

/*
 * The address that the function returns to. A function reached by a tail jump returns to where its
 * predecessor would have returned.
 */
static __always_inline __u64 return_address(struct pt_regs *ctx, const struct gp_call *outer)
{
	__u64 address = 0;

	if (outer && outer->stack_pointer == PT_REGS_SP(ctx))
		return outer->return_address;
#if defined(__TARGET_ARCH_x86)
	bpf_probe_read_user(&address, sizeof(address), (void *)PT_REGS_SP(ctx));
#else
	address = link_register(ctx);
#endif
	return address;
}

/*
 * Sends the record that a call has begun, if such records are wanted. Where there are no return probes, the
 * stack is sent here too, because no later record will carry it.
 */
static __always_inline void send_begin_with_stack(struct gp_call *call, const struct gp_function *function,
						  struct pt_regs *ctx)
{
	bool is_reported = function->flags & GP_STREAM && !(gp_config.outermost_only && call->parent);

	if (is_reported && gp_config.entry_only && gp_config.stacks)
		send_stack(call, ctx);
	send_begin_record(call, function);
}

/*
 * Makes sure that the return probe of the call that begins now cannot harm the program. Returns false if
 * the return probe must not be prepared. A tier that cannot decline a return probe gives up the returns of
 * the open calls instead, and this returns true.
 */
static __always_inline bool make_return_safe(struct gp_thread *thread, struct task_struct *current_task,
					     struct pt_regs *ctx, const struct gp_function *function,
					     bool can_decline)
{
	if (may_return(thread, current_task, ctx, can_decline && function->flags & GP_RUNS_CODE))
		return true;
	if (can_decline)
		return false;
	restore_returns();
	if (thread) {
		count_losses(GP_LOSS_UNOBSERVED_RETURN, thread->depth);
		thread->depth = 0;
	}
	return true;
}

/* Reads the stack arguments and the pointee of a launch, and the address that it returns to, with few reads.
 */
static __always_inline void read_launch_at_entry(struct gp_call *call, const struct gp_function *function,
						 struct pt_regs *ctx)
{
#if defined(__TARGET_ARCH_x86)
	/* the return address is in front of the stack arguments; cuLaunchKernel has five */
	__u64 words[6];

	if (function->op_desc.shape == GP_LAUNCH_USUAL && function->stack_words < sizeof(words) / 8 &&
	    !bpf_probe_read_user(words, sizeof(words), (void *)call->stack_pointer)) {
		call->return_address = words[0];
		__builtin_memcpy(call->stack.words, words + 1, sizeof(words) - sizeof(words[0]));
		return;
	}
#endif
	call->return_address = return_address(ctx, NULL);
	read_at_entry(call, function);
}

/* Reads what a launch needs that gets no return probe. */
static __always_inline void begin_launch_without_return(struct gp_thread *thread, struct gp_call *call,
							struct pt_regs *ctx,
							const struct gp_function *function, __u64 cookie,
							__u32 weight)
{
	call->flags = 0;
	call->function = cookie & (GP_FUNCTIONS - 1);
	call->library = cookie >> 32;
	call->weight = weight;
	call->instance = thread->instance;
	call->tgid = thread->tgid;
	call->tid = thread->tid;
	call->stack_pointer = PT_REGS_SP(ctx);
	save_registers(call, ctx);
	read_launch_at_entry(call, function, ctx);
}

/*
 * Whether the call that begins now is a launch that is counted here, or whose record is deferred, without a
 * return probe. It is not pushed. If it is counted, the first of the open calls, which is not in use, holds
 * its arguments meanwhile.
 */
GP_OWN_FRAME int is_launch_without_return(struct gp_thread *thread, struct pt_regs *ctx,
					  struct gp_function *function, __u64 cookie, __u32 weight)
{
	if (thread->depth || thread->has_failed)
		return 0;
	if (function->flags & GP_STREAM) {
		/* one turn must not tell what happens in another */
		if (weight > 1 || thread->deferred_count)
			return 0;
		begin_launch_without_return(thread, &thread->deferred[0], ctx, function, cookie, weight);
		return defer_launch(thread, function);
	}
	begin_launch_without_return(thread, open_call(thread, 0), ctx, function, cookie, weight);
	return count_launch_at_entry(thread, function);
}

/* Whether the call that begins now is the launch that is expected inside a deferred one. It is deferred too.
 */
GP_OWN_FRAME int is_expected_launch(struct gp_thread *thread, struct pt_regs *ctx,
				    struct gp_function *function, __u64 cookie, __u32 weight)
{
	struct gp_call *outer = &thread->deferred[0], *call = &thread->deferred[1];

	if (thread->deferred_count != 1 || thread->depth || !thread->expected.return_address ||
	    thread->expected.function != (cookie & (GP_FUNCTIONS - 1)) ||
	    outer->stack_pointer - PT_REGS_SP(ctx) != thread->expected.distance)
		return 0;
	begin_launch_without_return(thread, call, ctx, function, cookie, weight);
	if (call->flags || call->return_address != thread->expected.return_address)
		return 0;
	begin_deferred(thread, call, outer, function, thread->expected.duration_ns);
	return 1;
}

/* Sends what is deferred, unless the call that begins now is inside of it. */
GP_OWN_FRAME int end_deferred(struct gp_thread *thread, struct pt_regs *ctx, __u16 library)
{
	/* what an open call inside it makes is inside it, too */
	if (thread->depth)
		return 0;
	if (is_inside_deferred(thread, PT_REGS_SP(ctx), library))
		probe_next_launch(thread);
	else
		send_deferred(thread);
	return 0;
}

/*
 * Whether a call is ignored because not all probes of its library are attached. `state` is not
 * GP_LIBRARY_ACTIVE.
 */
GP_OWN_FRAME int is_ignored(__u32 state, __u32 index)
{
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);

	return state != GP_LIBRARY_DETACHING || !function || !can_free(function);
}

/*
 * Returns 0 if the return probe is wanted, 1 if it is not. The steps: decide whether the call is observed
 * and whether its return may be probed; push it; read its arguments; begin frees, context ends and GPU
 * operations; and start its clock last.
 */
static __always_inline int enter(struct pt_regs *ctx, bool can_decline)
{
	struct task_struct *current_task = bpf_get_current_task_btf();
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 index = cookie & (GP_FUNCTIONS - 1), state = library_state(cookie);
	struct gp_function *function;
	struct gp_call *call, *outer;
	struct gp_thread *thread = NULL;
	bool has_return, is_declined;
	__u32 weight;

	function = bpf_map_lookup_elem(&functions, &index);
	if (!function)
		return 1;
	weight = weight_now(function, cookie);
	if (weight && (state == GP_LIBRARY_ACTIVE || !is_ignored(state, index)))
		thread = thread_of(current_task);
	if (thread) {
		thread->last_launch.start_ns = 0;
		if (can_decline && thread->deferred_count) {
			if (is_expected_launch(thread, ctx, function, cookie, weight))
				return 1;
			end_deferred(thread, ctx, cookie >> 32);
		}
		if (can_decline && function->flags & GP_SAMPLES_RETURNS &&
		    is_launch_without_return(thread, ctx, function, cookie, weight))
			return 1;
	}
	has_return = !gp_config.entry_only && !(function->flags & GP_ENTRY_ONLY);
	/* where a return probe cannot be declined, calls that are not observed have one too */
	is_declined = has_return && (thread || !can_decline) &&
		      !make_return_safe(thread, current_task, ctx, function, can_decline);
	if (!thread)
		return 1;
	if (is_declined) {
		/* a free that is neither counted nor sent loses nothing: it is accounted for below */
		if (!can_free(function) || function->flags & (GP_COUNT | GP_STREAM))
			count_loss(GP_LOSS_UNOBSERVED_RETURN);
		if (!can_free(function))
			return 1;
	}
	/* the open calls are on another stack in that case */
	outer = is_declined ? NULL : innermost(thread);
	if (can_decline && !is_declined && !outer && thread->deferred_count)
		outer = &thread->deferred[0];
	if (outer && function->flags & GP_MAY_REPEAT && is_repeated(outer, ctx, index, cookie >> 32))
		return 1;
	if (outer && !is_enclosing(outer, ctx, index)) {
		drop_abandoned(thread, ctx, index);
		outer = innermost(thread);
	}
	call = push_call(thread, outer, function, index);
	if (!call)
		return 1;
	call->weight = weight;
	call->stack_pointer = PT_REGS_SP(ctx);
	call->library = cookie >> 32;
	if (gp_config.stacks ||
	    ((gp_config.sites || gp_config.call_sites) && function->flags & GP_KEEPS_RETURN))
		call->return_address = return_address(ctx, outer);
	if (gp_config.call_sites && function->flags & GP_TAKES_SITE)
		want_site(call);
	call->space = function->space;
	save_registers(call, ctx);
	read_at_entry(call, function);
	call->bytes = size_at_entry(call, function);
	if (function->memory_op == GP_VMM_RELEASE)
		begin_release(call, function);
	else if (ends_contexts(function))
		begin_end(call, function, current_context(thread));
	if (function->action) {
		if (call->actions & (1 << (function->action & 3)))
			call->flags |= GP_NESTED_ACTION;
		else if (function->action == GP_FREE)
			begin_free(thread, call, function);
		call->actions |= 1 << (function->action & 3);
	}
	if (gp_config.copies && function->action == GP_FREE)
		begin_ranges(call);
	/* programs for kernels without sessions do not have enough stack for it */
	if (can_decline && (is_declined || !has_return) && !gp_config.entry_only && can_free(function))
		account_unobserved_free(thread, index);
	if (is_declined) {
		thread->depth--;
		return 1;
	}
	if (function->op_desc.op_kind)
		begin_op(thread, call, function);
	/* a launch counted in a row is reported when its row is created: see end_launch() */
	if (gp_config.names && function->flags & GP_LAUNCH &&
	    (!gp_config.launches || gp_config.annotate_records || outer))
		report_new_kernel(call, function, outer);
	if (!has_return) {
		call->start_ns = bpf_ktime_get_ns();
		if (!gp_config.entry_only) {
			call->flags |= GP_UNOBSERVED;
			count_loss(GP_LOSS_UNOBSERVED_RETURN);
		}
		send_begin_with_stack(call, function, ctx);
		if (function->flags & GP_COUNT)
			count_entry(thread, index, weight);
		thread->depth--;
		return 1;
	}
	if (weight > 1)
		__sync_fetch_and_add(&gp_turn.open, 1);
	/* as late as possible, so that the time spent in this probe is not counted as the function's */
	call->start_ns = bpf_ktime_get_ns();
	if (gp_config.phases)
		send_begin_with_stack(call, function, ctx);
	return 0;
}

#endif
