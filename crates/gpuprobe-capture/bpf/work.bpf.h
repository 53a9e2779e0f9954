/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Work that calls give to GPUs, and what they do to streams and graphs: at their beginning and at their end.
 */
#ifndef GP_WORK_BPF_H
#define GP_WORK_BPF_H

#include "copies.bpf.h"
#include "launches.bpf.h"

/* bits of gp_call.actions */
#define GP_DOES_LAUNCH 16
#define GP_DOES_COPY 32

static __always_inline bool is_launch(const struct gp_function *function)
{
	return function->task.work == GP_WORK_LAUNCH || function->task.work == GP_WORK_GRAPH_LAUNCH;
}

static __always_inline bool is_copy(const struct gp_function *function)
{
	return function->task.work == GP_WORK_COPY || function->task.work == GP_WORK_MEMSET;
}

static __always_inline bool is_sync(const struct gp_function *function)
{
	return function->task.work == GP_WORK_SYNC_STREAM || function->task.work == GP_WORK_SYNC_ALL;
}

static __always_inline void begin_work(struct gp_thread *thread, struct gp_call *call,
				       const struct gp_function *function)
{
	__u8 work = function->task.work;
	__u8 does = is_launch(function) ? GP_DOES_LAUNCH : is_copy(function) ? GP_DOES_COPY : 0;

	/* what one call does is counted once, by the outermost */
	if (call->actions & does)
		call->flags |= GP_NESTED_WORK;
	call->actions |= does;
	if (work == GP_WORK_GRAPH_DESTROY || work == GP_WORK_EXEC_DESTROY || work == GP_WORK_STREAM_DESTROY)
		begin_destroy(thread, call, function);
}

/* Tells whether the call is counted with what it did. */
static __always_inline bool end_work(struct gp_thread *thread, const struct gp_call *call,
				     const struct gp_function *function, bool failed)
{
	__u8 work = function->task.work;

	if (call->flags & GP_NESTED_WORK)
		return false;
	if (work == GP_WORK_LAUNCH) {
		if (function->task.shape < GP_LAUNCH_LIST)
			return end_launch(thread, call, function, failed);
		end_launches(thread, call, function, failed);
	} else if (work == GP_WORK_GRAPH_LAUNCH) {
		end_graph_launch(thread, call, function, failed);
	} else if (is_copy(function)) {
		end_move(thread, call, function, failed);
	} else if (work == GP_WORK_SYNC_ALL) {
		if (!failed)
			note_sync(thread, call, all_streams(thread, call));
	} else if (work <= GP_WORK_CAPTURE_END) {
		after_stream_call(thread, call, function, failed);
	} else if (failed) {
		cancel_destroy(call, function);
	} else {
		after_graph_call(call, function);
	}
	return false;
}

#endif
