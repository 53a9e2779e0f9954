/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of launches.bpf.h: launches whose grid is counted in threads or work-items. */
#ifndef GP_LAUNCH_SIZES_BPF_H
#define GP_LAUNCH_SIZES_BPF_H

/* Blocks of one dimension, and their size. Without a local size, each work-item counts as a block. */
static __always_inline __u64 blocks(__u64 global, __u64 *local)
{
	if (!global)
		global = 1;
	if (!*local)
		*local = 1;
	return (global + *local - 1) / *local;
}

/* A row has 16 bits for y and z. */
static __always_inline __u64 dimensions_within(__u64 x, __u64 y, __u64 z)
{
	return dimensions(x < 0xffffffff ? x : 0xffffffff, y < 0xffff ? y : 0xffff, z < 0xffff ? z : 0xffff);
}

/* The kernel and the sizes of a launch in OpenCL. */
GP_GLOBAL_FUNC int read_launch_by_sizes(const struct gp_call *call, const struct gp_function *function,
					struct launch *launch)
{
	const __u64 *sizes;
	__u64 x, y, z, local[3];

	if (!call || !function || !launch)
		return 0;
	launch->handle |= kernel_tag(call, launch->handle);
	if (call->flags & GP_UNREAD_POINTEE)
		return 0;
	sizes = (const __u64 *)call->pointee.bytes;
	local[0] = sizes[3];
	local[1] = sizes[4];
	local[2] = sizes[5];
	x = blocks(sizes[0], &local[0]);
	y = blocks(sizes[1], &local[1]);
	z = blocks(sizes[2], &local[2]);
	launch->grid = dimensions_within(x, y, z);
	launch->block = dimensions_within(local[0], local[1], local[2]);
	return 0;
}

/* The sizes of a launch of HIP whose grid is counted in threads. */
GP_GLOBAL_FUNC int read_launch_by_threads(const struct gp_call *call, const struct gp_op_desc *op,
					  struct launch *launch)
{
	__u64 grid[3] = {}, block[3] = {};

	if (!call || !op || !launch)
		return 0;
	for (int i = 0; i < 3; i++) {
		argument(call, op->grid[i], &grid[i]);
		argument(call, op->block[i], &block[i]);
		block[i] = (__u32)block[i];
		grid[i] = blocks((__u32)grid[i], &block[i]);
	}
	launch->grid = dimensions_within(grid[0], grid[1], grid[2]);
	launch->block = dimensions_within(block[0], block[1], block[2]);
	return 0;
}

#endif
