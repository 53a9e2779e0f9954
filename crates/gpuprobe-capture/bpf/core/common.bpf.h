/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Helpers that every other file uses: state of the calling thread and process, ids, arguments, and size
 * arithmetic.
 */
#ifndef GP_COMMON_BPF_H
#define GP_COMMON_BPF_H

#include "table_rows.bpf.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/*
 * A program has 512 bytes of stack, and everything inlined into it adds to its frame. A function that needs
 * much stack and runs rarely gets a frame of its own, which takes stack only while it runs.
 */
#define GP_OWN_FRAME static __noinline

/*
 * A BPF global function. The verifier checks a static function again for every path that leads to it. It
 * checks a global function once, from the declared types of its arguments, which keeps loading fast. That
 * is why every global function checks its pointer arguments for NULL.
 */
#define GP_GLOBAL_FUNC __noinline

#define GP_ID_BLOCK 64

/*
 * The largest plausible size of one allocation or copy: no machine has that much memory, and a sum of
 * 65,535 of these still fits into 64 bits. A larger value is a number that a program made up, and would
 * make sums wrap around.
 */
#define GP_MOST_BYTES (1ULL << 48)
#define GP_IMPLAUSIBLE (~0ULL)
/* the largest sum that is added to: no program moves that much, but it may claim so */
#define GP_MOST_SUM (1ULL << 63)

#if defined(__TARGET_ARCH_x86)
/* on entry the return address is on top of the stack; on return it has been popped */
#define GP_FIRST_STACK_ARGUMENT 8
#define GP_POPPED_BY_RETURN 8
#else
#define GP_FIRST_STACK_ARGUMENT 0
#define GP_POPPED_BY_RETURN 0
#endif

/*
 * Linux 6.13 has this function without an argument, 7.0 with the context. libbpf ignores what follows the
 * three underscores and binds the one whose prototype fits. Weak, because the other programs of this object
 * also load on kernels without the function.
 */
extern bool bpf_session_is_return___plain(void) __ksym __weak;
extern bool bpf_session_is_return___context(void *ctx) __ksym __weak;

/* Whether the program of a session runs at the return of a call, not at its entry. */
static __always_inline bool is_return_of_session(void *ctx)
{
	return bpf_ksym_exists(bpf_session_is_return___context) ? bpf_session_is_return___context(ctx)
								: bpf_session_is_return___plain();
}

/* A product of sizes that may overflow. */
static __always_inline __u64 times(__u64 a, __u64 b)
{
	return b && a > GP_MOST_BYTES / b ? GP_IMPLAUSIBLE : a * b;
}

static __always_inline __u64 plus(__u64 a, __u64 b)
{
	return a > GP_MOST_BYTES || b > GP_MOST_BYTES ? GP_IMPLAUSIBLE : a + b;
}

/* The size to count. An implausible size is counted as a loss, and as 0 in sums. */
static __always_inline __u64 plausible(__u64 bytes)
{
	if (bytes <= GP_MOST_BYTES)
		return bytes;
	count_loss(GP_LOSS_IMPLAUSIBLE_SIZE);
	return 0;
}

/* Adds to a sum that must not wrap around. What does not fit is counted as a loss. */
static __always_inline void add_bytes(__u64 *sum, __u64 bytes)
{
	if (*sum <= GP_MOST_SUM)
		__sync_fetch_and_add(sum, bytes);
	else if (bytes)
		count_loss(GP_LOSS_IMPLAUSIBLE_SIZE);
}

/*
 * The state of the library that the probed function is in. The upper half of the cookie is the library's
 * number.
 */
static __always_inline __u32 library_state(__u64 cookie)
{
	__u32 row = (cookie >> 32) & (GP_LIBRARIES - 1);
	struct gp_library *library = bpf_map_lookup_elem(&libraries, &row);

	return library ? library->state : GP_LIBRARY_ACTIVE;
}

/* How many calls a call of a sampled function stands for now; 0 between turns. */
static __always_inline __u32 weight_of_turn(void)
{
	__u64 now = bpf_ktime_get_ns();

	return now >= gp_turn.from_ns && now < gp_turn.until_ns ? gp_turn.weight : 0;
}

/*
 * How many calls a call of this function that begins now stands for; 0 if it is not observed. The probes of
 * the last turn may still be attached when the next one begins. A call must not be observed by both, so the
 * upper bits of the cookie are the number of the turn that a probe was attached for, or 0.
 */
static __always_inline __u32 weight_now(const struct gp_function *function, __u64 cookie)
{
	__u64 attached_for = cookie >> GP_COOKIE_TURN;

	if (!(function->flags & GP_SAMPLED))
		return !attached_for;
	return attached_for == (function->flags & GP_IN_TURNS ? gp_turn.number : 0) ? weight_of_turn() : 0;
}

/* Whether observation has ended at this time. */
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
 * Distinguishes runs that share a pid. The start time changes when a pid is reused, and the exec count
 * grows with every exec. For all practical purposes their sum changes whenever one of them does.
 */
static __always_inline __u64 instance_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, start_boottime) + BPF_CORE_READ(task, self_exec_id);
}

/*
 * The pid in the innermost pid namespace. A struct pid has one number per level, and may be longer than
 * declared here.
 */
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
 * The flags to submit a record to the ring of calls with. The reader is woken once, when the fill level
 * crosses the mark. It also polls from time to time.
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

/* The innermost cgroups of a task, in the unified hierarchy (cgroup v2). */
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
 * The row of the current process, which its first call creates; 0 if the table is full. If there was no row
 * when the process started, a later call tries again.
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

/* Creates the state of the current thread, and with its first thread the row of the process. */
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

/* The state of the current thread, whose task is `task`; NULL if its process is not watched. */
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
 * One of the open calls. The barrier keeps the mask: the compiler may already know the bound, but only from
 * a copy of the index that the verifier of Linux 6.1 does not connect with this one.
 */
static __always_inline struct gp_call *open_call(struct gp_thread *thread, __u32 index)
{
	barrier_var(index);
	return &thread->open[index & (GP_DEPTH - 1)];
}

/*
 * Reads arguments from the program's stack. Kernels that check the destination of a copy have to look up
 * the heap object that the call is part of. They recognise a BPF program's own stack without that, so short
 * reads go through the stack. This may read more words than were asked for; the extra words are not
 * reported.
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

/* A word of the program. */
static __always_inline __u64 user_word(__u64 at, __u32 bytes, bool *failed)
{
	__u64 word = 0;

	if (bpf_probe_read_user(&word, bytes == 4 ? 4 : 8, (void *)at))
		*failed = true;
	return word;
}

/* The value of an argument that the call has saved; false if there is none. */
static __always_inline bool argument(const struct gp_call *call, struct gp_arg_loc loc, __u64 *value)
{
	__u32 index = loc.index;

	/* the barriers keep the two bounds separate, so that the verifier sees each one at its load */
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
 * The bucket in a histogram of powers of two. There is no branch, because the verifier would check all the
 * following code once for each of 32 paths.
 */
static __always_inline __u32 log2_bucket(__u64 n)
{
	__u64 high = n >> 32, bucket = 0;

	/*
	 * anything above the last bucket's lower bound goes into the last bucket: set all bits of the lower
	 * half
	 */
	n = (__u32)(n | -high >> 32);
	for (int bits = 16, digit = 4; bits; bits >>= 1, digit--) {
		/* negative if n has more bits than this; only the sign is used */
		__u64 wider = (1ULL << bits) - 1 - n;

		/* otherwise the compiler turns this into a comparison, and that into a branch */
		barrier_var(wider);
		wider = wider >> 63 << digit;
		n >>= wider;
		bucket += wider;
	}
	/*
	 * the compiler knows that this is a valid bucket, but the verifier of Linux 6.1 does not, so the
	 * mask must stay
	 */
	barrier_var(bucket);
	return bucket & (GP_BUCKETS - 1);
}

/* Whether a call that has returned passes the filters. */
static __always_inline bool is_wanted(const struct gp_call *call, bool failed)
{
	return !(gp_config.outermost_only && call->parent) && !(gp_config.errors_only && !failed) &&
	       call->duration_ns >= gp_config.min_duration_ns;
}

#endif
