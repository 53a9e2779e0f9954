/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Copies of stacks: most programs have no frame pointers, so they are unwound by user space. */
#ifndef GP_STACK_COPY_BPF_H
#define GP_STACK_COPY_BPF_H

#include "common.bpf.h"

struct gp_copied_stack {
	struct gp_stack_record head;
	__u8 bytes[GP_STACK_PAGES][GP_STACK_PAGE];
};

struct gp_short_stack {
	struct gp_stack_record head;
	__u8 bytes[GP_FEW_STACK_PAGES][GP_STACK_PAGE];
};

/* Where return probes send a process of which they have replaced return addresses; 0 where there is none. */
static __always_inline __u64 trampoline_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr);
}

/* The return address that a return probe has replaced at a place of the stack, whoever's probe that is. */
GP_GLOBAL_FUNC __u64 replaced_at(__u64 slot)
{
	struct return_instance *replaced = BPF_CORE_READ(bpf_get_current_task_btf(), utask, return_instances);

	for (__u32 i = 0; i < GP_DEPTH; i++) {
		if (!replaced)
			return 0;
		if (BPF_CORE_READ(replaced, stack) == slot)
			return BPF_CORE_READ(replaced, orig_ret_vaddr);
		replaced = BPF_CORE_READ(replaced, next);
	}
	return 0;
}

/*
 * Whose stack it is, and from where on: from the caller's frame. Return probes, ours and those of others,
 * have replaced return addresses by the kernel's trampoline: the true ones go along.
 */
static __always_inline void describe_stack(struct gp_stack_record *head, const struct gp_call *call,
					   struct pt_regs *ctx)
{
	struct return_instance *replaced = BPF_CORE_READ(bpf_get_current_task_btf(), utask, return_instances);

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
	head->reserved = 0;
	head->patches = 0;
	for (__u32 i = 0; i < GP_DEPTH; i++) {
		head->patch[i].slot = BPF_CORE_READ(replaced, stack);
		head->patch[i].address = BPF_CORE_READ(replaced, orig_ret_vaddr);
		head->patches += !!replaced;
		replaced = BPF_CORE_READ(replaced, next);
	}
}

/* The stack of an allocation, not of a call that is told. */
static __always_inline void set_site(struct gp_stack_record *head, __u32 site)
{
	head->kind = GP_RECORD_SITE;
	head->id = site;
}

static __always_inline void copy_pages(struct gp_stack_record *head, __u8 (*bytes)[GP_STACK_PAGE],
				       const __u32 pages)
{
	head->length = 0;
	for (__u32 i = 0; i < pages; i++) {
		__u64 from = head->stack_pointer + (__u64)i * GP_STACK_PAGE;
		/* what is left of the page that it begins in, for the stack may end there */
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
	/* where it does not reach into the next page, which may not be there */
	__u64 rest = -from & (GP_STACK_PART - 1);

	part->head.length = 0;
	if (!bpf_probe_read_user(part->bytes, GP_STACK_PART, (void *)from))
		part->head.length = GP_STACK_PART;
	else if (rest && !bpf_probe_read_user(part->bytes, rest, (void *)from))
		part->head.length = rest;
}

/* Sends the stack of a call that is told. */
static __always_inline void send_stack(const struct gp_call *call, struct pt_regs *ctx)
{
	__u64 flags = wakes_reader(sizeof(struct gp_copied_stack));
	struct gp_copied_stack *copy = bpf_ringbuf_reserve(&calls, sizeof(*copy), 0);

	if (!copy) {
		count_loss(GP_LOSS_LOST_STACK);
		return;
	}
	describe_stack(&copy->head, call, ctx);
	copy_pages(&copy->head, copy->bytes, GP_STACK_PAGES);
	bpf_ringbuf_submit(copy, flags);
}

#endif
