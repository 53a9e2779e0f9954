/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Copies of stacks: most programs have no frame pointers, so they are unwound by user space. */
#ifndef GP_STACK_BPF_H
#define GP_STACK_BPF_H

#include "common.bpf.h"

struct gp_copied_stack {
	struct gp_stack_record head;
	__u8 bytes[GP_STACK_PAGES][GP_STACK_PAGE];
};

/*
 * Sends the stack from the caller's frame on. The calls around this one have had their return addresses
 * replaced by the kernel's trampoline: the true ones go along.
 */
static __always_inline void send_stack(const struct gp_thread *thread, const struct gp_call *call,
				       struct pt_regs *ctx)
{
	__u64 flags = wakes_reader(sizeof(struct gp_copied_stack));
	struct gp_copied_stack *copy = bpf_ringbuf_reserve(&calls, sizeof(*copy), 0);
	__u64 above = call->stack_pointer + GP_POPPED_BY_RETURN;

	if (!copy) {
		count_loss(GP_LOSS_LOST_STACK);
		return;
	}
	copy->head.kind = GP_RECORD_STACK;
	copy->head.tgid = call->tgid;
	copy->head.id = call->id;
	copy->head.instruction_pointer = call->return_address;
	copy->head.stack_pointer = above;
#if defined(__TARGET_ARCH_x86)
	copy->head.frame_pointer = ctx->bp;
	copy->head.link_register = 0;
#else
	copy->head.frame_pointer = ctx->regs[29];
	copy->head.link_register = call->return_address;
#endif
	copy->head.patches = 0;
	copy->head.reserved = 0;
	for (__u32 i = 0; i < GP_DEPTH; i++) {
		bool is_open = i < thread->depth && &thread->open[i] != call;

		copy->head.patch[i].slot = is_open ? thread->open[i].stack_pointer : 0;
		copy->head.patch[i].address = is_open ? thread->open[i].return_address : 0;
		copy->head.patches += is_open;
	}
	copy->head.length = 0;
	for (__u32 i = 0; i < GP_STACK_PAGES; i++) {
		__u64 from = above + (__u64)i * GP_STACK_PAGE;
		/* what is left of the page that it begins in, for the stack may end there */
		__u64 rest = -from & (GP_STACK_PAGE - 1);

		if (!bpf_probe_read_user(copy->bytes[i], GP_STACK_PAGE, (void *)from)) {
			copy->head.length += GP_STACK_PAGE;
			continue;
		}
		if (rest && !bpf_probe_read_user(copy->bytes[i], rest, (void *)from))
			copy->head.length += rest;
		break;
	}
	bpf_ringbuf_submit(copy, flags);
}

#endif
