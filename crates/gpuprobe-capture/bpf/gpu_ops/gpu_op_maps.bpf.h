/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The maps of GPU operations. Maps of operations that are not counted have one entry. */
#ifndef GP_GPU_OP_MAPS_BPF_H
#define GP_GPU_OP_MAPS_BPF_H

#include "../core/maps.bpf.h"

/* How many rows of `launch_rows`, `copy_rows` and `stream_rows` were ever used. */
__u32 gp_launch_rows_used;
__u32 gp_copy_rows_used;
__u32 gp_stream_rows_used;
/* Whether anything was ever captured. If not, no capture needs to be looked up. */
__u32 gp_has_captured;

/* Launches by CUDA kernel and stream. An array, for the same reason as `memory_rows`. Row 0 stays empty. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_launches);
} launch_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_launch_key);
	__type(value, __u32);
} launches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1); /* set at load */
	__type(value, __u32);
} unused_launches SEC(".maps");

/* Streams, with their gaps. An array too. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_stream);
} stream_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, __u32);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1); /* set at load */
	__type(value, __u32);
} unused_streams SEC(".maps");

/*
 * Captures, by numbers that gpuprobe assigns. Streams keep the number of a capture that has ended, and find
 * out by it that the capture is no longer there.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, struct gp_capture);
} captures SEC(".maps");

/* The captures that events were recorded in, by event. */
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

/*
 * Graph nodes that contain CUDA kernels, if their handles were seen. The destruction of a graph does not
 * name its nodes, so the oldest entries make room for new ones.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct gp_live_key);
	__type(value, struct gp_node);
} nodes SEC(".maps");

/* Nodes of executable graphs that were changed there. The oldest make room here too. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct gp_exec_node_key);
	__type(value, struct gp_node_kernels);
} exec_nodes SEC(".maps");

/*
 * Launches of executable graphs by their contents. User space removes an entry when nothing refers to the
 * contents any more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_context_key);
	__type(value, struct gp_exec_launches);
} exec_launches SEC(".maps");

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
	__type(value, __u32);
} copies SEC(".maps");

/* Copies by kind and lane. An array, for the same reason as `memory_rows`. Row 0 stays empty. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct gp_copies);
} copy_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1); /* set at load */
	__type(value, __u32);
} unused_copies SEC(".maps");

/*
 * Allocations and mappings, as aligned parts whose sizes are powers of two. Such a part is a prefix of its
 * addresses, so one lookup in a prefix trie finds the part that an address is in. Entries may outlive a
 * context that has ended.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_range_key);
	__type(value, struct gp_range);
} ranges SEC(".maps");

#endif
