/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Functions of which only the entries are counted. Without a return probe a call took 0.56 of the time of a
 * counted call (docs/decisions/0011).
 */
#ifndef GP_ENTRY_COUNT_BPF_H
#define GP_ENTRY_COUNT_BPF_H

#include "../core/open_calls.bpf.h"

static __always_inline int count_entry_of(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 index = cookie & (GP_FUNCTIONS - 1), weight;
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_thread *thread;

	if (!function || library_state(cookie) != GP_LIBRARY_ACTIVE)
		return 0;
	weight = weight_now(function, cookie);
	if (!weight)
		return 0;
	thread = current_thread();
	if (thread)
		count_entry(thread, index, weight);
	return 0;
}

SEC("uprobe.multi")
int entry_count_multi(struct pt_regs *ctx)
{
	return count_entry_of(ctx);
}

SEC("uprobe")
int entry_count_perf(struct pt_regs *ctx)
{
	return count_entry_of(ctx);
}

#endif
