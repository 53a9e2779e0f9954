/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The stack that a thread was started on. It may run on others as well: fibers, and signal handlers. */
#ifndef GP_OWN_STACK_BPF_H
#define GP_OWN_STACK_BPF_H

#include "common.bpf.h"

/* The base of the thread-local storage of a thread. */
static __always_inline __u64 thread_pointer_of(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(task, thread.fsbase);
#else
	return BPF_CORE_READ(task, thread.uw.tp_value);
#endif
}

static long note_mapping(struct task_struct *task, struct vm_area_struct *vma, struct gp_mapping *mapping)
{
	mapping->start = BPF_CORE_READ(vma, vm_start);
	mapping->end = BPF_CORE_READ(vma, vm_end);
	return 0;
}

/*
 * Reduces a mapping to the stack that the thread was started on; to nothing if it is another stack. The
 * first thread's stack is where the Linux kernel put it. The stack of any other thread ends at the thread
 * control block, which the thread pointer points to; another mapping may have been merged with it above
 * that.
 */
static __always_inline void trim_to_own_stack(struct task_struct *task, __u64 address,
					      struct gp_mapping *mapping)
{
	__u64 top = BPF_CORE_READ(task, mm, start_stack);

	if (top >= mapping->start && top < mapping->end)
		return;
	top = thread_pointer_of(task);
	/* the first thread's control block is elsewhere */
	if (BPF_CORE_READ(task, pid) != BPF_CORE_READ(task, tgid) && top > address && top < mapping->end)
		mapping->end = top;
	else
		mapping->end = 0;
}

/* Finds the stack that the thread was started on, if `address` is on it. */
static __always_inline void find_own_stack(struct gp_mapping *own, __u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gp_mapping found = {};

	if (bpf_find_vma(task, address, note_mapping, &found, 0))
		return;
	trim_to_own_stack(task, address, &found);
	if (found.end)
		*own = found;
}

static __always_inline bool is_in(const struct gp_mapping *mapping, __u64 address)
{
	return address >= mapping->start && address < mapping->end;
}

/* Looks up the stack that the thread was started on, and stores it in the thread's state. */
GP_GLOBAL_FUNC int learn_own_stack(struct gp_thread *thread, __u64 stack_pointer)
{
	struct gp_mapping own = {};

	if (!thread)
		return 0;
	find_own_stack(&own, stack_pointer);
	if (own.end)
		thread->own_stack = own;
	return 0;
}

#endif
