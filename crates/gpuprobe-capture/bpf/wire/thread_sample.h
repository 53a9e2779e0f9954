/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: a thread as a task iterator sees it, without stopping it. */
#ifndef GP_THREAD_SAMPLE_H
#define GP_THREAD_SAMPLE_H

#include "call_site.h"

enum gp_thread_sample_length {
	/* pages of the stack that are copied: an iterator can write at most 8 pages for a task, and the
	   header is in front of them */
	GP_SAMPLED_PAGES = 7,
	/* registers that a called function preserves, without the frame pointer: rbx, r12 to r15; x19 to x28
	 */
	GP_PRESERVED = 10,
};

/* The header of a sample. A copy of the stack from `stack_pointer` on follows it. */
struct gp_thread_sample {
	__u32 tgid;
	__u32 tid;
	/* when the thread began, which tells it from an earlier one with the same number */
	__u64 begun_ns;
	__u64 at_ns;
	/* The registers when the thread last entered the Linux kernel. A thread that runs has changed them
	   since. */
	__u64 instruction_pointer;
	__u64 stack_pointer;
	__u64 frame_pointer;
	__u64 link_register;
	__u64 preserved[GP_PRESERVED];
	/* the base of its thread-local storage */
	__u64 thread_pointer;
	/* the system call by which it entered; -1 for none */
	__s64 system_call;
	__u64 cpu_ns;
	/* how often it began to wait */
	__u64 waits;
	/* bits of TASK_INTERRUPTIBLE and others; 0 if it runs or could run */
	__u32 state;
	/* bytes of the stack that follow */
	__u32 length;
	/* return addresses that return probes have replaced */
	__u32 patches;
	__u32 reserved;
	struct gp_patch patch[GP_DEPTH];
	__u8 name[16];
};

#endif
