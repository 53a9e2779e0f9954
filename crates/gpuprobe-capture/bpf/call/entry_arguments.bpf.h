/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Arguments that are read when a call begins, because they may have changed when it returns. */
#ifndef GP_ENTRY_ARGUMENTS_BPF_H
#define GP_ENTRY_ARGUMENTS_BPF_H

#include "../core/open_calls.bpf.h"

/* Reads the global and the local sizes of a launch. Those that it does not have are 0. */
GP_GLOBAL_FUNC int read_sizes(struct gp_call *call, const struct gp_function *function, __u64 global)
{
	__u64 *sizes, dimensions = 0, local = 0;
	long failed = 0;

	if (!call || !function)
		return 0;
	sizes = (__u64 *)call->pointee.bytes;
	argument(call, function->size_a, &dimensions);
	argument(call, function->size_b, &local);
	for (__u32 i = 0; i < 3; i++) {
		bool is_used = i < (__u32)dimensions;

		sizes[i] = sizes[3 + i] = 0;
		if (is_used)
			failed |= bpf_probe_read_user(&sizes[i], 8, (void *)(global + 8 * i));
		if (is_used && local)
			failed |= bpf_probe_read_user(&sizes[3 + i], 8, (void *)(local + 8 * i));
	}
	if (failed)
		call->flags |= GP_UNREAD_POINTEE;
	return 0;
}

#if defined(__TARGET_ARCH_arm64)
/* Saves the structs that are passed as pointers to copies. */
GP_GLOBAL_FUNC int read_copied(struct gp_call *call, const struct gp_function *function)
{
	__u32 at, words;

	if (!call || !function)
		return 0;
	at = function->stack_words;
	for (__u32 i = 0; i < GP_COPIED_STRUCTS; i++) {
		__u32 index = function->copied[i].pointer;

		words = function->copied[i].words;
		if (!words)
			return 0;
		if (words > GP_STACK_WORDS || at >= GP_STACK_WORDS || index >= GP_REGISTERS ||
		    bpf_probe_read_user(&call->stack.words[at], words * 8, (void *)call->registers[index])) {
			call->flags |= GP_UNREAD_STACK;
			return 0;
		}
		at += words;
	}
	return 0;
}
#endif

/* Reads the stack arguments and the pointee that the function's row asks for. */
static __always_inline void read_at_entry(struct gp_call *call, const struct gp_function *function)
{
	__u64 address = 0;
	__u32 bytes = function->stack_words * 8;

	if (bytes && !read_stack(call, bytes))
		call->flags |= GP_UNREAD_STACK;
#if defined(__TARGET_ARCH_arm64)
	if (function->copied[0].words)
		read_copied(call, function);
#endif
	bytes = function->pointee_bytes;
	if (bytes) {
		if (bytes > sizeof(call->pointee.bytes))
			bytes = sizeof(call->pointee.bytes);
		if (!argument(call, function->pointee, &address))
			call->flags |= GP_UNREAD_POINTEE;
		else if (function->flags & GP_SIZES)
			read_sizes(call, function, address);
		else if (function->flags & GP_TEXT)
			read_text(call, address, false);
		else if (bpf_probe_read_user(call->pointee.bytes, bytes, (void *)address))
			call->flags |= GP_UNREAD_POINTEE;
	}
}

#endif
