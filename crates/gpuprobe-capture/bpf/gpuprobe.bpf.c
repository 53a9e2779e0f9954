/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The programs. Entry and return probes run the same code on every attach tier; user space loads only the
 * programs of the tier that the Linux kernel supports.
 *
 * The folders, each of which includes only those above it:
 *
 * - gpuprobe.h, wire/: the structs and numbers that user space shares.
 * - core/: maps, rows, threads, open calls, stacks, failures, and the safety of return probes.
 * - memory/: live memory by process, context and call site; tensors.
 * - gpu_ops/: launches, graphs, copies, streams and gaps.
 * - linux/: system calls on NVIDIA devices, Linux functions and tracepoints, unified memory, XIDs.
 * - call/: entry and return of library functions, which use memory/ and gpu_ops/, and processes.
 * - threads/: samples of threads, which need no probes.
 * - agent/: batches of the agent inside a process.
 */
#include "call/bare_programs.bpf.h"
#include "linux/device_syscalls.bpf.h"
#include "linux/linux_functions.bpf.h"
#include "call/call_return.bpf.h"
#include "call/process_lifecycle.bpf.h"
#include "call/wait_for_room.bpf.h"
#include "linux/unified_memory.bpf.h"
#include "call/entry_count.bpf.h"
#include "call/failure_points.bpf.h"
#include "call/tensor_reports.bpf.h"
#include "linux/linux_tracepoints.bpf.h"
#include "core/btf_types.bpf.h"
#include "linux/xid.bpf.h"
#include "threads/thread_samples.bpf.h"
#include "agent/agent_batches.bpf.h"

SEC("uprobe.session")
int call_session(struct pt_regs *ctx)
{
	return is_return_of_session(ctx) ? leave(ctx) : enter(ctx, true);
}

SEC("uprobe.multi")
int call_multi_entry(struct pt_regs *ctx)
{
	enter(ctx, false);
	return 0;
}

SEC("uretprobe.multi")
int call_multi_return(struct pt_regs *ctx)
{
	return leave(ctx);
}

SEC("uprobe")
int call_perf_entry(struct pt_regs *ctx)
{
	enter(ctx, false);
	return 0;
}

SEC("uretprobe")
int call_perf_return(struct pt_regs *ctx)
{
	return leave(ctx);
}

SEC("uprobe.multi.s")
int loader_multi(struct pt_regs *ctx)
{
	if (loader_is_done(ctx))
		pause_sleeping(PT_REGS_IP(ctx));
	return 0;
}

SEC("uprobe")
int loader_perf(struct pt_regs *ctx)
{
	if (loader_is_done(ctx))
		pause_without_sleeping(0);
	return 0;
}

SEC("uprobe.multi.s")
int lossless_multi(struct pt_regs *ctx)
{
	wait_for_room(PT_REGS_IP(ctx));
	return 0;
}

/* Writes a deferred launch. It has returned, or not yet. At the end of observation it is sent in this way. */
static __always_inline void write_deferred_call(struct bpf_iter__task *ctx, struct gp_call *call)
{
	if (gp_stop_ns && call->duration_ns > gp_stop_ns - call->start_ns)
		call->duration_ns = gp_stop_ns - call->start_ns;
	bpf_seq_write(ctx->meta->seq, call, sizeof(struct gp_call));
}

/* Writes the deferred launches of a thread, the inner one first. */
static __always_inline void write_deferred(struct bpf_iter__task *ctx, struct gp_thread *thread)
{
	if (thread->deferred_count == GP_DEFERRED) {
		if (gp_stop_ns)
			enclose_deferred(&thread->deferred[0], &thread->deferred[1]);
		write_deferred_call(ctx, &thread->deferred[1]);
	}
	if (thread->deferred_count)
		write_deferred_call(ctx, &thread->deferred[0]);
}

/* Writes the deferred launches and every open call, thread by thread, the outermost call first. */
SEC("iter/task")
int open_calls(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gp_thread *thread;

	if (!task)
		return 0;
	thread = bpf_task_storage_get(&threads, task, 0, 0);
	if (!thread)
		return 0;
	write_deferred(ctx, thread);
	for (__u32 i = 0; i < GP_DEPTH; i++) {
		if (i >= thread->depth)
			break;
		/* its return will not be observed */
		if (gp_stop_ns)
			undo_entry(thread, &thread->open[i]);
		/* it is still in its entry probe */
		if (!thread->open[i].start_ns)
			continue;
		bpf_seq_write(ctx->meta->seq, &thread->open[i], sizeof(struct gp_call));
	}
	return 0;
}

/*
 * Whether the program has jumped out of an open call, and its thread has made no other call since: the
 * thread's stack then ends above the call.
 */
static __always_inline bool is_abandoned(const struct gp_call *call, struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 stack_pointer = 0;

	return !bpf_probe_read_kernel(&stack_pointer, sizeof(stack_pointer), (void *)&PT_REGS_SP(regs)) &&
	       stack_pointer > call->stack_pointer;
}

/*
 * The last launch of a thread that is in no observed call. Its return was not probed, so it may have returned
 * long ago: user space looks at the place of its return address. 0 if there was none.
 */
static __always_inline __u64 unprobed_launch(struct gp_thread *thread, struct gp_pending_call *pending)
{
	struct gp_unprobed_launch *launch = &thread->last_launch;

	pending->function = launch->function;
	pending->return_slot = launch->stack_pointer;
	pending->return_address = launch->return_address;
	return launch->start_ns;
}

/* Writes the outermost open call of every thread. */
SEC("iter/task")
int pending_calls(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gp_pending_call pending = {};
	struct gp_thread *thread;
	struct gp_call *call;
	__u64 least_age = 0;

	if (!task)
		return 0;
	thread = bpf_task_storage_get(&threads, task, 0, 0);
	if (!thread)
		return 0;
	/* also holds the arguments of a launch without a return probe: the stack pointer is that of the
	 * launch */
	call = open_call(thread, 0);
	if (thread->depth) {
		pending.start_ns = call->start_ns;
		pending.function = call->function;
	} else {
		pending.start_ns = unprobed_launch(thread, &pending);
		least_age = GP_UNPROBED_WAIT_NS;
	}
	if (!pending.start_ns || pending.start_ns + least_age > bpf_ktime_get_ns() ||
	    is_abandoned(call, task))
		return 0;
	pending.instance = thread->instance;
	pending.tgid = thread->tgid;
	pending.tid = thread->tid;
	bpf_seq_write(ctx->meta->seq, &pending, sizeof(pending));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
