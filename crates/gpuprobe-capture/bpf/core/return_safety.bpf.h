/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Decides whether a return probe may be prepared for a call, so that no program is ever killed by one.
 *
 * The Linux kernel replaces the return address of a probed call by the address of its trampoline, and keeps
 * the real one in a list of the thread (utask->return_instances). It matches returns with that list by
 * stack pointer: an entry with a lower stack pointer than the current one is taken for a call that the
 * program jumped out of, and is dropped. That is correct on one stack. A thread that runs on several stacks
 * (a signal handler on an alternate stack, fibers, coroutines) can still return from a call that was
 * dropped. It then reaches the trampoline, the Linux kernel does not know where to continue, and kills the
 * program with SIGILL.
 *
 * So at any time only one stack of a thread may have open calls with return probes. The list is read here
 * before the Linux kernel adds to it, which also covers the probes of other tracers:
 *
 * - Nothing is open, or the open call is close above on the same stack: prepare the return.
 * - An open call is on another stack: do not prepare it (session tier). The call is counted as
 *   GP_LOSS_UNOBSERVED_RETURN.
 * - The program jumped out of the open call: prepare the return; the Linux kernel cleans up.
 *
 * How to recognise that the program jumped out of a call: while a call is open, its return address on the
 * stack is the trampoline's. If it still is although the thread has risen above it on the same stack, the
 * program jumped out of the call, unless the call runs code of the program. In that case a fiber may have
 * been resumed whose stack is an array on this stack. Then the real return address is written back to where
 * the Linux kernel took it from, and the question no longer matters: the open call returns to its caller
 * without the Linux kernel. Writing back needs CAP_SYS_ADMIN and a kernel that is not locked down. Without
 * these the return is not prepared.
 *
 * The multi and perf tiers cannot decline a return probe. There the return addresses of all open calls are
 * written back when a call begins on another stack. Where that is not permitted, functions that run code of
 * the program get an entry probe only.
 */
#ifndef GP_RETURN_SAFETY_BPF_H
#define GP_RETURN_SAFETY_BPF_H

#include "stack_copy.bpf.h"

/*
 * How far below an open call another call may begin and still count as nested in it: on the stack that the
 * thread was started on, and on other stacks, which may be small and adjacent.
 */
#define GP_NEAR_ON_OWN_STACK (64 << 10)
#define GP_NEAR_ON_OTHER_STACK (8 << 10)
/* open calls of a thread that are examined; the Linux kernel prepares at most 64 */
#define GP_MOST_OPEN_RETURNS 64
#define GP_ENOENT 2
/* ARCH_SHSTK_SHSTK: a bit of thread.features */
#define GP_SHADOW_STACK 1
/* how many abandoned calls above an open one are examined */
#define GP_MOST_STALE_RETURNS 8

/* What an entry of utask->return_instances is found to be. */
enum gp_return_state {
	/* still open, or not known */
	GP_RETURN_OPEN,
	/* the program has jumped out of the call */
	GP_RETURN_STALE,
	/*
	 * the function that begins was reached by a tail jump from the open call, and returns in its place
	 */
	GP_RETURN_HERE,
};

/* Whether an address is on the alternate signal stack, which only the Linux kernel switches to. */
static __always_inline bool is_on_alternate_stack(struct task_struct *task, __u64 address)
{
	__u64 size = BPF_CORE_READ(task, sas_ss_size);

	return size && address - BPF_CORE_READ(task, sas_ss_sp) < size;
}

/* Whether nothing is mapped at an address; false if that cannot be found out now. */
GP_GLOBAL_FUNC int is_unmapped(__u64 address)
{
	struct gp_mapping found = {};

	return bpf_find_vma(bpf_get_current_task_btf(), address, note_mapping, &found, 0) == -GP_ENOENT;
}

/*
 * The state of the open call whose return address is in this slot. `is_copier` is set if the slot does not
 * show it, because the program copies stacks away and back.
 */
GP_GLOBAL_FUNC int state_of(__u64 stack_pointer, __u64 slot, int is_copier)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 address = 0;

	/*
	 * the Linux kernel starts every handler at the top of the alternate stack, over anything that is
	 * there
	 */
	if (is_on_alternate_stack(task, slot) && !is_on_alternate_stack(task, stack_pointer))
		return GP_RETURN_STALE;
	/*
	 * a page that is swapped out cannot be read either, so only an unmapped stack proves that the call
	 * was left
	 */
	if (bpf_probe_read_user(&address, sizeof(address), (void *)slot))
		return is_unmapped(slot) ? GP_RETURN_STALE : GP_RETURN_OPEN;
#if defined(__TARGET_ARCH_x86)
	if (address != trampoline_of(task))
		return is_copier ? GP_RETURN_OPEN : GP_RETURN_STALE;
#else
	/*
	 * on other architectures the return address was in a register, and it is not known where the
	 * function stored it; clang would not pass an argument that is not used, and the verifier asks for it
	 */
	barrier_var(is_copier);
#endif
	return stack_pointer == slot ? GP_RETURN_HERE : GP_RETURN_OPEN;
}

/* Writes the real return address back to this slot, so that the call returns without the Linux kernel. */
static __always_inline bool restore_return(__u64 slot, __u64 address)
{
#if defined(__TARGET_ARCH_x86)
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 found = 0;

	/* the processor compares return addresses with those on a shadow stack, which cannot be written */
	if (bpf_core_field_exists(task->thread.features) &&
	    BPF_CORE_READ(task, thread.features) & GP_SHADOW_STACK)
		return false;
	if (!gp_config.may_write || bpf_probe_read_user(&found, sizeof(found), (void *)slot) ||
	    found != trampoline_of(task))
		return false;
	return !bpf_probe_write_user((void *)slot, &address, sizeof(address));
#else
	return false;
#endif
}

/* The same for all open calls of this thread, on any stack. */
GP_GLOBAL_FUNC int restore_returns(void)
{
	struct return_instance *open = BPF_CORE_READ(bpf_get_current_task_btf(), utask, return_instances);

	for (__u32 i = 0; i < GP_MOST_OPEN_RETURNS; i++) {
		if (!open)
			break;
		restore_return(BPF_CORE_READ(open, stack), BPF_CORE_READ(open, orig_ret_vaddr));
		open = BPF_CORE_READ(open, next);
	}
	return 0;
}

static __always_inline bool has_stack_copiers(void)
{
	__u32 first = 0, *any = bpf_map_lookup_elem(&any_stack_copier, &first);

	return any && *any;
}

/*
 * Whether the process copies stacks away and back. User space recognises such processes by the libraries
 * that they map.
 */
static __always_inline bool copies_stacks(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	return has_stack_copiers() && bpf_map_lookup_elem(&stack_copiers, &tgid);
}

/* Drops the innermost open call, if its return address was in this slot. */
static __always_inline void drop_stale(struct gp_thread *thread, __u64 slot)
{
	if (thread && thread->depth && open_call(thread, thread->depth - 1)->stack_pointer == slot) {
		thread->depth--;
		count_loss(GP_LOSS_ABANDONED);
	}
}

/*
 * Whether the open call whose return address is in this slot runs no code of the program. If so, the thread
 * can only have risen above it because a signal handler jumped out of it.
 */
static __always_inline bool runs_no_code(struct gp_thread *thread, __u64 slot)
{
	struct gp_function *function;
	struct gp_call *call;
	__u32 index;

	if (!thread || !thread->depth)
		return false;
	call = open_call(thread, thread->depth - 1);
	if (call->stack_pointer != slot)
		return false;
	/* Linux 6.1 does not accept a key in memory that came as an argument */
	index = call->function;
	function = bpf_map_lookup_elem(&functions, &index);
	return function && !(function->flags & GP_RUNS_CODE);
}

/*
 * Whether the program jumped out of a call that encloses this open one, and so out of this one too. The
 * open calls of a thread are all on one stack, so each is nested in the next one in the list. That is not
 * true where return addresses are written back: the list then also has calls on other stacks that no longer
 * return through the Linux kernel.
 */
GP_GLOBAL_FUNC int is_outer_stale(__u64 instance, __u64 stack_pointer, int is_copier)
{
	struct return_instance *open = (void *)instance;

	if (gp_config.may_write)
		return 0;
	for (__u32 i = 0; i < GP_MOST_STALE_RETURNS; i++) {
		__u64 slot;

		open = BPF_CORE_READ(open, next);
		slot = BPF_CORE_READ(open, stack);
		if (!open || slot > stack_pointer)
			return 0;
		if (state_of(stack_pointer, slot, is_copier) == GP_RETURN_STALE)
			return 1;
	}
	return 0;
}

/*
 * The slow path of may_return(): a call is open, and it is not close above on the thread's own stack.
 * `thread` is NULL if the process is not watched.
 */
GP_GLOBAL_FUNC int may_return_slow(struct gp_thread *thread, __u64 stack_pointer)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct return_instance *open = BPF_CORE_READ(task, utask, return_instances);
	bool is_copier = copies_stacks(), is_own;
	struct gp_mapping own = {};

	if (thread)
		own = thread->own_stack;
	if (!is_in(&own, stack_pointer))
		find_own_stack(&own, stack_pointer);
	is_own = is_in(&own, stack_pointer);
	if (thread && is_own)
		thread->own_stack = own;
	for (__u32 i = 0; i < GP_MOST_STALE_RETURNS; i++) {
		__u64 slot = BPF_CORE_READ(open, stack);
		int state;

		if (!open)
			return 1;
		state = state_of(stack_pointer, slot, is_copier);
		if (state == GP_RETURN_HERE)
			return 1;
		if (state == GP_RETURN_STALE)
			drop_stale(thread, slot);
		if (state == GP_RETURN_OPEN) {
			if (is_own != is_in(&own, slot) ||
			    is_on_alternate_stack(task, stack_pointer) != is_on_alternate_stack(task, slot))
				return 0;
			if (stack_pointer < slot)
				return slot - stack_pointer <=
				       (is_own ? GP_NEAR_ON_OWN_STACK : GP_NEAR_ON_OTHER_STACK);
			if (!is_own || is_copier)
				return 0;
			if (!runs_no_code(thread, slot) &&
			    !restore_return(slot, BPF_CORE_READ(open, orig_ret_vaddr)) &&
			    !is_outer_stale((__u64)open, stack_pointer, is_copier))
				return 0;
		}
		open = BPF_CORE_READ(open, next);
	}
	return 0;
}

/*
 * Whether the Linux kernel may prepare a return probe for the call that begins now. A function that runs
 * code of the program must be on the stack that its thread was started on: on a fiber's stack it could be
 * resumed on another thread.
 */
static __always_inline bool may_return(struct gp_thread *thread, struct task_struct *task,
				       struct pt_regs *ctx, bool runs_code)
{
	struct uprobe_task *utask = task->utask;
	struct return_instance *open = utask ? utask->return_instances : NULL;
	__u64 stack_pointer = PT_REGS_SP(ctx);

	if (runs_code && thread) {
		if (!is_in(&thread->own_stack, stack_pointer))
			learn_own_stack(thread, stack_pointer);
		if (!is_in(&thread->own_stack, stack_pointer))
			return false;
	}
	if (!open)
		return true;
	if (thread && is_in(&thread->own_stack, stack_pointer) && is_in(&thread->own_stack, open->stack) &&
	    open->stack - stack_pointer - 1 < GP_NEAR_ON_OWN_STACK && !has_stack_copiers())
		return true;
	return may_return_slow(thread, stack_pointer);
}

#endif
