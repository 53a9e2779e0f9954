/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Failures by function and error. A failure is counted where it came from: if a CUDA runtime call fails
 * because a CUDA driver call inside it failed, that is one failure, not two.
 */
#ifndef GP_FAILURES_BPF_H
#define GP_FAILURES_BPF_H

#include "common.bpf.h"

/* A plain hash, not an LRU: failures are rare, and an evicted row would be missing from a counter. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_failure_key);
	__type(value, __u64);
} failures SEC(".maps");

/*
 * The most rows for kinds of failures per process. A library can return any number, and other processes
 * need room too.
 */
#define GP_MOST_FAILURES 64

/* Creates the row for a kind of failure that has happened for the first time. */
static __always_inline bool add_failure_row(struct gp_memory *process, const struct gp_failure_key *key,
					    __u64 weight)
{
	__u64 *count;

	if (__sync_fetch_and_add(&process->failure_rows, 1) < GP_MOST_FAILURES) {
		if (!bpf_map_update_elem(&failures, key, &weight, BPF_NOEXIST))
			return true;
		/* if two threads do this at once, one wins */
		count = bpf_map_lookup_elem(&failures, key);
		if (count)
			__sync_fetch_and_add(count, weight);
	} else {
		count = NULL;
	}
	__sync_fetch_and_add(&process->failure_rows, -1);
	return count;
}

/* The status of a call that has returned and whose outs have been read; 0 if it has none. */
static __always_inline __u32 status_of_call(const struct gp_call *call, const struct gp_function *function)
{
	__u32 last = (function->outs - 1) & (GP_OUTS - 1);

	if (function->flags & GP_ERROR_IS_OUT)
		return call->flags & GP_UNREAD_OUT << last ? 0 : call->out[last];
	return function->flags & GP_STATUS ? call->result : 0;
}

/*
 * Counts a failure, which stands for `weight` of them. One that finds no row is counted with the other errors
 * of its function if these are counted
 * (`has_errors`), and otherwise with those of its process.
 */
static __always_inline int add_error(const struct gp_thread *thread, __u32 function, __u32 error,
				     __u64 weight, bool has_errors)
{
	struct gp_failure_key key = {
	    .instance = thread->instance, .tgid = thread->tgid, .function = function, .error = error};
	__u64 *count = bpf_map_lookup_elem(&failures, &key);
	struct gp_memory *process;
	__u32 row = thread->memory_row;

	if (count) {
		__sync_fetch_and_add(count, weight);
		return 0;
	}
	process = row ? bpf_map_lookup_elem(&memory_rows, &row) : NULL;
	if (process && add_failure_row(process, &key, weight))
		return 0;
	if (process && !has_errors)
		__sync_fetch_and_add(&process->unnamed_failures, weight);
	count_loss(GP_LOSS_FAILURES_FULL);
	return 0;
}

static __always_inline int add_failure(const struct gp_thread *thread, const struct gp_call *call,
				       const struct gp_function *function)
{
	return add_error(thread, call->function, status_of_call(call, function), call->weight,
			 function->flags & GP_COUNT);
}

/*
 * Counts a failure if this call is its cause, and marks the enclosing call, so that it does not count the
 * same failure again.
 */
GP_OWN_FRAME int count_failure(struct gp_thread *thread, const struct gp_call *call,
			       const struct gp_function *function)
{
	bool is_cause = function->flags & GP_COUNT || (function->flags & GP_FAILURES && !call->inner_failed);

	if (is_cause)
		add_failure(thread, call, function);
	if (thread->depth && (is_cause || call->inner_failed))
		open_call(thread, thread->depth - 1)->inner_failed = 1;
	return 0;
}

/*
 * Counts a return without an observed entry. Functions that are probed only for their failures are not
 * counted, nor are libraries whose calls are not observed yet.
 */
GP_GLOBAL_FUNC int count_unmatched(__u64 cookie)
{
	__u32 index = cookie & (GP_FUNCTIONS - 1);
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);

	if (library_state(cookie) == GP_LIBRARY_ACTIVE && function &&
	    !(function->flags & (GP_FAILURES | GP_SAMPLED)) && is_target(bpf_get_current_pid_tgid() >> 32))
		count_loss(GP_LOSS_UNMATCHED_RETURN);
	return 0;
}

#endif
