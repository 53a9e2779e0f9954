/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Copies of stacks. Most programs have no frame pointers, so user space unwinds the stacks. */
#ifndef GP_STACK_COPY_BPF_H
#define GP_STACK_COPY_BPF_H

#include "python_frames.bpf.h"

/* Stack records of three sizes. Ring records are reserved with a constant size. */
struct gp_copied_stack {
	struct gp_stack_record head;
	__u8 bytes[GP_STACK_PAGES][GP_STACK_PAGE];
};

struct gp_short_stack {
	struct gp_stack_record head;
	__u8 bytes[GP_FEW_STACK_PAGES][GP_STACK_PAGE];
};

/*
 * The address of the return trampoline in the current process; 0 if no return probe has been prepared yet.
 */
static __always_inline __u64 trampoline_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr);
}

#if defined(__TARGET_ARCH_arm64)
/* aarch64 code may sign return addresses in the bits above those of user space */
#define GP_ADDRESS_BITS ((1ULL << 48) - 1)
/* from the stack pointer at the entry of a function to the first word of the frame that it may make */
#define GP_BELOW_ENTRY 8
#else
#define GP_ADDRESS_BITS (~0ULL)
#define GP_BELOW_ENTRY 0
#endif

/* Whether the function that was entered with a stack pointer has its return address in a slot. */
static __always_inline bool is_slot_of(__u64 entered_at, __u64 slot)
{
#if defined(__TARGET_ARCH_x86)
	return entered_at == slot;
#else
	/* somewhere in its frame; this is asked from the innermost function outwards */
	return entered_at > slot;
#endif
}

#if defined(__TARGET_ARCH_arm64)
/*
 * The return address, on entry. The verifier accepts reads of registers only at constant offsets from the
 * context, and clang would add the offset to the pointer first.
 */
static __always_inline __u64 link_register(const struct pt_regs *ctx)
{
	__u64 address;

	asm volatile("%0 = *(u64 *)(%1 + %2)"
		     : "=r"(address)
		     : "r"(ctx), "i"(offsetof(struct pt_regs, regs[30])));
	return address;
}
#endif

/*
 * The real return address that a return probe, of gpuprobe or of another tracer, has replaced in a stack
 * slot; 0 if none.
 */
GP_GLOBAL_FUNC __u64 replaced_at(__u64 slot)
{
	struct return_instance *replaced = BPF_CORE_READ(bpf_get_current_task_btf(), utask, return_instances);

	for (__u32 i = 0; i < GP_DEPTH; i++) {
		if (!replaced)
			return 0;
		if (is_slot_of(BPF_CORE_READ(replaced, stack), slot))
			return BPF_CORE_READ(replaced, orig_ret_vaddr);
		replaced = BPF_CORE_READ(replaced, next);
	}
	return 0;
}

/*
 * Lists the return addresses of a thread that return probes, of gpuprobe and of other tracers, have replaced,
 * with their slots. Returns how many there are.
 */
static __always_inline __u32 list_replaced(struct task_struct *task, struct gp_patch *patch)
{
	struct return_instance *replaced = BPF_CORE_READ(task, utask, return_instances);
	__u32 count = 0;

	for (__u32 i = 0; i < GP_DEPTH; i++) {
		patch[i].slot = BPF_CORE_READ(replaced, stack);
		patch[i].address = BPF_CORE_READ(replaced, orig_ret_vaddr);
		count += !!replaced;
		replaced = BPF_CORE_READ(replaced, next);
	}
	return count;
}

/*
 * Fills the header: whose stack it is, and the registers of the caller's frame, where it starts. Return
 * probes, of gpuprobe and of other tracers, have replaced return addresses by the trampoline, so the real
 * ones are in `patch`.
 */
static __always_inline void describe_stack(struct gp_stack_record *head, const struct gp_call *call,
					   struct pt_regs *ctx)
{
	head->kind = GP_RECORD_STACK;
	head->tgid = call->tgid;
	head->instance = call->instance;
	head->id = call->id;
	head->instruction_pointer = call->return_address;
	head->stack_pointer = call->stack_pointer + GP_POPPED_BY_RETURN;
#if defined(__TARGET_ARCH_x86)
	head->frame_pointer = ctx->bp;
	head->link_register = 0;
#else
	head->frame_pointer = ctx->regs[29];
	head->link_register = call->return_address;
#endif
	head->has_python = 0;
	head->python = 0;
	head->patches = list_replaced(bpf_get_current_task_btf(), head->patch);
}

/* Marks the stack as that of a call site, not of a call that is sent. */
static __always_inline void set_site(struct gp_stack_record *head, __u32 site, __u64 python, __u32 has_python)
{
	head->kind = GP_RECORD_SITE;
	head->id = site;
	head->python = python;
	head->has_python = has_python;
}

/* Copies the stack page by page, up to the first page that cannot be read. */
static __always_inline void copy_pages(struct gp_stack_record *head, __u8 (*bytes)[GP_STACK_PAGE],
				       const __u32 pages)
{
	head->length = 0;
	for (__u32 i = 0; i < pages; i++) {
		__u64 from = head->stack_pointer + (__u64)i * GP_STACK_PAGE;
		/* the rest of the first page, because the stack may end there */
		__u64 rest = -from & (GP_STACK_PAGE - 1);

		if (!bpf_probe_read_user(bytes[i], GP_STACK_PAGE, (void *)from)) {
			head->length += GP_STACK_PAGE;
			continue;
		}
		if (rest && !bpf_probe_read_user(bytes[i], rest, (void *)from))
			head->length += rest;
		break;
	}
}

struct gp_part_of_stack {
	struct gp_stack_record head;
	__u8 bytes[GP_STACK_PART];
};

static __always_inline void copy_part(struct gp_part_of_stack *part)
{
	__u64 from = part->head.stack_pointer;
	/* up to the next boundary, because the next page may not be mapped */
	__u64 rest = -from & (GP_STACK_PART - 1);

	part->head.length = 0;
	if (!bpf_probe_read_user(part->bytes, GP_STACK_PART, (void *)from))
		part->head.length = GP_STACK_PART;
	else if (rest && !bpf_probe_read_user(part->bytes, rest, (void *)from))
		part->head.length = rest;
}

/* Sends the stack of a call that is sent. */
static __always_inline void send_stack(const struct gp_call *call, struct pt_regs *ctx)
{
	__u64 flags = wakes_reader(sizeof(struct gp_copied_stack));
	__u64 python = walk_python(call->tgid, call->stack_pointer);
	__u32 has_python = send_python(call->id, GP_RECORD_STACK);
	struct gp_copied_stack *copy;

	copy = bpf_ringbuf_reserve(&calls, sizeof(*copy), 0);
	if (!copy) {
		count_loss(GP_LOSS_LOST_STACK);
		return;
	}
	describe_stack(&copy->head, call, ctx);
	copy->head.has_python = has_python;
	copy->head.python = python;
	copy_pages(&copy->head, copy->bytes, GP_STACK_PAGES);
	bpf_ringbuf_submit(copy, flags);
}

#endif
