/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Every map, with why it is of that type and size. Sizes marked "set at load" are settings of user space. */
#ifndef GP_MAPS_BPF_H
#define GP_MAPS_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "gpuprobe.h"

/* a section of its own, so that user space fills in this and nothing else */
volatile const struct gp_config gp_config SEC(".rodata.config") = {};

/* Ids of calls and process records; threads take them in blocks so that they do not fight for this line. */
__u64 gp_next_id = 1;

/* Questions to user space. */
__u32 gp_next_ticket = 1;

/* Rows of the two tables below that were handed out; the first of each stays empty. */
__u32 gp_next_launches_row = 1;
__u32 gp_next_stream_row = 1;

/* One row per function of the catalogue. An array: the cookie is the index, and a lookup is an addition. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GP_FUNCTIONS);
	__type(key, __u32);
	__type(value, struct gp_function);
} functions SEC(".maps");

/* A kernel and a stream that a thread launched it on, with the numbers of their rows: 0 for none. */
struct gp_met {
	__u64 handle;
	__u64 stream;
	__u32 launches_row;
	__u32 stream_row;
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
	/* the row that waits for all streams are noted in */
	__u32 all_streams_row;
	/* of the calls since the last launch or wait, the one that took longest: 1 more than its function */
	__u32 meanwhile;
	__u32 reserved;
	__u64 meanwhile_ns;
	__u64 meanwhile_since_ns;
	struct gp_met met[GP_MET];
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

/* Processes that made a call, with what they hold. User space removes them some time after they ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192); /* set at load */
	__type(key, struct gp_process_key);
	__type(value, struct gp_memory);
} processes SEC(".maps");

/* Handles of kernels that have been told of. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_kernel_key);
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
 * What is held in each context, by a number of our own: its address may be given to another one before the
 * call that ends it has returned.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, struct gp_context);
} contexts SEC(".maps");

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

/* Counts per process and function, a copy per CPU so that threads do not share lines. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 10240); /* set at load */
	__type(key, struct gp_count_key);
	__type(value, struct gp_count);
} counts SEC(".maps");

/*
 * Launches by number: a thread remembers those that it used last, and reads an array for the price of an
 * addition. Numbers that user space has taken the rows out of are given again.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_launches);
} launches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_launch_key);
	__type(value, __u32);
} launch_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1); /* set at load */
	__type(value, __u32);
} free_launches SEC(".maps");

/* The same for streams. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_stream);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, __u32);
} stream_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1); /* set at load */
	__type(value, __u32);
} free_streams SEC(".maps");

/* Captures by number: that of one that has ended stays with the streams that took part in it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, struct gp_capture);
} captures SEC(".maps");

/* Captures by the events that were recorded in them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, __u64);
} recorded SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_graph);
} graphs SEC(".maps");

/* Executable graphs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_graph);
} execs SEC(".maps");

/* Nodes that hold kernels, where their handles were seen. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_process_key);
	__type(value, struct gp_graph_counts);
} graph_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_copy_key);
	__type(value, struct gp_copies);
} copies SEC(".maps");

/*
 * What is allocated or mapped, by parts whose size is a power of two, which is what a trie of prefixes takes:
 * one look finds the part that an address is in. What has ended with a context may still be there.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_range_key);
	__type(value, struct gp_range);
} ranges SEC(".maps");

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

/* For the type information of structs that no map names. */
struct gp_process_record gp_unused_process_record = {};
struct gp_name_record gp_unused_name_record = {};
struct gp_stack_record gp_unused_stack_record = {};

#endif
