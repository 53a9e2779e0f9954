/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Part of the wire: stacks, and the call sites of allocations and other calls.
 *
 * Call sites are recognised in BPF by decision trees that user space builds from stacks it has unwound: a
 * root per return address of the call (gp_site_root), and nodes that each compare one word of the
 * stack (gp_site_node).
 */
#ifndef GP_CALL_SITE_H
#define GP_CALL_SITE_H

enum gp_stack_length {
	/* the stack is copied page by page, up to this many pages */
	GP_STACK_PAGES = 8,
	GP_STACK_PAGE = 4096,
	/* enough for most stacks */
	GP_FEW_STACK_PAGES = 2,
	/* usually enough to recognise a known stack; this much is sent when many stacks arrive at once */
	GP_STACK_PART = 1024,
	/* the most comparisons to find a site */
	GP_SITE_STEPS = 256,
};

/*
 * Words are multiplied by this before they are compared. Otherwise sites with adjacent addresses would make
 * a tree with one long branch. In two halves, because older compilers have no type information for 64-bit
 * enum values.
 */
enum gp_scramble {
	GP_SCRAMBLE_HIGH = 0x9e3779b9,
	GP_SCRAMBLE_LOW = 0x7f4a7c15,
};

#define GP_SCRAMBLE ((__u64)GP_SCRAMBLE_HIGH << 32 | GP_SCRAMBLE_LOW)

/* the site of memory for which there was no row */
#define GP_NO_SITE_ROW 0xffffffffU

/* A return address that a return probe has replaced on the stack. */
struct gp_patch {
	__u64 slot;
	__u64 address;
};

/*
 * The stack at a call, sent before the call itself. The bytes follow, page by page from the stack pointer.
 */
struct gp_stack_record {
	__u16 kind;
	__u16 patches;
	__u32 tgid;
	__u64 instance;
	/* of the call, or of the site */
	__u64 id;
	__u64 instruction_pointer;
	__u64 stack_pointer;
	__u64 frame_pointer;
	__u64 link_register;
	__u32 length;
	/* whether the Python frames were sent */
	__u32 has_python;
	/* a hash of the Python frames; gp_python_absence if there are none */
	__u64 python;
	struct gp_patch patch[GP_DEPTH];
};

/* Key: memory of one site in one context. */
struct gp_site_key {
	__u64 instance;
	/* its number, or GP_OF_DEVICE for memory that is in no context, or GP_OF_TENSORS */
	__u64 context;
	__u32 tgid;
	/* 0 if the stack was not known and could not be sent */
	__u32 site;
};

/* The memory of a call site in a context: live, and ever allocated. */
struct gp_site {
	__u64 live_bytes;
	__u64 live_allocations;
	__u64 allocations;
	__u64 allocated_bytes;
	/* gp_space of the first allocation: one call site calls one function */
	__u32 space;
	__u32 reserved;
};

/*
 * Key: the root of the tree for calls that return to `address`. Address 0 stands for the setting whether
 * stacks of the process are wanted.
 */
struct gp_site_root_key {
	__u64 instance;
	__u64 address;
	/* a hash of the Python frames; gp_python_absence if there are none */
	__u64 python;
	__u32 tgid;
	__u32 reserved;
};

/* Whether user space wants stacks of a process that are not known yet. */
enum gp_stacks_wanted {
	GP_ALL_STACKS,
	GP_NO_STACKS,
};

struct gp_site_root {
	/* the first comparison, or gp_stacks_wanted */
	__u32 node;
	/* the site, if no comparison is needed */
	__u32 site;
};

/* One comparison on the way to a site, written by user space. */
struct gp_site_node {
	/* the return address, multiplied by GP_SCRAMBLE */
	__u64 address;
	/* its distance from the stack pointer of the call */
	__u32 distance;
	/* the next comparison if the word is equal, lower or higher; 0 for none */
	__u32 same;
	__u32 lower;
	__u32 higher;
	/* the site, if the comparisons end here */
	__u32 site;
	__u32 reserved;
};

#endif
