/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Part of the wire: GPU operations (launches, copies, memsets, waits, graphs) and how they are counted in
 * BPF maps. In this header "kernel" means a CUDA kernel.
 */
#ifndef GP_GPU_OP_H
#define GP_GPU_OP_H

/* the longest gaps that are kept for each stream */
#define GP_LONGEST 10

/* The GPU operation of a function, or what it does to streams and graphs. */
enum gp_op : __u8 {
	GP_OP_NONE,
	GP_OP_LAUNCH,
	GP_OP_GRAPH_LAUNCH,
	GP_OP_COPY,
	GP_OP_MEMSET,
	/* waits for one stream, or for several */
	GP_OP_SYNC_STREAM,
	GP_OP_SYNC_ALL,
	GP_OP_STREAM_DESTROY,
	GP_OP_EVENT_RECORD,
	GP_OP_EVENT_WAIT,
	GP_OP_EVENT_DESTROY,
	/* captures into a new graph, adds to an existing graph, or replaces the contents of one */
	GP_OP_CAPTURE_BEGIN,
	GP_OP_CAPTURE_ADD,
	GP_OP_CAPTURE_AGAIN,
	GP_OP_CAPTURE_END,
	GP_OP_GRAPH_CREATE,
	GP_OP_GRAPH_CLONE,
	GP_OP_GRAPH_DESTROY,
	GP_OP_ADD_KERNEL,
	GP_OP_ADD_GRAPH,
	GP_OP_ADD_NODE,
	GP_OP_DESTROY_NODE,
	/* executable graphs */
	GP_OP_EXEC_CREATE,
	GP_OP_EXEC_UPDATE,
	GP_OP_EXEC_DESTROY,
	/* another kernel, or other parameters, for a node of a graph */
	GP_OP_SET_KERNEL,
	GP_OP_SET_NODE,
	/* the same for a node of an executable graph; another child graph; enables or disables a node */
	GP_OP_EXEC_SET_KERNEL,
	GP_OP_EXEC_SET_NODE,
	GP_OP_EXEC_SET_GRAPH,
	GP_OP_ENABLE_NODE,
};

/* How the arguments of a launch are passed. */
enum gp_launch_shape : __u8 {
	/* no dimensions, or some of them, each an argument */
	GP_LAUNCH_WORDS,
	/*
	 * as cuLaunchKernel: the kernel, six dimensions, shared memory and stream are the first arguments
	 */
	GP_LAUNCH_USUAL,
	/* two dim3 by value, of two words each */
	GP_LAUNCH_DIM3,
	/* a struct that begins with the six dimensions */
	GP_LAUNCH_CONFIG,
	/* as GP_LAUNCH_WORDS, with a grid that is counted in threads */
	GP_LAUNCH_THREADS,
	/* global and local sizes, which the pointee has */
	GP_LAUNCH_SIZES,
	/* a struct with the grid; the size of blocks was set before */
	GP_LAUNCH_GROUPS,
	/* a list of structs, one per GPU: those of the CUDA driver, and those of the CUDA runtime */
	GP_LAUNCH_LIST,
	GP_LAUNCH_RUNTIME_LIST,
};

/* How the arguments of a copy are passed. */
enum gp_copy_shape : __u8 {
	GP_COPY_LINEAR,
	/* structs of the CUDA driver; the old ones have 32-bit words */
	GP_COPY_2D,
	GP_COPY_2D_OLD,
	GP_COPY_3D,
	GP_COPY_3D_OLD,
	/* three lists, of targets, sources and sizes */
	GP_COPY_BATCH,
	/* one operation struct, or a list of them */
	GP_COPY_OPERATION,
	GP_COPY_OPERATIONS,
	/* structs of HIP: which pointer is set tells where an end is. And a struct with a cudaMemcpyKind. */
	GP_COPY_HIP_2D,
	GP_COPY_HIP_3D,
	GP_COPY_PARMS,
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
	/* memory from before the probes were attached is at both ends, or at the one that decides */
	GP_UNKNOWN_COPY,
	/*
	 * only in gp_op_desc.copy_kind: decided by an argument, or by what is known about the two addresses
	 */
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

/* The GPU operation of a function, and the locations of its arguments. */
struct gp_op_desc {
	/*
	 * gp_op; gp_launch_shape or gp_copy_shape; for nodes of graphs, where the parameters of a kernel
	 * have its handle
	 */
	__u8 op_kind;
	__u8 shape;
	/* gp_copy_kind */
	__u8 copy_kind;
	__u8 reserved;
	struct gp_arg_loc stream;
	struct gp_arg_loc grid[3];
	struct gp_arg_loc block[3];
	struct gp_arg_loc shared;
	/* the graph, executable graph or node; a second graph, an event, or a node of an executable graph */
	struct gp_arg_loc graph;
	struct gp_arg_loc other;
	/* of a copy; for a batch, the lists and their length; `count` also says whether a node is enabled */
	struct gp_arg_loc target;
	struct gp_arg_loc source;
	struct gp_arg_loc sizes;
	struct gp_arg_loc count;
	/* a cudaMemcpyKind; a struct that describes the copy or the node, or a list of them; a child graph */
	struct gp_arg_loc kind;
	struct gp_arg_loc params;
};

/* Key: launches of a kernel on a stream. */
struct gp_launch_key {
	__u64 instance;
	__u64 handle;
	__u64 stream;
	__u32 tgid;
	/* the function whose calls these are, plus one: these calls are counted nowhere else; 0 for none */
	__u32 counted_as;
};

/* The counters of launches. Every launch is in one bucket, whether it failed or not. */
struct gp_launches {
	__u64 errors;
	__u64 threads;
	__u64 total_ns;
	/* how many of the launches had no return probe: their time is an estimate */
	__u64 unprobed_returns;
	/* the smallest and the largest: x in the low half, then y and z */
	__u64 grid_least;
	__u64 grid_most;
	__u64 block_least;
	__u64 block_most;
	/* bytes of dynamic shared memory */
	__u64 shared_most;
	__u64 latency[GP_BUCKETS];
};

/* What a gap follows; in the order of GapKind in gpuprobe-event. */
enum gp_gap_kind {
	GP_AFTER_SYNC,
	GP_AFTER_LAUNCH,
	GP_GAP_KINDS,
};

/* Every gap is in one bucket. */
struct gp_gaps {
	__u64 total_ns;
	__u64 lengths[GP_BUCKETS];
};

/* One of the longest gaps of a stream. */
struct gp_gap {
	__u64 ns;
	__u64 since_ns;
	/*
	 * the function of the longest call that the launching thread made during the gap, plus one; 0 for
	 * none
	 */
	__u32 meanwhile;
	__u32 kind;
};

/* The state of a stream, and its gaps. */
struct gp_stream {
	/* when the last launch on it returned, and the last wait for it */
	__u64 launched_ns;
	__u64 synced_ns;
	/* the same as launched_ns; if the return was not probed, when that launch began */
	__u64 launched_after_ns;
	/* the number of the capture that it takes part in */
	__u64 capture;
	/* gaps up to this length are not among the longest */
	__u64 kept_ns;
	struct gp_gaps gaps[GP_GAP_KINDS];
	struct gp_gap longest[GP_LONGEST];
};

/*
 * What a graph consists of. User space has its kernels by handle, under the number `contents`, from records
 * of kind GP_RECORD_GRAPH.
 */
struct gp_graph_size {
	__u64 contents;
	__u64 kernels;
	/* kernels of disabled nodes, which are not in `kernels` */
	__u32 disabled;
	/* conditional nodes: the GPU decides whether their kernels run, so these are not in `kernels` */
	__u16 conditional;
	/* some of its nodes were not observed */
	__u16 incomplete;
};

/* A capture, on one or more streams. The number of the capture is also that of its contents. */
struct gp_capture {
	struct gp_graph_size size;
	/* the graph that it goes into, if that existed before */
	__u64 graph;
	/* it replaces the contents of the graph */
	__u64 replaces;
};

/* A graph, or an executable graph. */
struct gp_graph {
	struct gp_graph_size size;
	/* distinguishes executable graphs that had the same handle */
	__u64 id;
};

/* The kernels of a node: one kernel by its handle, or the contents of a child graph. */
struct gp_node_kernels {
	__u64 member;
	__u64 kernels;
	__u32 is_graph;
	__u16 disabled;
	/* it was changed in an executable graph, to which the contents of its child graph belong */
	__u16 of_exec;
};

/* A node that contains kernels. */
struct gp_node {
	__u64 graph;
	struct gp_node_kernels of;
	/*
	 * if its kernel was changed: the kernel that it had before, since when, and until when. These times
	 * are numbers of contents, which always rise.
	 */
	__u64 former;
	__u64 former_since;
	__u64 changed;
};

/* Key: a node of an executable graph that was changed there. */
struct gp_exec_node_key {
	__u64 instance;
	__u64 exec_id;
	__u64 node;
	__u32 tgid;
	__u32 reserved;
};

/* Launches of an executable graph while it had the same contents. */
struct gp_exec_launches {
	__u64 launches;
	/* how many kernels the contents have */
	__u64 kernels;
};

/* Graph launches of one process. */
struct gp_graph_counts {
	__u64 launches;
	__u64 errors;
	/* kernels of the graphs that were launched */
	__u64 derived;
	/* launches of graphs that were created before the probes were attached */
	__u64 unknown;
	/* launches of kernels that were captured, not run */
	__u64 captured;
	/* disabled kernels, and conditional nodes, of the graphs that were launched */
	__u64 disabled;
	__u64 conditional;
};

/* the lane of rows that all threads of a process may write */
#define GP_ALL_LANES 0

/* Key: copies of one kind in a process, by threads of one lane: see copy_rows.bpf.h */
struct gp_copy_key {
	__u64 instance;
	__u32 tgid;
	/* gp_copy_kind, gp_host_memory */
	__u8 kind;
	__u8 is_async;
	__u8 host;
	__u8 lane;
};

/* The counters of copies. Every copy that succeeded is in one bucket. */
struct gp_copies {
	__u64 errors;
	__u64 bytes;
	__u64 total_ns;
	/* by size: bucket i is 2^i up to 2^(i+1) */
	__u64 sizes[GP_BUCKETS];
};

/*
 * Key: an aligned part of an address space, of 2^(64 - n) bytes, where n is the number of address bits in
 * the prefix. The address is big-endian.
 */
struct gp_range_key {
	__u32 prefix;
	__u32 tgid;
	__u64 instance;
	__u64 address;
};

/* The allocation or mapping that the part belongs to. */
struct gp_range {
	__u64 start;
	__u32 prefix;
	__u32 is_mapping;
};

#endif
