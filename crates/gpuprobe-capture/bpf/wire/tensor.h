/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Part of the wire: tensors. The allocator of a framework reserves device memory and gives out parts of it.
 * These parts are counted by themselves and never added to device memory, which contains them.
 */
#ifndef GP_TENSOR_H
#define GP_TENSOR_H

#include "live_memory.h"

/* the type of c10::Device that is a GPU of CUDA; ROCm uses it too */
#define GP_FRAMEWORK_CUDA 1

/* GPUs of a process that have an account of their own. No host has more. */
#define GP_MOST_TENSOR_DEVICES 64

/* A live tensor, by address and process. */
struct gp_tensor {
	__u64 bytes;
	__u64 since_ns;
	__u32 site;
	__u32 device;
};

/* The account of a process's tensors on one GPU. Its key is the GPU's number in gp_context_key. */
struct gp_tensors {
	__u64 live_bytes;
	__u64 live_tensors;
	__u64 allocations;
	__u64 allocated_bytes;
	__u64 frees;
	/* frees of addresses that were not in the table of tensors */
	__u64 unknown_frees;
	/* allocations at an address that was in the table: a free was not observed */
	__u64 replaced;
	/* as the framework reported last: bytes of tensors, and bytes that it has reserved */
	__u64 in_use_bytes;
	__u64 reserved_bytes;
};

/* A GPU had no room for a tensor. */
struct gp_out_of_memory_record {
	/* GP_RECORD_OUT_OF_MEMORY */
	__u16 kind;
	__u16 device;
	__u32 tgid;
	__u64 instance;
	__u64 id;
	__u64 at_ns;
	__u64 requested_bytes;
	__u64 in_use_bytes;
	__u64 reserved_bytes;
	__u32 tid;
	/* the call site of the allocation */
	__u32 site;
};

#endif
