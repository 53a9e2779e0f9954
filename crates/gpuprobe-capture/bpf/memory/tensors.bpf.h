/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Live tensors: what the allocator of a framework gives out of the device memory that it has reserved. A
 * framework reports an allocation or a free while it holds the lock of its allocator, so reports of one
 * address are in order.
 */
#ifndef GP_TENSORS_BPF_H
#define GP_TENSORS_BPF_H

#include "live_allocations.bpf.h"

/* What a framework reports about one of its GPUs. */
struct tensor_report {
	/* negative for a free */
	__s64 bytes;
	__u64 in_use_bytes;
	__u64 reserved_bytes;
	__u32 device;
	__u32 reserved;
};

/* Reads a report from the arguments of a call; false if it is not about a GPU. */
static __always_inline bool read_report(const struct gp_call *call, const struct gp_function *function,
					struct tensor_report *report)
{
	__u64 bytes = 0, in_use = 0, reserved = 0, device = 0;

	argument(call, function->size_a, &bytes);
	argument(call, function->in_use, &in_use);
	argument(call, function->reserved_bytes, &reserved);
	if (!argument(call, function->device, &device) || (__u8)device != GP_FRAMEWORK_CUDA)
		return false;
	device = device >> 8 & 0xff;
	report->bytes = bytes;
	report->in_use_bytes = plausible(in_use);
	report->reserved_bytes = plausible(reserved);
	report->device = device < GP_MOST_TENSOR_DEVICES ? device : GP_NO_DEVICE;
	report->reserved = 0;
	return true;
}

/* The account of the current process's tensors on a GPU, which the first report creates; NULL if there is no
 * room. */
static __always_inline struct gp_tensors *tensors_on(const struct gp_call *call, __u32 device)
{
	struct gp_context_key key = context_key(process_of(call), device);
	struct gp_tensors *account = bpf_map_lookup_elem(&tensor_accounts, &key), empty = {};

	if (account)
		return account;
	/* if two threads do this at once, one wins */
	bpf_map_update_elem(&tensor_accounts, &key, &empty, BPF_NOEXIST);
	account = bpf_map_lookup_elem(&tensor_accounts, &key);
	if (!account)
		count_loss(GP_LOSS_PROCESSES_FULL);
	return account;
}

/* Stores the framework's own figures of a GPU. */
GP_OWN_FRAME struct gp_tensors *store_report(const struct gp_call *call, const struct tensor_report *report)
{
	struct gp_tensors *account = tensors_on(call, report->device);

	if (account) {
		*(volatile __u64 *)&account->in_use_bytes = report->in_use_bytes;
		*(volatile __u64 *)&account->reserved_bytes = report->reserved_bytes;
	}
	return account;
}

/* Subtracts a tensor that is not live any more. */
static __always_inline void subtract_tensor(const struct gp_call *call, struct gp_tensors *account,
					    const struct gp_tensor *tensor)
{
	__sync_fetch_and_add(&account->live_bytes, -tensor->bytes);
	__sync_fetch_and_add(&account->live_tensors, -1);
	change_site(call->instance, GP_OF_TENSORS(tensor->device), process_and_site(call->tgid, tensor->site),
		    tensor->bytes, GP_SITE_FREED);
}

/* Adds a tensor. Its address is in call->pointer, its bytes in call->bytes and its call site in call->site.
 */
GP_OWN_FRAME int add_tensor(struct gp_call *call, struct gp_tensors *account)
{
	struct gp_live_key key = live_key(call);
	struct gp_tensor tensor = {
	    .bytes = call->bytes, .since_ns = call->start_ns, .site = call->site, .device = call->device};
	struct gp_tensor *before = bpf_map_lookup_elem(&tensors, &key);

	if (before && before->device == tensor.device) {
		subtract_tensor(call, account, before);
		__sync_fetch_and_add(&account->replaced, 1);
	} else if (before) {
		/* an address is on one GPU only: a program made this up */
		count_loss(GP_LOSS_UNREAD_ALLOCATION);
		return 0;
	}
	tensor.site = change_site(call->instance, GP_OF_TENSORS(tensor.device),
				  process_and_site(call->tgid, tensor.site), tensor.bytes, GP_SITE_NEW);
	__sync_fetch_and_add(&account->live_bytes, tensor.bytes);
	__sync_fetch_and_add(&account->live_tensors, 1);
	if (bpf_map_update_elem(&tensors, &key, &tensor, BPF_ANY)) {
		subtract_tensor(call, account, &tensor);
		count_loss(GP_LOSS_LIVE_FULL);
		return 0;
	}
	__sync_fetch_and_add(&account->allocations, 1);
	__sync_fetch_and_add(&account->allocated_bytes, tensor.bytes);
	return 0;
}

GP_OWN_FRAME int free_tensor(struct gp_call *call, struct gp_tensors *account)
{
	struct gp_live_key key = live_key(call);
	struct gp_tensor *entry = bpf_map_lookup_elem(&tensors, &key), tensor;

	if (!entry || entry->device != call->device) {
		__sync_fetch_and_add(&account->unknown_frees, 1);
		return 0;
	}
	tensor = *entry;
	/* if two threads free the same address at once, one of them finds it already freed */
	if (bpf_map_delete_elem(&tensors, &key)) {
		__sync_fetch_and_add(&account->unknown_frees, 1);
		return 0;
	}
	subtract_tensor(call, account, &tensor);
	__sync_fetch_and_add(&account->frees, 1);
	return 0;
}

/* A GPU had no room for a tensor: counts it, and sends what the framework reported. */
GP_OWN_FRAME int out_of_memory(struct gp_thread *thread, const struct gp_call *call,
			       const struct tensor_report *report)
{
	struct gp_memory *memory = memory_of_thread(thread);
	struct gp_out_of_memory_record *record;

	if (memory)
		__sync_fetch_and_add(&memory->out_of_memory, 1);
	record = bpf_ringbuf_reserve(&calls, sizeof(*record), 0);
	if (!record) {
		count_loss(GP_LOSS_RING_FULL);
		return 0;
	}
	record->kind = GP_RECORD_OUT_OF_MEMORY;
	record->device = report->device;
	record->tgid = call->tgid;
	record->instance = call->instance;
	record->id = new_id(thread);
	record->at_ns = call->start_ns;
	record->requested_bytes = report->bytes;
	record->in_use_bytes = report->in_use_bytes;
	record->reserved_bytes = report->reserved_bytes;
	record->tid = call->tid;
	record->site = call->site;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

#endif
