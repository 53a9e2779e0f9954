/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Accounts for what calls did to memory and contexts, including calls whose return is not observed. */
#ifndef GP_CALL_ACCOUNTING_BPF_H
#define GP_CALL_ACCOUNTING_BPF_H

#include "../memory/contexts.bpf.h"
#include "../memory/live_allocations.bpf.h"
#include "../core/open_calls.bpf.h"
#include "../gpu_ops/address_ranges.bpf.h"
#include "../memory/physical_memory.bpf.h"

/*
 * Whether a function can end live memory. Such calls are accounted for even if their return is not probed.
 */
static __always_inline bool can_free(const struct gp_function *function)
{
	return function->action == GP_FREE || function->memory_op == GP_VMM_RELEASE ||
	       function->memory_op == GP_VMM_UNMAP || ends_contexts(function);
}

/*
 * Accounts for what a call did to objects: contexts, and physical memory, which is created and mapped by
 * separate calls.
 */
static __always_inline void account_object(struct gp_thread *thread, struct gp_call *call,
					   const struct gp_function *function, bool failed)
{
	if (function->memory_op == GP_VMM_RELEASE)
		end_release(call, failed);
	else if (function->memory_op == GP_VMM_UNMAP && !failed)
		vmm_unmap(call, function);
	else if (function->memory_op && !failed)
		after_memory_op(thread, call, function);
	else if (ends_contexts(function))
		cancel_end(call);
}

/*
 * Accounts for the innermost call, which is a free whose return will not be observed. Frees hardly ever
 * fail, and freed memory must not be shown as live, so the free is taken to have succeeded.
 */
GP_GLOBAL_FUNC int account_unobserved_free(struct gp_thread *thread, __u32 index)
{
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_call *call;

	if (!thread || !thread->depth || !function)
		return 0;
	call = open_call(thread, thread->depth - 1);
	/* a free nested inside this one finds nothing left to free */
	if (call->effect == GP_EFFECT_FREE)
		end_free(thread, call, false);
	if (function->memory_op)
		account_object(thread, call, function, false);
	return 0;
}

/*
 * Undoes what the entry of a free did, for a free whose return will not be observed. It is not known to
 * have freed anything, unless its address has been allocated again.
 */
GP_GLOBAL_FUNC int undo_entry(struct gp_thread *thread, struct gp_call *call)
{
	struct gp_function *function;
	struct gp_memory *memory;
	__u32 index;

	if (!thread || !call)
		return 0;
	index = call->function;
	function = bpf_map_lookup_elem(&functions, &index);
	if (!function)
		return 0;
	if (function->memory_op == GP_VMM_RELEASE) {
		end_release(call, true);
	} else if (ends_contexts(function)) {
		cancel_end(call);
	} else if (call->effect == GP_EFFECT_FREE) {
		if (gp_config.copies)
			restore_ranges(call);
		memory = memory_of_thread(thread);
		if (memory)
			restore_freed(call, memory);
	}
	return 0;
}

#endif
