/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Every map, with why it is of that type and size. Sizes marked "set at load" are settings of user space. */
#ifndef GP_MAPS_BPF_H
#define GP_MAPS_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "../gpuprobe.h"
#include "../wire/live_memory.h"
#include "../wire/call_site.h"

/* a section of its own, so that user space fills in this and nothing else */
volatile const struct gp_config gp_config SEC(".rodata.config") = {};

/* Ids of calls and process records; threads take them in blocks so that they do not fight for this line. */
__u64 gp_next_id = 1;

/*
 * When observation ends, on the clock of bpf_ktime_get_ns(); 0 while it goes on. A time in the near future
 * ends it at the same instant on all CPUs. In a section of its own, so that user space can write it alone.
 */
volatile __u64 gp_stop_ns SEC(".data.stop");

/* Numbers of ways that are not known yet: each is a site until user space says which one it is. */
__u32 gp_next_site = 1;

/* Contexts ever seen. */
__u64 gp_next_context = 1;

/* Rows ever used of `memory_rows`, `context_rows` and `count_rows`. */
__u32 gp_memory_rows_used = 0;
__u32 gp_context_rows_used = 0;
__u32 gp_count_rows_used = 0;

/* Questions to user space. */
__u32 gp_next_ticket = 1;

/* One row per function of the catalogue. An array: the cookie is the index, and a lookup is an addition. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GP_FUNCTIONS);
	__type(key, __u32);
	__type(value, struct gp_function);
} functions SEC(".maps");

/*
 * The state of each probed library, by its number: see enum gp_library_state. An array: a lookup is an
 * addition. Row 0 belongs to functions of no library and stays active.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GP_LIBRARIES);
	__type(key, __u32);
	__type(value, __u32);
} library_states SEC(".maps");

/* A kernel and a stream that a thread launched it on, with the numbers of their rows: 0 for none. */
struct gp_launch_cache_entry {
	__u64 handle;
	__u64 stream;
	/* as in the key of its launches */
	__u32 counted_as;
	__u32 launches_row;
	__u32 stream_row;
	__u32 reserved;
};

/* A range of addresses of a process. */
struct gp_mapping {
	__u64 start;
	__u64 end;
};

/* The row that counts a function of the thread's process. */
struct gp_counted {
	__u32 function;
	__u32 row;
};

/* The calls open on each thread. Task storage: it goes with the thread, and costs less than a hash. */
struct gp_thread {
	__u64 instance;
	__u32 tgid;
	__u32 tid;
	__u32 depth;
	__u32 ids_left;
	__u64 next_id;
	/* contexts made current, one over the other */
	__u64 contexts[GP_CONTEXTS];
	__u32 contexts_depth;
	/* of its process; 0 where it has none */
	__u32 memory_row;
	/* the number of the context that it allocated in last, and the address that this had */
	__u64 context;
	__u64 context_address;
	/* rows of functions called last, each at a place that follows from its number */
	struct gp_counted counted[GP_COUNTED];
	/* the row that waits for all streams are noted in */
	__u32 all_streams_row;
	/* of the calls since the last launch or wait, the one that took longest: 1 more than its function */
	__u32 meanwhile;
	__u64 meanwhile_ns;
	__u64 meanwhile_since_ns;
	struct gp_launch_cache_entry launch_cache[GP_LAUNCH_CACHE];
	/* where return probes send this process; 0 where it has not been asked for */
	__u64 trampoline;
	/* the stack that it was started on, once it has been looked for: see return_safety.bpf.h */
	struct gp_mapping own_stack;
	/* its end has been told */
	__u64 has_exited;
	/* where on the kernel's stack it is, of a program that is told by a pointer alone */
	__u64 stack_position;
	struct gp_call open[GP_DEPTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gp_thread);
} threads SEC(".maps");

/* Processes to watch when only_targets is set. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

/* Processes that copy stacks away and back, as greenlet does; user space finds them by what they map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} stack_copiers SEC(".maps");

/* Whether there ever was one of them. An array: where there was none, nothing is looked up in a hash. */
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

/* Of processes that are held, how far user space is with their last question. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} held SEC(".maps");

/* Processes that made a call, with the number of their row. User space removes them some time after they
 * ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192); /* set at load */
	__type(key, struct gp_process_key);
	__type(value, __u32);
} processes SEC(".maps");

/*
 * What they did to memory. An array, because every allocation and every free needs its row: threads know the
 * number, and a lookup is an addition. The first row is nobody's.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8193); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_memory);
} memory_rows SEC(".maps");

/* Rows of it that were given back. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 8192); /* set at load */
	__type(value, __u32);
} unused_memory SEC(".maps");

/* Handles of kernels that have been told of. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_cuda_kernel_key);
	__type(value, __u32);
} kernels SEC(".maps");

/* Which word of a handle is looked at for a name: what user space has found out. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} name_word SEC(".maps");

/* Live allocations. A plain hash: an LRU would forget the oldest, which are the leaks. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_live);
} live SEC(".maps");

/*
 * The contexts of each process, by numbers of our own: an address may be given to another one before the call
 * that ends it has returned. The number ends in that of its row.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u32);
} contexts SEC(".maps");

/* What is held in them. An array as `memory_rows` is. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16385); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_context);
} context_rows SEC(".maps");

/* Rows of it that were given back. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 16384); /* set at load */
	__type(value, __u32);
} unused_contexts SEC(".maps");

/* The number of the context that an address is. It stays when the context has ended, until there is another.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u64);
} addresses SEC(".maps");

/* The address of the primary context of a GPU. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u64);
} primaries SEC(".maps");

/* What the driver told each process of its GPUs: the first bytes of its answer. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, __u8[16]);
} identities SEC(".maps");

/* Physical memory by a number of our own: a handle's may be given again while the memory is still mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct gp_physical);
} physical SEC(".maps");

/* Handles to these numbers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, __u64);
} handles SEC(".maps");

/* Where physical memory is mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_mapped);
} mapped SEC(".maps");

/* What is held from each site. User space sums up those that it found to be the same, and takes out what is
 * over. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_site_key);
	__type(value, struct gp_site);
} sites SEC(".maps");

/* Ways to allocations by the address that the call returns to, which tells most of them apart. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_way_key);
	__type(value, struct gp_way);
} ways SEC(".maps");

/* And how they go on. The first row is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_site_node);
} site_nodes SEC(".maps");

/* Which row counts a function of a process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240); /* set at load */
	__type(key, struct gp_count_key);
	__type(value, __u32);
} counts SEC(".maps");

/* The counts, a copy per CPU so that threads do not share lines. An array as `memory_rows` is. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 10241); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_count);
} count_rows SEC(".maps");

/* Rows of it that were given back, and are empty. */
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

/* Records of calls. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 * 1024 * 1024); /* set at load */
} calls SEC(".maps");

/* Processes and holds: a ring of its own, so that a flood of calls never hides them. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} control SEC(".maps");

#endif
