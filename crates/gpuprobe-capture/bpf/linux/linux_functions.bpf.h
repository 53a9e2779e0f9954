/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Linux functions: those of the NVIDIA kernel modules, and any others that the user has named. They are
 * pushed on the stack of open calls as library functions are, so that the ioctl or the fault that they
 * serve is their parent. Their position on the Linux kernel's stack identifies them, and distinguishes
 * calls of the same function.
 */
#ifndef GP_LINUX_FUNCTIONS_BPF_H
#define GP_LINUX_FUNCTIONS_BPF_H

#include "../core/failures.bpf.h"
#include "../core/open_calls.bpf.h"

/* bits of the preemption count: what the CPU is in the middle of */
#define GP_IN_SOFT_INTERRUPT 0x100
#define GP_HARD_INTERRUPT 0x10000
#define GP_HARD_INTERRUPTS 0xf0000
#define GP_UNMASKABLE 0x100000
#define GP_UNMASKABLES 0xf00000

/* PF_EXITING of task_struct.flags */
#define GP_EXITING 4

/* an unknown position on the stack */
#define GP_UNKNOWN_POSITION 0

#if defined(__TARGET_ARCH_x86)
extern const struct pcpu_hot pcpu_hot __ksym __weak;
extern const int __preempt_count __ksym __weak;
#endif

/*
 * The preemption count of this CPU, which contains the interrupts being served; 0 if the kernel does not
 * expose it.
 */
static __always_inline __u32 interrupts(void)
{
#if defined(__TARGET_ARCH_x86)
	if (bpf_ksym_exists(&pcpu_hot))
		return ((const struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	if (bpf_ksym_exists(&__preempt_count))
		return *(const int *)bpf_this_cpu_ptr(&__preempt_count);
	return 0;
#else
	return BPF_CORE_READ(bpf_get_current_task_btf(), thread_info.preempt_count);
#endif
}

/*
 * Whether the CPU serves an interrupt: then the current task is not the one that makes the call. A
 * breakpoint probe itself looks like a non-maskable interrupt.
 */
static __always_inline bool is_interrupt(bool may_be_breakpoint)
{
	__u32 count = interrupts();

	if (may_be_breakpoint && count & GP_UNMASKABLES)
		count -= GP_UNMASKABLE + GP_HARD_INTERRUPT;
	return count & (GP_UNMASKABLES | GP_HARD_INTERRUPTS | GP_IN_SOFT_INTERRUPT);
}

/*
 * Whether a thread without state belongs to a watched process: one that the user named or, if none was
 * named, one that has used a GPU. Everything on the host calls Linux functions, so other processes are
 * ignored. An exiting process is not watched again, because user space may already have dropped its state.
 */
GP_OWN_FRAME bool is_watched(struct task_struct *task, __u32 tgid)
{
	struct gp_process_key key = {.instance = instance_of(task), .tgid = tgid};

	if (BPF_CORE_READ(task, flags) & GP_EXITING)
		return false;
	return gp_config.only_targets ? is_target(tgid) : !!bpf_map_lookup_elem(&processes, &key);
}

/* The state of the calling thread, if it is watched. */
static __always_inline struct gp_thread *calling_thread(bool makes_one)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct gp_thread *thread;

	if (pid_tgid >> 32 == gp_config.own_tgid || is_stopped())
		return NULL;
	thread = bpf_task_storage_get(&threads, task, 0, 0);
	/* its exit has been reported, and its counters may be gone */
	if (thread && thread->has_exited)
		return NULL;
	if (thread || !makes_one)
		return thread;
	return is_watched(task, pid_tgid >> 32) ? new_thread(task, pid_tgid) : NULL;
}

static __always_inline __u32 function_of(void *ctx)
{
	return bpf_get_attach_cookie(ctx) & (GP_FUNCTIONS - 1);
}

/* An error of a Linux function is not the reason why the enclosing CUDA call fails, so both are counted. */
GP_OWN_FRAME int count_error(const struct gp_thread *thread, const struct gp_call *call,
			     const struct gp_function *function)
{
	return add_failure(thread, call, function);
}

/* Counts a call that has ended. */
static __always_inline void count_linux_call(struct gp_thread *thread, const struct gp_call *call,
					     const struct gp_function *function, bool failed)
{
	struct gp_count *count;

	if (!(function->flags & GP_COUNT))
		return;
	count = count_of(thread, call->function);
	if (count)
		count_latency(count, call, failed);
	if (failed)
		count_error(thread, call, function);
}

/*
 * Drops functions whose end was not seen. A function called by one that is still running is lower on the
 * stack.
 */
static __always_inline void drop_returned(struct gp_thread *thread, __u64 at, __u32 function)
{
	for (int i = 0; i < GP_DEPTH; i++) {
		struct gp_call *top;

		if (!thread->depth)
			return;
		top = open_call(thread, thread->depth - 1);
		/* equal positions but another function: that one jumped here at its end */
		if (!is_linux_call(top) || top->stack_pointer > at ||
		    (top->stack_pointer == at && top->function != function))
			return;
		thread->depth--;
		count_loss(GP_LOSS_ABANDONED);
	}
}

/* Copies the text argument of a Linux function whose arguments have been saved. */
static __always_inline void read_linux_text(struct gp_call *call, const struct gp_function *function)
{
	__u64 address = 0;

	if (!(function->flags & GP_TEXT))
		return;
	if (argument(call, function->pointee, &address))
		read_text(call, address, true);
	else
		call->flags |= GP_UNREAD_POINTEE;
}

/*
 * Saves the arguments: from registers, or for a program that was loaded for one function (fentry) from the
 * words behind its context.
 */
static __always_inline void save_arguments(struct gp_call *call, void *ctx, bool is_traced)
{
	if (!is_traced) {
		save_registers(call, ctx);
		return;
	}
	for (__u32 i = 0; i < GP_REGISTERS; i++) {
		__u64 value = 0;

		/* fails if there are fewer arguments */
		bpf_get_func_arg(ctx, i, &value);
		call->registers[i] = value;
	}
}

/* Returns 0 if the return probe is wanted, 1 if it is not. */
static __always_inline int begin_function(struct gp_thread *thread, __u64 at, void *ctx, bool is_traced)
{
	__u32 index = function_of(ctx);
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_call *call;

	if (!function)
		return 1;
	drop_returned(thread, at, index);
	call = push_linux_call(thread, innermost(thread), function, index, at);
	if (!call)
		return 1;
	save_arguments(call, ctx, is_traced);
	read_linux_text(call, function);
	call->start_ns = bpf_ktime_get_ns();
	if (gp_config.phases || gp_config.entry_only)
		send_begin_record(call, function);
	if (gp_config.entry_only) {
		thread->depth--;
		return 1;
	}
	return 0;
}

/*
 * Pops the call of a function that returns now, with the calls inside it whose ends were not seen. If the
 * position on the stack is not known, the last call entered returns first.
 */
static __always_inline struct gp_call *pop_function(struct gp_thread *thread, __u64 at, __u32 index)
{
	for (__u32 i = 0; i < GP_DEPTH; i++) {
		struct gp_call *call;

		if (i >= thread->depth)
			break;
		call = open_call(thread, thread->depth - 1 - i);
		if (!is_linux_call(call))
			break;
		if (call->function != index || (at != GP_UNKNOWN_POSITION && call->stack_pointer != at))
			continue;
		thread->depth -= i + 1;
		if (i)
			count_losses(GP_LOSS_ABANDONED, i);
		return call;
	}
	count_unmatched(index);
	return NULL;
}

/* A Linux function has returned: counts its call and sends its record. */
static __always_inline int end_function(struct gp_thread *thread, __u64 at, __u32 index, __u64 result)
{
	__u64 now = bpf_ktime_get_ns();
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_call *call = pop_function(thread, at, index);
	bool failed = false;

	if (!call || !function)
		return 0;
	call->duration_ns = now - call->start_ns;
	call->result = result;
	if (function->flags & GP_STATUS) {
		/* the upper half of an int result is undefined */
		if (!(function->flags & GP_WIDE))
			call->result = (__s64)(__s32)result;
		failed = call->result >= (__u64)-4095;
	}
	/* functions that it called may have made system calls on the devices */
	propagate_device_time(thread, call);
	count_linux_call(thread, call, function, failed);
	if (function->flags & GP_STREAM && is_wanted(call, failed))
		send_call(call, function);
	return 0;
}

static __always_inline int enter_probed(struct pt_regs *ctx, bool may_be_breakpoint)
{
	struct gp_thread *thread;

	if (is_interrupt(may_be_breakpoint))
		return 1;
	thread = calling_thread(true);
	return thread ? begin_function(thread, PT_REGS_SP(ctx), ctx, false) : 1;
}

static __always_inline int leave_probed(struct pt_regs *ctx, __u64 at)
{
	struct gp_thread *thread;

	if (is_interrupt(false))
		return 0;
	thread = calling_thread(false);
	return thread ? end_function(thread, at, function_of(ctx), PT_REGS_RC(ctx)) : 0;
}

/*
 * The stack position at which the returning function was entered. Where fprobe uses the function graph, it
 * is not known.
 */
static __always_inline __u64 entered_at(struct pt_regs *ctx)
{
	return bpf_core_type_exists(struct fprobe_hlist) ? GP_UNKNOWN_POSITION
							 : PT_REGS_SP(ctx) - GP_POPPED_BY_RETURN;
}

SEC("kprobe.session")
int linux_session(struct pt_regs *ctx)
{
	return is_return_of_session(ctx) ? leave_probed(ctx, entered_at(ctx)) : enter_probed(ctx, false);
}

SEC("kprobe.multi")
int linux_multi_entry(struct pt_regs *ctx)
{
	enter_probed(ctx, false);
	return 0;
}

SEC("kretprobe.multi")
int linux_multi_return(struct pt_regs *ctx)
{
	return leave_probed(ctx, entered_at(ctx));
}

SEC("kprobe")
int linux_perf_entry(struct pt_regs *ctx)
{
	enter_probed(ctx, true);
	return 0;
}

SEC("kretprobe")
int linux_perf_return(struct pt_regs *ctx)
{
	return leave_probed(ctx, PT_REGS_SP(ctx) - GP_POPPED_BY_RETURN);
}

/*
 * The position of a program's context. It is on the stack, in the frame that the Linux kernel puts around
 * the function, so it is the same at both ends of a call. The detour through memory turns the pointer into
 * a number for the verifier.
 */
static __always_inline __u64 stack_position_of(struct gp_thread *thread, void *ctx)
{
	*(volatile __u64 *)&thread->stack_position = (__u64)ctx;
	return *(volatile __u64 *)&thread->stack_position;
}

GP_OWN_FRAME int enter_traced(void *ctx)
{
	struct gp_thread *thread = is_interrupt(false) ? NULL : calling_thread(true);

	if (thread)
		begin_function(thread, stack_position_of(thread, ctx), ctx, true);
	return 0;
}

GP_OWN_FRAME int leave_traced(void *ctx)
{
	struct gp_thread *thread = is_interrupt(false) ? NULL : calling_thread(false);
	__u64 result = 0;

	if (!thread)
		return 0;
	bpf_get_func_ret(ctx, &result);
	return end_function(thread, stack_position_of(thread, ctx), function_of(ctx), result);
}

/*
 * Programs of this kind are loaded for one function each. There are as many pairs as functions can be
 * traced this way.
 */
#define GP_TRACED(n)                                                                                         \
	SEC("fentry")                                                                                        \
	int traced_entry_##n(__u64 *ctx)                                                                     \
	{                                                                                                    \
		return enter_traced(ctx);                                                                    \
	}                                                                                                    \
	SEC("fexit")                                                                                         \
	int traced_return_##n(__u64 *ctx)                                                                    \
	{                                                                                                    \
		return leave_traced(ctx);                                                                    \
	}

/* clang-format off */
GP_TRACED(0) GP_TRACED(1) GP_TRACED(2) GP_TRACED(3) GP_TRACED(4) GP_TRACED(5) GP_TRACED(6) GP_TRACED(7)
GP_TRACED(8) GP_TRACED(9) GP_TRACED(10) GP_TRACED(11) GP_TRACED(12) GP_TRACED(13) GP_TRACED(14) GP_TRACED(15)
GP_TRACED(16) GP_TRACED(17) GP_TRACED(18) GP_TRACED(19) GP_TRACED(20) GP_TRACED(21) GP_TRACED(22) GP_TRACED(23)
GP_TRACED(24) GP_TRACED(25) GP_TRACED(26) GP_TRACED(27) GP_TRACED(28) GP_TRACED(29) GP_TRACED(30) GP_TRACED(31)
/* clang-format on */

#endif
