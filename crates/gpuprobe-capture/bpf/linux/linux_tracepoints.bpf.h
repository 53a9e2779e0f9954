/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Tracepoints that the user has named. A tracepoint is an instant: its record is like that of a call, its
 * parent is the innermost open call, and it has no duration.
 */
#ifndef GP_LINUX_TRACEPOINTS_BPF_H
#define GP_LINUX_TRACEPOINTS_BPF_H

#include "linux_functions.bpf.h"

/* the size of a task's kernel stack, if the type information does not have it */
#define GP_LINUX_STACK_BYTES 16384

/* Copies the arguments, which are words behind the context. User space knows how many there are. */
static __always_inline void save_words(struct gp_call *call, const struct gp_function *function, void *ctx)
{
	__u32 words = function->stack_words, more = 0;

	if (words > GP_REGISTERS) {
		more = words - GP_REGISTERS;
		words = GP_REGISTERS;
	}
	if (more > GP_STACK_WORDS)
		more = GP_STACK_WORDS;
	barrier_var(words);
	if (words <= GP_REGISTERS)
		bpf_probe_read_kernel(call->registers, 8 * words, ctx);
	barrier_var(more);
	if (more && more <= GP_STACK_WORDS)
		bpf_probe_read_kernel(call->stack.words, 8 * more, ctx + 8 * GP_REGISTERS);
}

/*
 * Whether a tracepoint is passed by the current task, and not by an interrupt. A kernel may not expose
 * where it counts interrupts, but on x86 interrupts have stacks of their own, unless they arrive while the
 * program itself runs.
 */
static __always_inline bool is_in_task(struct gp_thread *thread, void *ctx)
{
#if defined(__TARGET_ARCH_x86)
	__u64 stack = (__u64)BPF_CORE_READ(bpf_get_current_task_btf(), stack);
	__u64 bytes = GP_LINUX_STACK_BYTES;

	if (bpf_core_type_exists(union thread_union))
		bytes = bpf_core_type_size(union thread_union);
	return stack_position_of(thread, ctx) - stack < bytes;
#else
	return !is_interrupt(false);
#endif
}

/* A tracepoint is passed: counts it and sends its record. */
GP_OWN_FRAME int at_tracepoint(void *ctx, __u32 number)
{
	struct gp_thread *thread = calling_thread(true);
	__u32 index = gp_config.tracepoint_rows + number;
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_call *call, *outer;

	if (!thread || !function || !is_in_task(thread, ctx))
		return 0;
	outer = innermost(thread);
	/*
	 * a call that is just ending is still being read in the first free slot, and may be what led here,
	 * so that slot is skipped
	 */
	thread->depth++;
	call = push_linux_call(thread, outer, function, index, 0);
	thread->depth -= call ? 2 : 1;
	if (!call)
		return 0;
	save_words(call, function, ctx);
	read_linux_text(call, function);
	call->start_ns = bpf_ktime_get_ns();
	count_linux_call(thread, call, function, false);
	if (function->flags & GP_STREAM && is_wanted(call, false))
		send_call(call, function);
	return 0;
}

/*
 * Before Linux 6.10 a program of this kind cannot find out which tracepoint it is attached to, so there is
 * one program per tracepoint.
 */
#define GP_AT_TRACEPOINT(n)                                                                                  \
	SEC("raw_tp")                                                                                        \
	int tracepoint_##n(void *ctx)                                                                        \
	{                                                                                                    \
		return at_tracepoint(ctx, n);                                                                \
	}

/* clang-format off */
GP_AT_TRACEPOINT(0) GP_AT_TRACEPOINT(1) GP_AT_TRACEPOINT(2) GP_AT_TRACEPOINT(3)
GP_AT_TRACEPOINT(4) GP_AT_TRACEPOINT(5) GP_AT_TRACEPOINT(6) GP_AT_TRACEPOINT(7)
GP_AT_TRACEPOINT(8) GP_AT_TRACEPOINT(9) GP_AT_TRACEPOINT(10) GP_AT_TRACEPOINT(11)
GP_AT_TRACEPOINT(12) GP_AT_TRACEPOINT(13) GP_AT_TRACEPOINT(14) GP_AT_TRACEPOINT(15)
/* clang-format on */

#endif
