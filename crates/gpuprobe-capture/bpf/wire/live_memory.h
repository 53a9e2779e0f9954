/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: live memory. */
#ifndef GP_LIVE_MEMORY_H
#define GP_LIVE_MEMORY_H

#include "../gpuprobe.h"

/* The memory totals of a process. Its live memory by kind is the sum over its contexts. */
struct gp_memory {
	/* sums over all successful calls */
	__u64 allocated_bytes;
	__u64 freed_bytes;
	__u64 allocations;
	__u64 failed_allocations;
	__u64 frees;
	__u64 failed_frees;
	/* frees of addresses that were not in the table of allocations */
	__u64 unknown_frees;
	/* allocations at an address that was in the table: a free was not observed */
	__u64 replaced;
	__u64 replaced_bytes;
	/* by the end of a context */
	__u64 freed_with_context_allocations;
	__u64 freed_with_context_bytes;
	/* live bytes of all kinds of memory, and their maximum so far */
	__u64 live_bytes;
	__u64 peak_bytes;
	/* entries in the table of allocations, with those that are kept to be reused */
	__u64 entries;
	/* allocations of tensors for which a GPU had no room, as a framework reported them */
	__u64 out_of_memory;
	/* failures of functions whose calls are not counted that found no row of their own */
	__u64 unnamed_failures;
	/* rows in the tables of failures and of commands */
	__u32 failure_rows;
	__u32 command_rows;
	/* threads that have copied something */
	__u32 copy_threads;
	__u32 reserved;
};

/*
 * Key: a context by number or address, or a GPU by number. In `identities` the function that gave the
 * answer is in the upper half of `id`.
 */
struct gp_context_key {
	__u64 instance;
	__u64 id;
	__u32 tgid;
	__u32 reserved;
};

enum gp_context_flags {
	/* the first reference was seen, so the last one will be recognised */
	GP_COUNTS_REFERENCES = 1,
	/*
	 * a call is about to end it, so no other thread may use it: its addresses may be reused before that
	 * call returns
	 */
	GP_ENDING = 2,
	/* a call ends it, unless another call takes a reference before */
	GP_MAY_END = 4,
	/* its address belongs to another context now */
	GP_SUCCEEDED = 8,
};

/* Live memory in one context, or on a GPU outside of any context. */
struct gp_context {
	/* 0 if the row is free */
	__u64 number;
	__u64 references;
	/* the GPU's number plus one; 0 if not known */
	__u32 device;
	__u32 flags;
	__u64 live_bytes[GP_SPACES];
	__u64 live_allocations[GP_SPACES];
};

/* Physical memory that has a handle, mappings, or both. */
struct gp_physical {
	__u64 bytes;
	__u64 since_ns;
	/* references in the low half, mappings in the high half: the memory ends when both are 0 */
	__u64 uses;
	__u64 handle;
	__u64 instance;
	__u32 tgid;
	__u32 device;
	__u32 site;
	__u32 reserved;
};

/* A mapping of physical memory, by its number. */
struct gp_mapped {
	__u64 physical;
	__u64 bytes;
};

/* Key: an address or handle in a process. */
struct gp_live_key {
	__u64 pointer;
	__u64 instance;
	__u32 tgid;
	__u32 reserved;
};

/*
 * A memory object that has more than one reference, that shares the memory of another object, or that is an
 * image. Other objects have no entry.
 */
struct gp_object {
	/* references besides the first */
	__u64 others;
	/* the object whose memory it shares; it has a reference to it */
	__u64 parent;
	/* bytes of a pixel */
	__u32 pixel;
	/* it has no memory of its own */
	__u32 shares;
};

/* Bits that mark a 64-bit number. */
enum gp_bit {
	/* gp_live.since_ns: freed, and kept for the next allocation at this address */
	GP_SPARE_BIT = 63,
	/*
	 * the number of a context: memory of a GPU that is in no context; the low bits are the GPU's number
	 */
	GP_OF_DEVICE_BIT = 63,
	/* from here on: the tag of a kernel object, see `named_kernels` */
	GP_KERNEL_TAG_BIT = 48,
	/* the number of a context: tensors on a GPU; the low bits are the GPU's number */
	GP_OF_TENSORS_BIT = 62,
};

#define GP_SPARE (1ULL << GP_SPARE_BIT)
#define GP_OF_DEVICE(device) (1ULL << GP_OF_DEVICE_BIT | (device))
#define GP_OF_TENSORS(device) (1ULL << GP_OF_TENSORS_BIT | (device))

/* A live allocation, or a freed one that is kept for the next allocation at its address. */
struct gp_live {
	__u64 bytes;
	__u64 since_ns;
	/* the number of the context that it is counted in */
	__u64 context;
	__u32 space;
	__u32 site;
};

#endif
