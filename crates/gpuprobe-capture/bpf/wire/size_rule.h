/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: how many bytes a call allocates or moves. */
#ifndef GP_SIZE_RULE_H
#define GP_SIZE_RULE_H

/* How the bytes of a call follow from its arguments; a and b are gp_function.size_a and size_b. */
enum gp_size_rule : __u8 {
	GP_SIZE_UNKNOWN,
	/* a * scale */
	GP_SIZE_ARGUMENT,
	/* a * b * scale */
	GP_SIZE_PRODUCT,
	/* outs[1] * a, and * b if b has a location: the pitch is known when the call returns */
	GP_SIZE_PITCH,
	/*
	 * the CUDA driver's descriptor of a 2D or 3D array, in the pointee; times the number of levels in a
	 */
	GP_SIZE_ARRAY_2D,
	GP_SIZE_ARRAY_3D,
	/* the bits of four channels in the pointee, times a * b elements */
	GP_SIZE_CHANNELS,
	/* the same, for the elements of the extent that begins at a, and the number of levels in b */
	GP_SIZE_CHANNELS_EXTENT,
	/* an extent passed by value, beginning at a */
	GP_SIZE_EXTENT,
	/* the extent in the struct that a points to, or in each of the b structs there */
	GP_SIZE_BOX,
	/* the sum of the b words that a points to */
	GP_SIZE_LIST,
	/*
	 * an image of OpenCL: the format that a points to, and its description in the pointee, or its sides
	 * from b on
	 */
	GP_SIZE_IMAGE,
	GP_SIZE_IMAGE_SIDES,
};

/*
 * Where a struct has its dimensions, which are adjacent words, and the distance to the next struct of a
 * list.
 */
struct gp_extent {
	__u8 offset;
	__u8 word;
	__u8 dimensions;
	__u8 stride;
};

#endif
