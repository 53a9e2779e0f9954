/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Part of the wire: structs of more than 16 bytes that are passed by value. On x86-64 they are on the stack.
 * On aarch64 the caller makes a copy and passes a pointer to it, so the probe saves the copy behind the
 * argument words of the stack, as if it were there.
 */
#ifndef GP_COPIED_STRUCT_H
#define GP_COPIED_STRUCT_H

#if defined(__TARGET_ARCH_arm64)
/* how many such structs a function may have */
#define GP_COPIED_STRUCTS 2

struct gp_copied_struct {
	/* the register */
	__u8 pointer;
	/* 0 if there is none */
	__u8 words;
};
#endif

#endif
