/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Samples of the threads of chosen processes: registers, the top of the stack, and what they wait for. A task
 * iterator reads them from outside, so the threads are not stopped, need no probes, and may hang anywhere.
 */
#ifndef GP_THREAD_SAMPLES_BPF_H
#define GP_THREAD_SAMPLES_BPF_H

#include "../core/stack_copy.bpf.h"
#include "../wire/thread_sample.h"

/* The processes whose threads are sampled. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} sampled_processes SEC(".maps");

struct gp_thread_copy {
	struct gp_thread_sample head;
	__u8 stack[GP_SAMPLED_PAGES * GP_STACK_PAGE];
};

/* Where a sample is made; too large for the BPF stack. One iterator runs at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gp_thread_copy);
} thread_copy SEC(".maps");

static __always_inline void copy_thread_registers(struct gp_thread_sample *head, struct task_struct *task)
{
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(task);

#if defined(__TARGET_ARCH_x86)
	head->instruction_pointer = registers->ip;
	head->stack_pointer = registers->sp;
	head->frame_pointer = registers->bp;
	head->link_register = 0;
	head->preserved[0] = registers->bx;
	head->preserved[1] = registers->r12;
	head->preserved[2] = registers->r13;
	head->preserved[3] = registers->r14;
	head->preserved[4] = registers->r15;
	head->thread_pointer = task->thread.fsbase;
	head->system_call = (__s64)registers->orig_ax;
#else
	head->instruction_pointer = registers->pc;
	head->stack_pointer = registers->sp;
	head->frame_pointer = registers->regs[29];
	head->link_register = registers->regs[30];
	for (__u32 i = 0; i < GP_PRESERVED; i++)
		head->preserved[i] = registers->regs[19 + i];
	head->thread_pointer = task->thread.uw.tp_value;
	head->system_call = registers->syscallno;
#endif
}

/* Copies the stack page by page, up to the first page that cannot be read. */
static __always_inline void copy_thread_stack(struct gp_thread_copy *copy, struct task_struct *task)
{
	copy->head.length = 0;
	for (__u32 i = 0; i < GP_SAMPLED_PAGES; i++) {
		__u8 *to = copy->stack + i * GP_STACK_PAGE;
		__u64 from = copy->head.stack_pointer + (__u64)i * GP_STACK_PAGE;
		/* the rest of the first page, because the stack may end there */
		__u64 rest = -from & (GP_STACK_PAGE - 1);

		if (!bpf_copy_from_user_task(to, GP_STACK_PAGE, (void *)from, task, 0)) {
			copy->head.length += GP_STACK_PAGE;
			continue;
		}
		if (rest && !bpf_copy_from_user_task(to, rest, (void *)from, task, 0))
			copy->head.length += rest;
		break;
	}
}

/* Writes a sample of every thread of the chosen processes. */
SEC("iter.s/task")
int sample_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gp_thread_copy *copy;
	__u32 tgid, zero = 0;
	__u64 size;

	if (!task || !task->mm)
		return 0;
	tgid = task->tgid;
	copy = bpf_map_lookup_elem(&thread_copy, &zero);
	if (!copy || !bpf_map_lookup_elem(&sampled_processes, &tgid))
		return 0;
	copy->head.tgid = tgid;
	copy->head.tid = task->pid;
	copy->head.begun_ns = task->start_boottime;
	copy->head.at_ns = bpf_ktime_get_ns();
	copy->head.cpu_ns = task->se.sum_exec_runtime;
	copy->head.waits = task->nvcsw;
	copy->head.state = task->__state;
	copy->head.reserved = 0;
	bpf_probe_read_kernel_str(copy->head.name, sizeof(copy->head.name), task->comm);
	copy_thread_registers(&copy->head, task);
	copy->head.patches = list_replaced(task, copy->head.patch);
	copy_thread_stack(copy, task);
	size = sizeof(copy->head) + copy->head.length;
	/* keeps the compiler from folding the check into one that the verifier cannot follow */
	barrier_var(size);
	if (size <= sizeof(*copy))
		bpf_seq_write(ctx->meta->seq, copy, size);
	return 0;
}

#endif
