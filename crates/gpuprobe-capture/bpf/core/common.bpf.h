/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Who is calling, what was lost, and ids. */
#ifndef GP_COMMON_BPF_H
#define GP_COMMON_BPF_H

#include "table_rows.bpf.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/*
 * A program has 512 bytes of stack, and everything that is inlined into it adds to its frame. What needs much
 * and is done seldom has a frame of its own, which takes the room only while it runs.
 */
#define GP_OWN_FRAME static __noinline

/*
 * The verifier goes through a static function anew for each path that leads to it. One that is not static it
 * checks once, by what its arguments are declared to be; that keeps loading fast.
 */
#define GP_GLOBAL_FUNC __noinline

#define GP_ID_BLOCK 64

/*
 * The most bytes that one allocation or copy can have: no machine has so much memory, and sums of 65,535 of
 * these still fit. What is larger is a number that a program made up, and would make sums wrap around.
 */
#define GP_MOST_BYTES (1ULL << 48)
#define GP_IMPLAUSIBLE (~0ULL)

#if defined(__TARGET_ARCH_x86)
/* at entry the return address lies on top of the stack; at return it is gone */
#define GP_FIRST_STACK_ARGUMENT 8
#define GP_POPPED_BY_RETURN 8
#else
#define GP_FIRST_STACK_ARGUMENT 0
#define GP_POPPED_BY_RETURN 0
#endif

/*
 * Kernel 6.13 has it without an argument, 7.0 with the context. The loader leaves out what follows the three
 * underscores and binds the one whose prototype fits; weak, because the other programs of this file load on
 * kernels that have never heard of it.
 */
extern bool bpf_session_is_return___plain(void) __ksym __weak;
extern bool bpf_session_is_return___context(void *ctx) __ksym __weak;

/* Which end of a call the program of a session is at. */
static __always_inline bool is_return_of_session(void *ctx)
{
	return bpf_ksym_exists(bpf_session_is_return___context) ? bpf_session_is_return___context(ctx)
								: bpf_session_is_return___plain();
}

/* A product of sizes, where the product itself may not fit. */
static __always_inline __u64 times(__u64 a, __u64 b)
{
	return b && a > GP_MOST_BYTES / b ? GP_IMPLAUSIBLE : a * b;
}

static __always_inline __u64 plus(__u64 a, __u64 b)
{
	return a > GP_MOST_BYTES || b > GP_MOST_BYTES ? GP_IMPLAUSIBLE : a + b;
}

/* A size as it is counted: one that cannot be is counted as lost, and as 0 in sums. */
static __always_inline __u64 plausible(__u64 bytes)
{
	if (bytes <= GP_MOST_BYTES)
		return bytes;
	count_loss(GP_LOSS_IMPLAUSIBLE_SIZE);
	return 0;
}

/* The state of the library that a probe is in, by the upper half of its cookie. */
static __always_inline __u32 library_state(__u64 cookie)
{
	__u32 row = (cookie >> 32) & (GP_LIBRARIES - 1);
	__u32 *state = bpf_map_lookup_elem(&library_states, &row);

	return state ? *state : GP_LIBRARY_ACTIVE;
}

/* Whether what happens at this time is not observed any more. */
static __always_inline bool is_stopped_at(__u64 now)
{
	__u64 stop_ns = gp_stop_ns;

	return stop_ns && now >= stop_ns;
}

static __always_inline bool is_stopped(void)
{
	return gp_stop_ns && is_stopped_at(bpf_ktime_get_ns());
}

static __always_inline bool is_target(__u32 tgid)
{
	return !gp_config.only_targets || bpf_map_lookup_elem(&targets, &tgid);
}

/*
 * Tells runs apart that share a pid: start times differ when a pid is used again, and the count of execs
 * rises with each exec. Their sum differs whenever one of them does, for all practical purposes.
 */
static __always_inline __u64 instance_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, start_boottime) + BPF_CORE_READ(task, self_exec_id);
}

/* The pid in the innermost namespace: a struct pid has a number for each level, and may be longer than we
 * declare. */
static __always_inline __u32 ns_tgid_of(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, group_leader, thread_pid);
	__u32 level = BPF_CORE_READ(pid, level);
	__u32 number = 0;

	bpf_core_read(&number, sizeof(number),
		      (void *)pid + bpf_core_field_offset(struct pid, numbers) +
			  level * bpf_core_type_size(struct upid) + bpf_core_field_offset(struct upid, nr));
	return number;
}

/*
 * How to submit a record of the ring of calls: the reader is woken once, as the mark is passed. It also looks
 * by itself from time to time.
 */
static __always_inline __u64 wakes_reader(__u64 bytes)
{
	__u64 waiting = bpf_ringbuf_query(&calls, BPF_RB_AVAIL_DATA);

	if (waiting < gp_config.wakeup_bytes && waiting + bytes >= gp_config.wakeup_bytes)
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

static __always_inline struct kernfs_node *parent_of(struct kernfs_node *node)
{
	struct kernfs_node___renamed *renamed = (void *)node;

	if (bpf_core_field_exists(renamed->__parent))
		return BPF_CORE_READ(renamed, __parent);
	return BPF_CORE_READ(node, parent);
}

/* The innermost cgroups of a task, in the one hierarchy that new kernels have. */
static __always_inline void note_cgroups(struct gp_process_record *record, struct task_struct *task)
{
	struct kernfs_node *node = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn), *outer = parent_of(node);

	bpf_probe_read_kernel_str(record->cgroup, GP_CGROUP_NAME, BPF_CORE_READ(node, name));
	bpf_probe_read_kernel_str(record->outer_cgroup, GP_CGROUP_NAME, BPF_CORE_READ(outer, name));
}

static __always_inline void send_process(struct task_struct *task, __u32 change, __u32 parent,
					 __s32 exit_code)
{
	struct gp_process_record *record = bpf_ringbuf_reserve(&control, sizeof(*record), 0);

	if (!record) {
		count_loss(GP_LOSS_RING_FULL);
		return;
	}
	record->kind = GP_RECORD_PROCESS;
	record->change = change;
	record->tgid = BPF_CORE_READ(task, tgid);
	record->tid = BPF_CORE_READ(task, pid);
	record->parent = parent;
	record->id = __sync_fetch_and_add(&gp_next_id, 1);
	record->at_ns = bpf_ktime_get_ns();
	record->instance = instance_of(task);
	record->exit_code = exit_code;
	record->ns_tgid = ns_tgid_of(task);
	BPF_CORE_READ_STR_INTO(&record->comm, task, group_leader, comm);
	record->cgroup[0] = 0;
	record->outer_cgroup[0] = 0;
	if (change == GP_START)
		note_cgroups(record, task);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

/*
 * The row of the process that runs, which the first call makes; 0 where the table is full. A row that did not
 * fit when the process began is tried for again.
 */
GP_GLOBAL_FUNC __u32 row_of_process(__u64 instance, __u32 tgid)
{
	struct gp_process_key key = {.instance = instance, .tgid = tgid};
	__u32 *known = bpf_map_lookup_elem(&processes, &key), row, taken;
	struct task_struct *task = bpf_get_current_task_btf();
	struct gp_memory *memory;

	if (known)
		return *known;
	taken = take_row(&memory_rows, &unused_memory, &gp_memory_rows_used);
	memory = taken ? bpf_map_lookup_elem(&memory_rows, &taken) : NULL;
	if (memory)
		__builtin_memset(memory, 0, sizeof(*memory));
	row = put_row(&processes, &unused_memory, &key, taken);
	if (!row)
		count_loss(GP_LOSS_PROCESSES_FULL);
	else if (row == taken)
		send_process(task, GP_START, BPF_CORE_READ(task, real_parent, tgid), 0);
	return row;
}

static __always_inline struct gp_thread *new_thread(struct task_struct *task, __u64 pid_tgid)
{
	struct gp_thread *thread;

	thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread) {
		count_loss(GP_LOSS_NO_THREAD_STATE);
		return NULL;
	}
	thread->tgid = pid_tgid >> 32;
	thread->tid = pid_tgid;
	thread->instance = instance_of(task);
	thread->memory_row = row_of_process(thread->instance, thread->tgid);
	return thread;
}

/* The state of the thread that runs, which is `task`, where its process is watched. */
static __always_inline struct gp_thread *thread_of(struct task_struct *task)
{
	struct gp_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	__u64 pid_tgid;

	if (is_stopped())
		return NULL;
	if (thread)
		return thread;
	pid_tgid = bpf_get_current_pid_tgid();
	return is_target(pid_tgid >> 32) ? new_thread(task, pid_tgid) : NULL;
}

static __always_inline struct gp_thread *current_thread(void)
{
	return thread_of(bpf_get_current_task_btf());
}

static __always_inline __u64 new_id(struct gp_thread *thread)
{
	if (!thread->ids_left) {
		thread->next_id = __sync_fetch_and_add(&gp_next_id, GP_ID_BLOCK);
		thread->ids_left = GP_ID_BLOCK;
	}
	thread->ids_left--;
	return thread->next_id++;
}

/*
 * One of the open calls. The barrier keeps the mask: the compiler may know the bound already, but only from a
 * copy that kernel 6.1's verifier does not connect with this one.
 */
static __always_inline struct gp_call *open_call(struct gp_thread *thread, __u32 index)
{
	barrier_var(index);
	return &thread->open[index & (GP_DEPTH - 1)];
}

/*
 * Reads arguments on the stack. Kernels that check what they copy to look up the object in the heap that a
 * call is part of; a program's own stack they know. So what is short is read there. More than was asked for
 * may be read, and be told to nobody.
 */
static __always_inline bool read_stack(struct gp_call *call, __u32 bytes)
{
	void *at = (void *)(call->stack_pointer + GP_FIRST_STACK_ARGUMENT);
	__u64 few[3];

	if (bytes <= sizeof(few) && !bpf_probe_read_user(few, sizeof(few), at)) {
		__builtin_memcpy(call->stack.words, few, sizeof(few));
		return true;
	}
	if (bytes > sizeof(call->stack.words))
		bytes = sizeof(call->stack.words);
	return !bpf_probe_read_user(call->stack.words, bytes, at);
}

/* The value of an argument that the call has saved; false where it has none. */
static __always_inline bool argument(const struct gp_call *call, struct gp_place loc, __u64 *value)
{
	__u32 index = loc.index;

	/* the barriers keep the two bounds apart, so that the verifier sees each at its load */
	if (loc.kind == GP_IN_REGISTER) {
		barrier_var(index);
		if (index >= GP_REGISTERS)
			return false;
		*value = call->registers[index];
		return true;
	}
	if (loc.kind == GP_ON_STACK && !(call->flags & GP_UNREAD_STACK)) {
		barrier_var(index);
		if (index >= GP_STACK_WORDS)
			return false;
		*value = call->stack.words[index];
		return true;
	}
	return false;
}

/*
 * The bucket of a histogram of powers of two. Without a branch: the verifier would go through all that
 * follows once for each of 32 ways.
 */
static __always_inline __u32 log2_bucket(__u64 n)
{
	__u64 high = n >> 32, bucket = 0;

	/* what is larger than the last bucket begins is in it: all of the lower half is set */
	n = (__u32)(n | -high >> 32);
	for (int bits = 16, digit = 4; bits; bits >>= 1, digit--) {
		/* negative where n is wider than this, and the sign is what is asked for */
		__u64 wider = (1ULL << bits) - 1 - n;

		/* or the compiler makes a comparison of it, and a branch of that */
		barrier_var(wider);
		wider = wider >> 63 << digit;
		n >>= wider;
		bucket += wider;
	}
	/* the compiler knows that it is a bucket, kernel 6.1's verifier does not: masks stay */
	barrier_var(bucket);
	return bucket & (GP_BUCKETS - 1);
}

/* Whether a call that has returned is one of those asked for. */
static __always_inline bool is_wanted(const struct gp_call *call, bool failed)
{
	return !(gp_config.outermost_only && call->parent) && !(gp_config.errors_only && !failed) &&
	       call->duration_ns >= gp_config.min_duration_ns;
}

#endif
