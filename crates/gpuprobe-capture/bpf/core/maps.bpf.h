/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The maps that all parts use, with the reason for each type and size. Sizes marked "set at load" are set
 * by user space before loading.
 */
#ifndef GP_MAPS_BPF_H
#define GP_MAPS_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "../gpuprobe.h"
#include "../wire/live_memory.h"
#include "../wire/call_site.h"
#include "../wire/tensor.h"
#include "thread_state.bpf.h"

/* in a section of its own, so that user space fills in this and nothing else */
volatile const struct gp_config gp_config SEC(".rodata.config") = {};

/*
 * The next id of a call or process record. Threads take ids in blocks, so that they do not contend for this
 * cache line.
 */
__u64 gp_next_id = 1;

/*
 * When observation ends, on the clock of bpf_ktime_get_ns(); 0 while it goes on. User space writes a time
 * in the near future, so that observation ends at the same instant on all CPUs. In a section of its own, so
 * that user space can write it alone.
 */
volatile __u64 gp_stop_ns SEC(".data.stop");

/* In a section of its own, so that user space can write it alone. */
volatile struct gp_turn gp_turn SEC(".data.turn");

/*
 * The next number for a stack that is not known yet. Each such stack is a site of its own until user space
 * finds out which site it is.
 */
__u32 gp_next_site = 1;

/* Counts contexts; part of the number of each context: see new_context_number(). */
__u64 gp_next_context = 1;

/* How many rows of `memory_rows`, `context_rows` and `count_rows` were ever used. */
__u32 gp_memory_rows_used = 0;
__u32 gp_context_rows_used = 0;
__u32 gp_count_rows_used = 0;

/* The number of the next question to user space. */
__u32 gp_next_ticket = 1;

/*
 * One row per function of the catalogue. An array: the cookie is the index, and a lookup is one addition.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GP_FUNCTIONS);
	__type(key, __u32);
	__type(value, struct gp_function);
} functions SEC(".maps");

/*
 * The probed libraries, by library number. An array: a lookup is one addition. Row 0 is for functions of no
 * library and stays active.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GP_LIBRARIES);
	__type(key, __u32);
	__type(value, struct gp_library);
} libraries SEC(".maps");

/* The state of each thread. Task storage: it is freed with the thread, and costs less than a hash. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gp_thread);
} threads SEC(".maps");

/* The processes to watch if only_targets is set. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

/*
 * Processes that copy stacks away and back, as greenlet does. User space recognises them by the libraries
 * that they map.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} stack_copiers SEC(".maps");

/* The Python interpreters of processes, by tgid. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct gp_python);
} pythons SEC(".maps");

/*
 * Python frames of stacks. Not in the ring of calls: the names must be read before the process exits, and the
 * reader of calls may be busy for seconds with the symbols of libraries.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* set at load */
} python_stacks SEC(".maps");

/* Whether there ever was such a process. An array: if there was none, no hash lookup is needed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} any_stack_copier SEC(".maps");

/* Dynamic loaders that have a probe. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_file);
	__type(value, __u32);
} loaders SEC(".maps");

/* For paused processes: how far user space is with their last question; see GP_PAUSE_STATE(). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} paused SEC(".maps");

/*
 * Processes that made a call, with their row numbers. User space removes them some time after they have
 * exited.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192); /* set at load */
	__type(key, struct gp_process_key);
	__type(value, __u32);
} processes SEC(".maps");

/*
 * Memory totals of these processes. An array, because every allocation and every free needs its row:
 * threads cache the row number, and a lookup is one addition. Row 0 is not used.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8193); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_memory);
} memory_rows SEC(".maps");

/* Rows of `memory_rows` that were returned and can be used again. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 8192); /* set at load */
	__type(value, __u32);
} unused_memory SEC(".maps");

/* Handles of CUDA kernels that have been reported. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_cuda_kernel_key);
	__type(value, __u32);
} cuda_kernels SEC(".maps");

/* The word of a CUDA kernel's handle that points to its name, as user space has found out. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} name_word SEC(".maps");

/* Live allocations. A plain hash: an LRU would evict the oldest entries, which are the leaks. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_live);
} live SEC(".maps");

/*
 * The contexts of each process, by numbers that gpuprobe assigns. An address does not identify a context,
 * because it may be reused before the call that destroyed its context has returned. The low bits of the
 * number are the row number.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u32);
} contexts SEC(".maps");

/* Live memory of each context. An array, for the same reason as `memory_rows`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16385); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_context);
} context_rows SEC(".maps");

/* Rows of `context_rows` that were returned and can be used again. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 16384); /* set at load */
	__type(value, __u32);
} unused_contexts SEC(".maps");

/*
 * The number of the context at an address. The entry stays after the context has ended, until another
 * context has this address.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u64);
} addresses SEC(".maps");

/* The address of each GPU's primary context. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u64);
} primaries SEC(".maps");

/* How the CUDA driver identified its GPUs to each process: the first bytes of its answer. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u8[16]);
} identities SEC(".maps");

/*
 * Physical memory, by numbers that gpuprobe assigns. A handle does not identify it, because a handle may be
 * reused while the memory is still mapped.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct gp_physical);
} physical SEC(".maps");

/* The number of the physical memory that a handle refers to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, __u64);
} handles SEC(".maps");

/* The addresses where physical memory is mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_mapped);
} mapped SEC(".maps");

/* Live tensors. A plain hash, for the same reason as `live`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_tensor);
} tensors SEC(".maps");

/* The tensors of each process on each of its GPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, struct gp_tensors);
} tensor_accounts SEC(".maps");

/*
 * Live memory of each call site. User space adds up the sites that it finds to be the same, and removes
 * rows that are no longer needed.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_site_key);
	__type(value, struct gp_site);
} sites SEC(".maps");

/*
 * The roots of the decision trees that find a call site, by the return address of the call.
 * Most call sites differ in that address already.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_site_root_key);
	__type(value, struct gp_site_root);
} site_roots SEC(".maps");

/* The inner nodes of these trees. Row 0 means none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_site_node);
} site_nodes SEC(".maps");

/* The row number of each function's counters in each process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240); /* set at load */
	__type(key, struct gp_count_key);
	__type(value, __u32);
} counts SEC(".maps");

/*
 * The counters, one copy per CPU so that threads do not share cache lines. An array, for the same reason as
 * `memory_rows`.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 10241); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_count);
} count_rows SEC(".maps");

/* Rows of `count_rows` that were returned and can be used again. They are zero. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 10240); /* set at load */
	__type(value, __u32);
} unused_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GP_LOSS_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

/* Records of calls, names and stacks. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 * 1024 * 1024); /* set at load */
} calls SEC(".maps");

/*
 * Records of processes, pauses and XIDs. A ring of its own, so that a burst of calls never displaces them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} control SEC(".maps");

#endif
