/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The state that is kept for each thread: its open calls, and caches of what it used last. */
#ifndef GP_THREAD_STATE_BPF_H
#define GP_THREAD_STATE_BPF_H

#include "vmlinux.h"
#include "../gpuprobe.h"

/* The launch of the CUDA driver inside a launch of the CUDA runtime: see deferred_launches.bpf.h */
struct gp_inner_launch {
	/* what it returns to; 0 if there is none */
	__u64 return_address;
	/* how far it is below the outer launch on the stack */
	__u32 distance;
	__u32 function;
	__u32 duration_ns;
	__u32 reserved;
};

/* What a recording remembers of launches whose return was probed: see deferred_launches.bpf.h */
struct gp_probed_launches {
	/* the smallest and the largest grid and block, and the most shared memory: see gp_launches */
	__u64 grid_least;
	__u64 grid_most;
	__u64 block_least;
	__u64 block_most;
	__u64 shared_most;
	struct gp_inner_launch inner;
};

/*
 * A launch cache entry: a CUDA kernel and the stream that a thread launched it on, with their row numbers
 * (0 for none). With handle 0 it caches the row of a stream alone.
 */
struct gp_launch_cache_entry {
	__u64 handle;
	__u64 stream;
	/* as in gp_launch_key */
	__u16 counted_as;
	/* how many launches need no return probe before the next one that does: see launch_entries.bpf.h */
	__u16 unprobed_left;
	__u32 launches_row;
	__u32 stream_row;
	/* how long the launch took whose return was probed last */
	__u32 probed_ns;
};

/* A launch without a return probe. It may not have returned yet. */
struct gp_unprobed_launch {
	/* 0 if the thread has made another call since */
	__u64 start_ns;
	__u64 stack_pointer;
	__u64 return_address;
	__u64 function;
};

/* An address range of a process. */
struct gp_mapping {
	__u64 start;
	__u64 end;
};

/* The cached row number of a function's counters. */
struct gp_counted {
	__u32 function;
	__u32 row;
};

/* The first bytes of a line table of Python: a bytes object without its reference count and type. */
struct gp_line_table {
	__u64 size;
	__u64 hash;
	__u64 word[GP_PYTHON_TABLE_WORDS];
};

/* The beginning of the name of a file in Python up to 3.11: of a str object without its reference count and
 * type. */
struct gp_file_name {
	__u64 length;
	__u64 hash;
	/* GP_PYTHON_ASCII is a bit of it */
	__u64 state;
	/* what follows its header */
	__u64 word[GP_PYTHON_FILE_WORDS];
};

#define GP_PYTHON_ASCII (1 << 6)

/* The search for the Python thread state in use, if there are several interpreters: see python_states.bpf.h
 */
struct gp_state_search {
	/* the interpreter whose states are searched, and the last one */
	__u64 interpreter;
	__u64 main;
	/* the next state, and the one before it */
	__u64 state;
	__u64 previous;
	/* the interpreter of the state that the thread's key has */
	__u64 interpreter_of_key;
	/* the part of the stack inside the innermost C frame that was found, and the state of that one */
	struct gp_mapping stack;
	__u64 found;
	/* another interpreter than that of the key runs code */
	__u32 others_run;
	/* all states were searched */
	__u32 is_complete;
};

/* Python frames of the thread, as of the last walk. */
struct gp_python_walk {
	__u32 count;
	/* gp_python_end */
	__u32 end;
	/* the thread state; 0 if it has none */
	__u64 state;
	struct gp_state_search search;
	__u64 hash;
	/* the frame or the code object that was read last, its line table and its file */
	__u8 bytes[GP_PYTHON_FRAME_BYTES];
	struct gp_line_table table;
	struct gp_file_name file;
	__u64 file_address;
	__u64 file_hash;
	struct gp_python_frame frame[GP_PYTHON_FRAMES];
};

/* The call that failed last: see failure_points.bpf.h */
struct gp_failed_call {
	/* what it returned to; 0 if its failure has been reported again by the function around it */
	__u64 return_address;
	__u64 stack_pointer;
	/* the id of the next call, if there has been none since */
	__u64 next_id;
};

struct gp_thread {
	__u64 instance;
	__u32 tgid;
	__u32 tid;
	/* how many of `open` are in use */
	__u32 depth;
	/* what is left of the block of ids that it took from gp_next_id */
	__u32 ids_left;
	__u64 next_id;
	/* the stack of contexts that the thread made current */
	__u64 contexts[GP_CONTEXTS];
	__u32 contexts_depth;
	/* the row of its process; 0 if it has none */
	__u32 memory_row;
	/* the number of the context that it last allocated in, and that context's address */
	__u64 context;
	__u64 context_address;
	/* cached rows of the functions called last, indexed by the low bits of the function number */
	struct gp_counted counted[GP_COUNTED];
	/* the row where waits for all streams are noted */
	__u32 all_streams_row;
	/* the longest call since the last launch or wait: its function plus one */
	__u32 meanwhile;
	__u64 meanwhile_ns;
	__u64 meanwhile_since_ns;
	struct gp_launch_cache_entry launch_cache[GP_LAUNCH_CACHE];
	/* of the same launches; apart, because only recordings read it */
	struct gp_probed_launches probed_launches[GP_LAUNCH_CACHE];
	struct gp_unprobed_launch last_launch;
	/*
	 * launches whose records are deferred: see deferred_launches.bpf.h. How many they are, the launch
	 * that is expected inside the first, and the last one that was seen inside another, with its id
	 */
	__u64 deferred_count;
	struct gp_inner_launch expected;
	struct gp_inner_launch inner;
	__u64 inner_id;
	/* a call has failed, and no launch has succeeded since */
	__u64 has_failed;
	struct gp_failed_call last_failed;
	/* cached rows of copies: see copy_place() */
	__u32 copy_cache[GP_COPY_CACHE];
	/* the lane that its copies are counted in; 0 before the first */
	__u64 copy_lane;
	/* the address of the return trampoline in this process; 0 if not looked up yet */
	__u64 trampoline;
	/* the stack that the thread was started on, once it has been looked up */
	struct gp_mapping own_stack;
	/* its exit has been reported */
	__u64 has_exited;
	/*
	 * its position on the Linux kernel's stack, for programs that get only a pointer: see
	 * stack_position_of()
	 */
	__u64 stack_position;
	/* a node of an executable graph that is being changed: not on the stack, which is too small for it */
	struct gp_node_kernels node_before;
	struct gp_node_kernels node_after;
	struct gp_python_walk python;
	struct gp_call open[GP_DEPTH];
	struct gp_call deferred[GP_DEFERRED];
};

#endif
