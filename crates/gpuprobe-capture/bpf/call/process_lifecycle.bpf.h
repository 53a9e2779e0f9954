/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The life cycle of processes: which ones to follow, when to drop their state, and how to pause them until
 * their probes are attached.
 */
#ifndef GP_PROCESS_LIFECYCLE_BPF_H
#define GP_PROCESS_LIFECYCLE_BPF_H

#include "call_entry.bpf.h"

#define GP_SIGSTOP 19
/* offset of r_state in struct r_debug of <link.h>: it follows version, map and brk */
#define GP_R_STATE 24
#define GP_RT_CONSISTENT 0
/* the most iterations that bpf_loop allows */
#define GP_MOST_STEPS (1 << 23)
/* how long to wait for user space to see a question, and then for its answer */
#define GP_WAIT_UNSEEN_NS 1000000ULL
#define GP_WAIT_SEEN_NS 20000000ULL
/*
 * longer than attaching takes. Detaching probes, or attaching them from another gpuprobe, may have to wait
 * this long.
 */
#define GP_WAIT_SLEEPING_NS 300000000ULL

/*
 * Asks user space to look at what the current process has mapped. The record is reserved first: without it
 * no answer would ever come.
 */
static __always_inline bool ask_user_space(__u32 ticket, __u32 how)
{
	struct gp_process_record *record = bpf_ringbuf_reserve(&control, sizeof(*record), 0);

	if (!record) {
		count_loss(GP_LOSS_RING_FULL);
		return false;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->kind = GP_RECORD_PAUSE;
	record->change = how;
	record->tgid = bpf_get_current_pid_tgid() >> 32;
	record->tid = bpf_get_current_pid_tgid();
	record->id = ticket;
	/* SIGCONT must not arrive before SIGSTOP, so the signal is sent before the record */
	if (how & GP_STOPPED && bpf_send_signal(GP_SIGSTOP)) {
		bpf_ringbuf_discard(record, 0);
		return false;
	}
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return true;
}

/* A wait for the answer of user space. */
struct waiting {
	__u64 until_ns;
	__u64 longest_ns;
	/* a readable address of the process */
	__u64 address;
	__u32 tgid;
	__u32 ticket;
	bool seen;
	bool answered;
};

/* One step of a wait. Returns 1 when the wait is over: answered, asked to stop, or timed out. */
static __always_inline long look_for_answer(struct waiting *waiting)
{
	__u64 *answer = bpf_map_lookup_elem(&paused, &waiting->tgid);
	__u64 value = answer ? *(volatile __u64 *)answer : 0;

	if (value >= GP_PAUSE_STATE(waiting->ticket, GP_ANSWERED)) {
		waiting->answered = true;
		return 1;
	}
	if (value >= GP_PAUSE_STATE(waiting->ticket, GP_STOP)) {
		waiting->seen = true;
		return 1;
	}
	if (value >= GP_PAUSE_STATE(waiting->ticket, GP_SEEN) && !waiting->seen) {
		waiting->seen = true;
		waiting->until_ns = bpf_ktime_get_ns() + waiting->longest_ns;
	}
	return bpf_ktime_get_ns() > waiting->until_ns;
}

static long wait_step(__u64 step, struct waiting *waiting)
{
	return look_for_answer(waiting);
}

/*
 * The data read is not used. The read is here because it passes a point where the Linux kernel may schedule
 * another task that is waiting.
 */
static long wait_sleeping_step(__u64 step, struct waiting *waiting)
{
	__u32 ignored;

	bpf_copy_from_user_task(&ignored, sizeof(ignored), (void *)waiting->address,
				bpf_get_current_task_btf(), 0);
	return look_for_answer(waiting);
}

/*
 * A process is paused until user space has looked at what it mapped. It waits inside the probe instead of
 * being stopped by SIGSTOP, because parents that wait for their children (shells with job control, su,
 * sudo, debuggers) see a stop and act on it.
 *
 * There are two ways to wait. Where the BPF program may sleep, it lets other tasks run and can wait for as
 * long as attaching takes (pause_sleeping). Elsewhere the wait occupies a CPU, and no probe can be attached
 * while it lasts, because attaching waits until every CPU has left such sections once. There the wait is
 * short, it ends at once if user space does not react on another CPU, and then the process is stopped by
 * SIGSTOP after all.
 */
static __always_inline void pause_without_sleeping(__u32 how)
{
	struct waiting waiting = {.tgid = bpf_get_current_pid_tgid() >> 32, .longest_ns = GP_WAIT_SEEN_NS};

	waiting.ticket = __sync_fetch_and_add(&gp_next_ticket, 1);
	if (gp_config.pause == GP_PAUSE_BY_WAITING) {
		if (!ask_user_space(waiting.ticket, how))
			return;
		waiting.until_ns = bpf_ktime_get_ns() + GP_WAIT_UNSEEN_NS;
		bpf_loop(GP_MOST_STEPS, wait_step, &waiting, 0);
		if (waiting.answered)
			return;
	}
	ask_user_space(waiting.ticket, how | GP_STOPPED);
}

static __always_inline void pause_sleeping(__u64 address)
{
	struct waiting waiting = {
	    .tgid = bpf_get_current_pid_tgid() >> 32, .address = address, .longest_ns = GP_WAIT_SLEEPING_NS};

	waiting.ticket = __sync_fetch_and_add(&gp_next_ticket, 1);
	if (!ask_user_space(waiting.ticket, GP_SLEEPING))
		return;
	waiting.until_ns = bpf_ktime_get_ns() + GP_WAIT_SLEEPING_NS;
	bpf_loop(GP_MOST_STEPS, wait_sleeping_step, &waiting, 0);
	if (!waiting.answered)
		ask_user_space(waiting.ticket, GP_SLEEPING | GP_STOPPED);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 parent_tgid = BPF_CORE_READ(parent, tgid);
	__u32 tgid = BPF_CORE_READ(child, tgid);
	struct gp_python *python;
	__u32 one = 1;

	/* a new thread of the same process needs nothing */
	if (tgid == parent_tgid)
		return 0;
	/* it has the memory of its parent, and with it the interpreter */
	python = bpf_map_lookup_elem(&pythons, &parent_tgid);
	if (python && bpf_map_update_elem(&pythons, &tgid, python, BPF_ANY))
		count_loss(GP_LOSS_UNREAD_PYTHON);
	if (!gp_config.only_targets || !gp_config.follow_forks ||
	    !bpf_map_lookup_elem(&targets, &parent_tgid))
		return 0;
	if (bpf_map_update_elem(&targets, &tgid, &one, BPF_ANY))
		count_loss(GP_LOSS_PROCESSES_FULL);
	send_process(child, GP_START, parent_tgid, 0);
	return 0;
}

static long note_file(struct task_struct *task, struct vm_area_struct *vma, struct gp_file *file)
{
	file->inode = BPF_CORE_READ(vma, vm_file, f_inode, i_ino);
	file->device = BPF_CORE_READ(vma, vm_file, f_inode, i_sb, s_dev);
	return 0;
}

/*
 * Whether the new program starts in a dynamic loader that has a probe. If so, that probe will pause it in
 * time. The start address is in its registers; if it cannot be read, the loader counts as unknown.
 */
static __always_inline bool has_known_loader(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct gp_file file = {};
	__u64 ip = 0;

	if (bpf_probe_read_kernel(&ip, sizeof(ip), (void *)&PT_REGS_IP(regs)) ||
	    bpf_find_vma(task, ip, note_file, &file, 0))
		return false;
	return bpf_map_lookup_elem(&loaders, &file);
}

/* Sends the deferred launches of a thread, and its open calls, which will not return. */
static __always_inline void end_open_calls(struct gp_thread *thread)
{
	if (thread->deferred_count) {
		struct gp_call *launch = &thread->deferred[0];

		/* a call inside the launch has not returned, so neither has the launch */
		if (thread->depth && open_call(thread, 0)->parent == launch->id)
			launch->flags = (launch->flags & ~GP_UNOBSERVED) | GP_UNFINISHED;
		send_deferred(thread);
	}
	for (__u32 i = 0; i < GP_DEPTH; i++) {
		struct gp_call *call = &thread->open[i];
		struct gp_function *function;
		__u32 index;

		if (i >= thread->depth)
			break;
		undo_entry(thread, call);
		call->flags |= GP_UNFINISHED;
		index = call->function;
		function = bpf_map_lookup_elem(&functions, &index);
		if (function && function->flags & GP_STREAM && !gp_config.errors_only &&
		    !(gp_config.outermost_only && call->parent))
			send_call(call, function);
	}
	thread->depth = 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	struct gp_thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	__u32 tgid = BPF_CORE_READ(task, tgid);
	/* the exec count has just been incremented */
	struct gp_process_key before = {.instance = instance_of(task) - 1, .tgid = tgid};

	/* the open calls belong to the previous program, and so does the thread's instance */
	if (thread)
		end_open_calls(thread);
	bpf_task_storage_delete(&threads, bpf_get_current_task_btf());
	if (gp_config.only_targets ? !is_target(tgid) : !bpf_map_lookup_elem(&processes, &before))
		return 0;
	send_process(task, GP_EXEC, 0, 0);
	if (gp_config.pause && !has_known_loader())
		pause_without_sleeping(GP_AT_EXEC);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct gp_thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	__u32 tgid = BPF_CORE_READ(task, tgid);
	struct gp_process_key key = {.tgid = tgid};

	if (thread) {
		end_open_calls(thread);
		thread->has_exited = 1;
	}
	if (BPF_CORE_READ(task, signal, live.counter))
		return 0;
	bpf_map_delete_elem(&paused, &tgid);
	bpf_map_delete_elem(&stack_copiers, &tgid);
	bpf_map_delete_elem(&pythons, &tgid);
	key.instance = instance_of(task);
	if (gp_config.only_targets ? !bpf_map_delete_elem(&targets, &tgid)
				   : !!bpf_map_lookup_elem(&processes, &key))
		send_process(task, GP_EXIT, 0, BPF_CORE_READ(task, exit_code));
	return 0;
}

/*
 * Runs at _dl_debug_state of the dynamic loader, which the loader calls when it begins to map libraries,
 * and again when they are mapped but before their constructors run. The cookie is the distance from that
 * function to _r_debug, where the loader stores which of the two it is; 0 if the distance is not known.
 */
static __always_inline bool loader_is_done(struct pt_regs *ctx)
{
	__u64 distance = bpf_get_attach_cookie(ctx);
	__u32 state = GP_RT_CONSISTENT;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return false;
	if (distance &&
	    bpf_probe_read_user(&state, sizeof(state), (void *)(PT_REGS_IP(ctx) + distance + GP_R_STATE)))
		return true;
	return state == GP_RT_CONSISTENT;
}

#endif
