/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Failures of CUDA runtime functions that have no probes at their entry and return. The probe is on an
 * instruction that only a failing call runs, so calls that succeed cost nothing. User space finds it: see
 * failure_points.rs in gpuprobe-discover.
 */
#ifndef GP_FAILURE_POINTS_BPF_H
#define GP_FAILURE_POINTS_BPF_H

#include "../core/failures.bpf.h"
#include "../core/open_calls.bpf.h"

/*
 * The status of the failed call, in the register that the cookie names. Each register is read by itself: a
 * compiler that chooses the register first computes an address in the context, which the verifier refuses.
 */
static __always_inline __u32 status_at_point(struct pt_regs *ctx, __u64 cookie)
{
	__u32 status = 0;
#if defined(__TARGET_ARCH_x86)
	__u32 number = cookie >> GP_STATUS_SHIFT & 7;
	__u64 bx = ctx->bx, bp = ctx->bp, r12 = ctx->r12, r13 = ctx->r13, r14 = ctx->r14, r15 = ctx->r15;

	barrier_var(bx);
	barrier_var(bp);
	barrier_var(r12);
	barrier_var(r13);
	barrier_var(r14);
	barrier_var(r15);
	status = number == GP_STATUS_BX	   ? bx
		 : number == GP_STATUS_BP  ? bp
		 : number == GP_STATUS_R12 ? r12
		 : number == GP_STATUS_R13 ? r13
		 : number == GP_STATUS_R14 ? r14
		 : number == GP_STATUS_R15 ? r15
					   : 0;
#endif
	return status;
}

/*
 * Whether the call fails because a call of the CUDA driver inside it failed, which has been counted there.
 * Then that was the last observed call of the thread, it was made by the same library, and it was deeper on
 * the stack.
 */
static __always_inline bool is_from_driver(const struct gp_thread *thread, struct pt_regs *ctx, __u64 cookie)
{
	const struct gp_failed_call *last = &thread->last_failed;
	__u32 row = (cookie >> 32) & (GP_LIBRARIES - 1);
	struct gp_library *library = bpf_map_lookup_elem(&libraries, &row);
	__u64 span = library ? library->file_bytes : 0;

	return last->return_address && last->next_id == thread->next_id && !thread->last_launch.start_ns &&
	       last->stack_pointer < PT_REGS_SP(ctx) &&
	       last->return_address - PT_REGS_IP(ctx) + span <= 2 * span;
}

static __always_inline int fail_at_point(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 status = status_at_point(ctx, cookie), index = cookie & (GP_FUNCTIONS - 1), weight = 1;
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_thread *thread;
	bool is_counted;

	/* 600 (cudaErrorNotReady) is an answer, not a failure */
	if (!status || status == 600 || library_state(cookie) != GP_LIBRARY_ACTIVE)
		return 0;
	thread = current_thread();
	if (!thread)
		return 0;
	is_counted = is_from_driver(thread, ctx, cookie);
	/* a later failure at a higher place of the stack is another one */
	thread->last_failed.return_address = 0;
	if (is_counted)
		return 0;
	/* the returns of launches that follow are probed: see launch_entries.bpf.h */
	thread->has_failed = 1;
	/*
	 * while functions of the CUDA driver are sampled, it is known only in a turn whether one of them has
	 * failed
	 */
	if (function && function->flags & GP_SAMPLED)
		weight = weight_of_turn();
	if (!weight)
		return 0;
	add_error(thread, index, status, weight, false);
	if (thread->depth)
		open_call(thread, thread->depth - 1)->inner_failed = 1;
	return 0;
}

SEC("uprobe.multi")
int failure_multi(struct pt_regs *ctx)
{
	return fail_at_point(ctx);
}

#endif
