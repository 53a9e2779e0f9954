/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Open calls of any kind (library functions, system calls, Linux functions): how they begin, how their
 * records are sent, and their counters.
 */
#ifndef GP_OPEN_CALLS_BPF_H
#define GP_OPEN_CALLS_BPF_H

#include "common.bpf.h"

/* Whether an open call is a call of a Linux function: its stack pointer is a kernel address. */
static __always_inline bool is_linux_call(const struct gp_call *call)
{
	return call->stack_pointer >> 63;
}

static __always_inline void save_registers(struct gp_call *call, struct pt_regs *ctx)
{
#if defined(__TARGET_ARCH_x86)
	call->registers[0] = ctx->di;
	call->registers[1] = ctx->si;
	call->registers[2] = ctx->dx;
	call->registers[3] = ctx->cx;
	call->registers[4] = ctx->r8;
	call->registers[5] = ctx->r9;
#else
	for (int i = 0; i < GP_REGISTERS; i++)
		call->registers[i] = ctx->regs[i];
#endif
}

/*
 * Copies the text that an argument points to. A program can pass any address, so kernel memory is read only
 * if it is the Linux kernel that makes the call.
 */
static __always_inline void read_text(struct gp_call *call, __u64 address, bool from_linux)
{
	long length;

	if (from_linux && address >> 63)
		length = bpf_probe_read_kernel_str(call->pointee.bytes, sizeof(call->pointee.bytes),
						   (void *)address);
	else
		length = bpf_probe_read_user_str(call->pointee.bytes, sizeof(call->pointee.bytes),
						 (void *)address);
	if (length < 0)
		call->flags |= GP_UNREAD_POINTEE;
	else if (length == sizeof(call->pointee.bytes))
		call->flags |= GP_CUT_TEXT;
}

/*
 * Initialises a call that was pushed on its thread's stack. It overwrites every field that an earlier call
 * may have left there.
 */
static __always_inline void begin_call(struct gp_thread *thread, struct gp_call *call,
				       const struct gp_call *outer, const struct gp_function *function,
				       __u32 index)
{
	call->kind = GP_RECORD_CALL;
	call->flags = 0;
	call->function = index;
	call->weight = 1;
	call->id = new_id(thread);
	call->reported = !!(function->flags & (GP_COUNT | GP_STREAM));
	call->inner_failed = 0;
	call->parent = !outer ? 0 : outer->reported ? outer->id : outer->parent;
	call->actions = outer ? outer->actions : 0;
	call->instance = thread->instance;
	call->tgid = thread->tgid;
	call->tid = thread->tid;
	call->depth = outer ? outer->depth + outer->reported : 0;
	/* until its clock starts: the iterators must not take the time of an earlier call for its own */
	call->start_ns = 0;
	call->duration_ns = 0;
	call->effect = GP_EFFECT_NONE;
	call->site = 0;
	call->pointer = 0;
	call->device = GP_NO_DEVICE;
	call->entered = 0;
	call->device_ns = 0;
}

/* The innermost open call; NULL if there is none. */
static __always_inline struct gp_call *innermost(struct gp_thread *thread)
{
	return thread->depth ? open_call(thread, thread->depth - 1) : NULL;
}

/* Pushes a call on its thread's stack, inside `outer`; NULL if the stack is full. */
static __always_inline struct gp_call *push_call(struct gp_thread *thread, const struct gp_call *outer,
						 const struct gp_function *function, __u32 index)
{
	struct gp_call *call;

	if (thread->depth >= GP_DEPTH) {
		count_loss(GP_LOSS_TOO_DEEP);
		return NULL;
	}
	call = open_call(thread, thread->depth);
	begin_call(thread, call, outer, function, index);
	thread->depth++;
	return call;
}

/*
 * The same for what the Linux kernel runs: system calls, Linux functions and tracepoints. They have no
 * library and no effect on memory.
 */
static __always_inline struct gp_call *push_linux_call(struct gp_thread *thread, const struct gp_call *outer,
						       const struct gp_function *function, __u32 index,
						       __u64 stack_pointer)
{
	struct gp_call *call = push_call(thread, outer, function, index);

	if (!call)
		return NULL;
	call->stack_pointer = stack_pointer;
	call->library = 0;
	call->return_address = 0;
	call->result = 0;
	call->bytes = 0;
	call->space = 0;
	return call;
}

static __always_inline void send_call(const struct gp_call *call, const struct gp_function *function)
{
	__u64 bytes = function->record_bytes;

	/* keeps the compiler from folding the check into one that the verifier cannot follow */
	barrier_var(bytes);
	if (bytes < 8 || bytes > sizeof(*call))
		bytes = sizeof(*call);
	if (bpf_ringbuf_output(&calls, (void *)call, bytes, wakes_reader(bytes)))
		count_loss(GP_LOSS_RING_FULL);
}

/* Sends the record that a call has begun, if the function's calls are sent. */
static __always_inline void send_begin_record(struct gp_call *call, const struct gp_function *function)
{
	if (!(function->flags & GP_STREAM) || (gp_config.outermost_only && call->parent))
		return;
	call->flags |= GP_BEGUN;
	send_call(call, function);
	call->flags &= ~GP_BEGUN;
}

/* The row of a function's counters in a process, which the first call creates; 0 if the table is full. */
GP_GLOBAL_FUNC __u32 row_of_count(__u64 instance, __u32 tgid, __u32 function)
{
	struct gp_count_key key = {.instance = instance, .tgid = tgid, .function = function};

	return row_of(&counts, &count_rows, &unused_counts, &gp_count_rows_used, &key, GP_LOSS_COUNTERS_FULL);
}

/* The counters of a function in the thread's process, through the thread's cache of row numbers. */
static __always_inline struct gp_count *count_of(struct gp_thread *thread, __u32 function)
{
	struct gp_counted *last = &thread->counted[function & (GP_COUNTED - 1)];
	__u32 row = last->row;

	if (!row || last->function != function) {
		row = row_of_count(thread->instance, thread->tgid, function);
		if (!row)
			return NULL;
		last->function = function;
		last->row = row;
	}
	return bpf_map_lookup_elem(&count_rows, &row);
}

/* The counters are per CPU, but programs may be preempted, so the additions are atomic. */
static __always_inline void count_latency(struct gp_count *count, const struct gp_call *call, bool failed)
{
	if (failed)
		__sync_fetch_and_add(&count->errors, call->weight);
	__sync_fetch_and_add(&count->total_ns, call->duration_ns * call->weight);
	__sync_fetch_and_add(&count->latency[log2_bucket(call->duration_ns)], call->weight);
}

/* Counts a call of which only the entry is probed. */
static __always_inline void count_entry(struct gp_thread *thread, __u32 function, __u32 weight)
{
	struct gp_count *count = count_of(thread, function);

	if (count)
		__sync_fetch_and_add(&count->entry_count, weight);
}

/* Adds the system calls that a call made on the NVIDIA devices, and their time, to the enclosing call. */
static __always_inline void propagate_device_time(struct gp_thread *thread, const struct gp_call *call)
{
	struct gp_call *outer = innermost(thread);
	__u32 entered;

	if (!outer)
		return;
	entered = outer->entered + call->entered;
	outer->entered = entered < GP_MOST_ENTERED ? entered : GP_MOST_ENTERED;
	outer->device_ns += call->device_ns;
}

GP_OWN_FRAME int count_device_time(struct gp_thread *thread, const struct gp_call *call)
{
	struct gp_count *count = count_of(thread, call->function);

	if (count) {
		__sync_fetch_and_add(&count->entered, call->weight);
		__sync_fetch_and_add(&count->device_ns, call->device_ns * call->weight);
	}
	return 0;
}

#endif
