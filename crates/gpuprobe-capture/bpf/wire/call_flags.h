/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* What is noted of a call in bits. */
#ifndef GP_CALL_FLAGS_H
#define GP_CALL_FLAGS_H

/* Bits of gp_call.flags. */
enum gp_call_flags : __u16 {
	/* bits 0 to 3: out[i] could not be read */
	GP_UNREAD_OUT = 1,
	GP_UNREAD_STACK = 16,
	GP_UNREAD_POINTEE = 32,
	/* an enclosing call with the same action accounts for the bytes */
	GP_NESTED_ACTION = 64,
	/* the thread ended inside the call */
	GP_UNFINISHED = 128,
	/* this record reports the entry; another one reports the return, or none does */
	GP_BEGUN = 256,
	/* the text is longer than what was read */
	GP_CUT_TEXT = 512,
	/* an enclosing call is counted as the same GPU operation */
	GP_NESTED_OP = 1024,
	/* the operation became part of a graph and was not run */
	GP_CAPTURED = 2048,
	/* the bytes come from calls inside this one, because its own arguments do not contain them */
	GP_BYTES_OF_INNER = 4096,
	/*
	 * its return is not probed, although returns in general are. With GP_BEGUN nothing is known about it;
	 * otherwise it is a launch that is taken to have succeeded, and duration_ns is that of an earlier one
	 */
	GP_UNOBSERVED = 8192,
	/* a copy or memset that called the CUDA driver */
	GP_CALLED_CUDA_DRIVER = 16384,
	/* its call site is looked up when it returns, also if it allocates nothing */
	GP_WANTS_SITE = 32768,
};

/* Bits of gp_call.actions beside one for each gp_action: this call or an enclosing one is such a call. */
enum gp_open : __u8 {
	GP_OPEN_LAUNCH = 16,
	GP_OPEN_COPY = 32,
	/* a call that gets a site */
	GP_OPEN_SITE = 64,
};

enum gp_unprobed {
	/* a launch whose return is not probed has returned before this age, or its thread waits in it */
	GP_UNPROBED_WAIT_NS = 1000000000,
};

#endif
