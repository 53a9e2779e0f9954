/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The wire, continued: work that is given to GPUs, as it is counted in the kernel. Part of gpuprobe.h. */
#ifndef GP_GPU_OP_H
#define GP_GPU_OP_H

/* gaps that are kept one by one for each stream */
#define GP_LONGEST 10

/* What a function does to streams and graphs, or the work that it gives to one. */
enum gp_work : __u8 {
	GP_NO_WORK,
	GP_WORK_LAUNCH,
	GP_WORK_GRAPH_LAUNCH,
	GP_WORK_COPY,
	GP_WORK_MEMSET,
	/* waits for one stream, or for more */
	GP_WORK_SYNC_STREAM,
	GP_WORK_SYNC_ALL,
	GP_WORK_STREAM_DESTROY,
	GP_WORK_EVENT_RECORD,
	GP_WORK_EVENT_WAIT,
	GP_WORK_EVENT_DESTROY,
	/* into a graph of its own, added to a graph that is there, or in place of what is in one */
	GP_WORK_CAPTURE_BEGIN,
	GP_WORK_CAPTURE_ADD,
	GP_WORK_CAPTURE_AGAIN,
	GP_WORK_CAPTURE_END,
	GP_WORK_GRAPH_CREATE,
	GP_WORK_GRAPH_CLONE,
	GP_WORK_GRAPH_DESTROY,
	GP_WORK_ADD_KERNEL,
	GP_WORK_ADD_GRAPH,
	GP_WORK_ADD_NODE,
	GP_WORK_DESTROY_NODE,
	/* executable graphs */
	GP_WORK_EXEC_CREATE,
	GP_WORK_EXEC_UPDATE,
	GP_WORK_EXEC_DESTROY,
};

/* How a launch tells what it launches. */
enum gp_launch_shape : __u8 {
	/* no dimensions, or some of them, each an argument */
	GP_LAUNCH_WORDS,
	/* as cuLaunchKernel: the kernel, six dimensions, shared memory and stream are the first arguments */
	GP_LAUNCH_USUAL,
	/* two dim3 by value, of two words each */
	GP_LAUNCH_DIM3,
	/* a struct that begins with the six dimensions */
	GP_LAUNCH_CONFIG,
	/* a list of structs, one for each GPU: those of the driver, and those of the runtime */
	GP_LAUNCH_LIST,
	GP_LAUNCH_RUNTIME_LIST,
};

/* How a copy tells what it copies. */
enum gp_copy_shape : __u8 {
	GP_COPY_LINEAR,
	/* structs of the driver; the old ones have halves for words */
	GP_COPY_2D,
	GP_COPY_2D_OLD,
	GP_COPY_3D,
	GP_COPY_3D_OLD,
	/* three lists, of targets, sources and sizes */
	GP_COPY_BATCH,
	/* operations, one or a list of them */
	GP_COPY_OPERATION,
	GP_COPY_OPERATIONS,
};

/* The direction of a copy; in the order of CopyDirection in gpuprobe-event. */
enum gp_copy_kind : __u8 {
	GP_H2H,
	GP_H2D,
	GP_D2H,
	GP_D2D,
	GP_PEER,
	/* a memset */
	GP_FILL,
	/* memory from before the probes is at both ends, or at one that matters */
	GP_UNKNOWN_COPY,
	/* told by an argument, or by what is known of the two addresses */
	GP_BY_ARGUMENT,
	GP_BY_ADDRESS,
};

/* The host memory of a copy; in the order of HostMemory in gpuprobe-event. */
enum gp_host_memory : __u8 {
	GP_NO_HOST,
	GP_PINNED,
	GP_PAGEABLE,
	GP_MANAGED,
	GP_UNKNOWN_HOST,
};

/* What a function does to streams and graphs, and where its arguments for that are. */
struct gp_task {
	/* gp_work; gp_launch_shape or gp_copy_shape */
	__u8 work;
	__u8 shape;
	/* gp_copy_kind */
	__u8 copy_kind;
	__u8 reserved;
	struct gp_place stream;
	struct gp_place grid[3];
	struct gp_place block[3];
	struct gp_place shared;
	/* the graph, executable graph or node that is meant; a second graph, or an event */
	struct gp_place graph;
	struct gp_place other;
	/* of a copy; the lists of a batch, and how long they are */
	struct gp_place target;
	struct gp_place source;
	struct gp_place sizes;
	struct gp_place count;
	/* a cudaMemcpyKind; a struct that describes the copy, or a list of such */
	struct gp_place kind;
	struct gp_place params;
};

/* A kernel on a stream. */
struct gp_launch_key {
	__u64 instance;
	__u64 handle;
	__u64 stream;
	__u32 tgid;
	/* 1 more than the function whose calls these are, which are then counted nowhere else; 0 for none */
	__u32 counted_as;
};

/* Each launch is in one bucket, whether it failed or not. */
struct gp_launches {
	__u64 errors;
	__u64 threads;
	__u64 total_ns;
	/* the smallest and the largest: x in the low half, then y and z */
	__u64 grid_least;
	__u64 grid_most;
	__u64 block_least;
	__u64 block_most;
	/* bytes of dynamic shared memory */
	__u64 shared_most;
	__u64 latency[GP_BUCKETS];
};

/* What a gap began with: in the order of GapKind in gpuprobe-event. */
enum gp_gap_kind {
	GP_AFTER_SYNC,
	GP_AFTER_LAUNCH,
	GP_GAP_KINDS,
};

/* Each gap is in one bucket. */
struct gp_gaps {
	__u64 total_ns;
	__u64 lengths[GP_BUCKETS];
};

struct gp_gap {
	__u64 ns;
	__u64 since_ns;
	/* 1 more than the function that took the launching thread longest meanwhile; 0 for none */
	__u32 meanwhile;
	__u32 kind;
};

struct gp_stream {
	/* when the last launch on it returned, and the last wait for it */
	__u64 launched_ns;
	__u64 synced_ns;
	/* the number of the capture that it takes part in */
	__u64 capture;
	/* gaps up to this are not among the longest */
	__u64 kept_ns;
	struct gp_gaps gaps[GP_GAP_KINDS];
	struct gp_gap longest[GP_LONGEST];
};

/* What is captured on some streams. */
struct gp_capture {
	__u64 kernels;
	/* the graph that it goes into, where that was there before */
	__u64 graph;
	/* it takes the place of what is in the graph */
	__u64 replaces;
};

/* A graph, or an executable one. */
struct gp_graph {
	__u64 kernels;
};

/* A node that holds kernels. */
struct gp_node {
	__u64 graph;
	__u64 kernels;
};

struct gp_graph_counts {
	__u64 launches;
	__u64 errors;
	/* kernels of the graphs that were launched */
	__u64 derived;
	/* launches of graphs that were made before the probes came */
	__u64 unknown;
	/* launches of kernels that were captured, not run */
	__u64 captured;
};

struct gp_copy_key {
	__u64 instance;
	__u32 tgid;
	/* gp_copy_kind, gp_host_memory */
	__u8 kind;
	__u8 is_async;
	__u8 host;
	__u8 reserved;
};

struct gp_copies {
	__u64 copies;
	__u64 errors;
	__u64 bytes;
	__u64 total_ns;
	/* by size: bucket i is 2^i up to 2^(i+1) */
	__u64 sizes[GP_BUCKETS];
};

/* A part of an address space, of 2^(64 - bits of the address that count) bytes; the address is big-endian. */
struct gp_range_key {
	__u32 prefix;
	__u32 tgid;
	__u64 instance;
	__u64 address;
};

/* The allocation or the mapping that it is part of. */
struct gp_range {
	__u64 start;
	__u32 prefix;
	__u32 is_mapping;
};

#endif
