/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The entry probe of the functions by which frameworks report tensors. Everything is in the arguments, so
 * there is no return probe.
 */
#ifndef GP_TENSOR_REPORTS_BPF_H
#define GP_TENSOR_REPORTS_BPF_H

#include "../core/open_calls.bpf.h"
#include "../memory/tensors.bpf.h"

/* The address that the probed function returns to. A return probe may have replaced it on the stack. */
static __always_inline __u64 caller_of(struct pt_regs *ctx)
{
	__u64 address = 0;

#if defined(__TARGET_ARCH_x86)
	bpf_probe_read_user(&address, sizeof(address), (void *)PT_REGS_SP(ctx));
#else
	address = link_register(ctx);
#endif
	if (address && address == trampoline_of(bpf_get_current_task_btf()))
		address = replaced_at(PT_REGS_SP(ctx) - GP_BELOW_ENTRY);
	return address;
}

/*
 * Takes the first slot above the open calls, where new_site() looks for the call whose stack it sends. The
 * call is not pushed: it is over when this probe ends.
 */
static __always_inline struct gp_call *begin_report(struct gp_thread *thread, struct pt_regs *ctx)
{
	struct gp_call *call;

	if (thread->depth >= GP_DEPTH) {
		count_loss(GP_LOSS_TOO_DEEP);
		return NULL;
	}
	call = open_call(thread, thread->depth);
	call->flags = 0;
	call->instance = thread->instance;
	call->tgid = thread->tgid;
	call->tid = thread->tid;
	call->site = 0;
	call->stack_pointer = PT_REGS_SP(ctx);
	call->return_address = caller_of(ctx);
	call->start_ns = bpf_ktime_get_ns();
	save_registers(call, ctx);
	return call;
}

/* A tensor was allocated or freed. While the library is being detached, only frees count. */
static __always_inline void change_tensors(struct gp_thread *thread, struct gp_call *call,
					   const struct gp_function *function, struct pt_regs *ctx,
					   bool only_frees)
{
	struct tensor_report report;
	struct gp_tensors *account;

	if (!argument(call, function->pointer, &call->pointer) || !read_report(call, function, &report))
		return;
	account = store_report(call, &report);
	if (!account || !report.bytes)
		return;
	call->device = report.device;
	if (report.bytes < 0) {
		free_tensor(call, account);
		return;
	}
	call->bytes = plausible(report.bytes);
	if (only_frees || !call->bytes)
		return;
	if (!call->pointer) {
		count_loss(GP_LOSS_UNREAD_ALLOCATION);
		return;
	}
	call->site = find_site(thread, call, ctx);
	add_tensor(call, account);
}

/* An allocation of a tensor failed. */
static __always_inline void fail_tensor(struct gp_thread *thread, struct gp_call *call,
					const struct gp_function *function, struct pt_regs *ctx)
{
	struct tensor_report report;

	if (!read_report(call, function, &report) || !store_report(call, &report))
		return;
	call->site = find_site(thread, call, ctx);
	out_of_memory(thread, call, &report);
}

static __always_inline int report_tensor(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 index = cookie & (GP_FUNCTIONS - 1), state = library_state(cookie);
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_thread *thread;
	struct gp_call *call;

	if (!function || state == GP_LIBRARY_ATTACHING)
		return 0;
	thread = current_thread();
	call = thread ? begin_report(thread, ctx) : NULL;
	if (!call)
		return 0;
	if (function->memory_op == GP_TENSOR_CHANGE)
		change_tensors(thread, call, function, ctx, state == GP_LIBRARY_DETACHING);
	else if (function->memory_op == GP_TENSOR_OUT_OF_MEMORY)
		fail_tensor(thread, call, function, ctx);
	return 0;
}

SEC("uprobe.multi")
int tensor_multi(struct pt_regs *ctx)
{
	return report_tensor(ctx);
}

SEC("uprobe")
int tensor_perf(struct pt_regs *ctx)
{
	return report_tensor(ctx);
}

#endif
