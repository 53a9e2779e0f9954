/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The maps of work that is given to GPUs. Those whose work is not counted have no room. */
#ifndef GP_GPU_OP_MAPS_BPF_H
#define GP_GPU_OP_MAPS_BPF_H

#include "../core/maps.bpf.h"

/* Rows of the two tables of rows below that were ever used. */
__u32 gp_launch_rows_used;
__u32 gp_stream_rows_used;
/* Whether anything was ever captured: where nothing was, nobody has to ask. */
__u32 gp_has_captured;

/* Launches, an array as `memory_rows` is; but for the first, which stays empty. */
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

/* Streams, likewise. */
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

#endif
