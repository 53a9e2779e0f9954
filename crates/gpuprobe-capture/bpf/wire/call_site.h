/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The part of the wire that is about stacks, and about where allocations come from. */
#ifndef GP_CALL_SITE_H
#define GP_CALL_SITE_H

enum gp_stack_length {
	/* the stack is copied page by page, for as many as there are */
	GP_STACK_PAGES = 8,
	GP_STACK_PAGE = 4096,
	/* enough for most stacks */
	GP_FEW_STACK_PAGES = 2,
	/* enough to tell which of the known ways it is, mostly: what is sent when many come at once */
	GP_STACK_PART = 1024,
	/* comparisons on the way to a site */
	GP_SITE_STEPS = 256,
};

/* Words are compared after this, so that ways that lie side by side do not make a tree that is one long
 * branch. In halves: older compilers have no type information for numbers of 64 bits. */
enum gp_scramble {
	GP_SCRAMBLE_HIGH = 0x9e3779b9,
	GP_SCRAMBLE_LOW = 0x7f4a7c15,
};

#define GP_SCRAMBLE ((__u64)GP_SCRAMBLE_HIGH << 32 | GP_SCRAMBLE_LOW)

/* the site of what is in no row of a site */
#define GP_NO_SITE_ROW 0xffffffffU

/* A return address that a return probe has replaced on the stack. */
struct gp_patch {
	__u64 slot;
	__u64 address;
};

/* The stack at a call, sent before the call itself; the bytes follow, page by page from the stack pointer. */
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
	__u32 reserved;
	struct gp_patch patch[GP_DEPTH];
};

/* What is held from one site in one context. */
struct gp_site_key {
	__u64 instance;
	/* its number, or GP_OF_DEVICE for memory that is in none */
	__u64 context;
	__u32 tgid;
	/* 0 where the way was not known and could not be told */
	__u32 site;
};

struct gp_site {
	__u64 live_bytes;
	__u64 live_allocations;
	__u64 allocations;
	__u64 allocated_bytes;
};

/* Where ways that return to one address go on; at address 0 how the stacks of the process are wanted. */
struct gp_way_key {
	__u64 instance;
	__u64 address;
	__u32 tgid;
	__u32 reserved;
};

enum gp_stacks_wanted {
	GP_ALL_STACKS,
	GP_NO_STACKS,
};

struct gp_way {
	/* the next comparison, or gp_stacks_wanted */
	__u32 node;
	/* where it ends here */
	__u32 site;
};

/* One comparison on the way to a site, written by user space. */
struct gp_site_node {
	/* the return address, scrambled */
	__u64 address;
	/* where it lies above the stack pointer of the call */
	__u32 distance;
	/* the next comparison if it is this, lower or higher; 0 for none */
	__u32 same;
	__u32 lower;
	__u32 higher;
	/* where the way ends here */
	__u32 site;
	__u32 reserved;
};

#endif
