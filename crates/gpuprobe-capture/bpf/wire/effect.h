/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Part of the wire: the effect of a call, as its record has it.
 *
 * gp_call has three unions, and gp_call.effect says what they contain:
 *
 * - detail: one struct per effect, or nothing;
 * - stack: the stack arguments; for GP_EFFECT_CONTEXT_END the memory that ended; for GP_EFFECT_DEVICE the
 *   argument of an ioctl or the path of an open;
 * - pointee: what an argument points to; for GP_EFFECT_BATCH the copies of the batch.
 */
#ifndef GP_EFFECT_H
#define GP_EFFECT_H

/* Which member of gp_detail is set. */
enum gp_effect : __u8 {
	/* no member: the fields that every call has are all there is */
	GP_EFFECT_NONE,
	GP_EFFECT_ALLOC,
	/* an allocation at an address that was in the table: the free of what was there was not observed */
	GP_EFFECT_REPLACE,
	GP_EFFECT_FREE,
	/*
	 * a free that failed or whose return was not observed, but whose address was allocated again; sets
	 * no member
	 */
	GP_EFFECT_REUSED,
	/* the same, but its context ended in the meantime, and the memory with it; sets no member */
	GP_EFFECT_FREED_WITH_CONTEXT,
	GP_EFFECT_PHYSICAL,
	/* a call that ends a context if it succeeds */
	GP_EFFECT_ENDING,
	/* a context has ended: the memory that ended with it is in gp_call.stack */
	GP_EFFECT_CONTEXT_END,
	GP_EFFECT_GRAPH,
	GP_EFFECT_COPY,
	/* sets no member: the copies are in gp_call.pointee */
	GP_EFFECT_BATCH,
	/* a copy that did not call the CUDA driver; sets no member */
	GP_EFFECT_NO_DRIVER_CALL,
	GP_EFFECT_DEVICE,
	/* a free that gave up one of several references; sets no member */
	GP_EFFECT_KEPT,
};

/* An allocation: the live bytes of the process after it, and the bytes of what it replaced. */
struct gp_allocated {
	__u64 live_bytes;
	__u64 replaced_bytes;
};

/*
 * A free whose address was in the table of allocations: when it was allocated, and the number of its
 * context.
 */
struct gp_freed {
	__u64 since_ns;
	__u64 context;
};

/* A release or unmapping of physical memory: its number, and how many allocations the call ended. */
struct gp_released {
	__u64 physical;
	__u64 allocations;
};

/* A call that may end a context: the context's number, or 0. */
struct gp_context_end {
	__u64 context;
	__u64 reserved;
};

/* A call on a graph: see gp_graph_size. Numbers that do not fit are the largest that do. */
struct gp_on_graph {
	__u64 contents;
	__u32 kernels;
	__u16 disabled;
	__u8 conditional;
	__u8 incomplete;
};

/* A copy whose two ends were looked up. */
struct gp_copied {
	/* gp_copy_kind plus one */
	__u8 kind;
	/* gp_host_memory */
	__u8 host;
	__u8 reserved[14];
};

/* A system call on an NVIDIA device. */
struct gp_device_call {
	/* for an ioctl: its request, and how many bytes of its argument were read */
	__u32 request;
	__u32 argument_bytes;
	/* the device number; 0 for a file that was not opened */
	__u32 number;
	/* gp_device_kind */
	__u8 kind;
	__u8 reserved[3];
};

/*
 * What gp_call.effect stands for. Every member fills the union, so that Rust may read any member from any
 * bytes.
 */
union gp_detail {
	struct gp_allocated allocated;
	struct gp_freed freed;
	struct gp_released released;
	struct gp_context_end ending;
	struct gp_on_graph graph;
	struct gp_copied copy;
	struct gp_device_call device;
};

/* Allocations of one kind of memory. */
struct gp_amount {
	__u64 allocations;
	__u64 bytes;
};

/* Copies of one kind in a batch. */
struct gp_part {
	__u32 copies;
	/* as in gp_copied */
	__u8 kind;
	__u8 host;
	/* the size of each copy, as a power of two */
	__u8 size_log2;
	__u8 reserved;
	__u64 bytes;
};

union gp_stack_words {
	/* arguments that are not in registers */
	__u64 words[GP_STACK_WORDS];
	/* GP_EFFECT_CONTEXT_END: the memory that ended with the context, by gp_space */
	struct gp_amount ended[GP_SPACES];
	/* GP_EFFECT_DEVICE of an ioctl: the beginning of its argument */
	__u64 argument[GP_STACK_WORDS];
	/* GP_EFFECT_DEVICE of an open: the path */
	__u8 path[GP_STACK_WORDS * 8];
};

union gp_pointee {
	/* what an argument points to: a struct, or text */
	__u8 bytes[GP_POINTEE];
	/* GP_EFFECT_BATCH: the copies, grouped by kind and size */
	struct gp_part parts[GP_PARTS];
};

#endif
