/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The wire: every struct and number that crosses between the kernel side and user space. Rust's types and
 * constants are generated from the object's type information, so this file is the only definition. An enum
 * that says its type has that of the fields it stands in; all others are 32 bits. Those that only user space
 * needs by type are named in btf_types.bpf.h.
 */
#ifndef GPUPROBE_H
#define GPUPROBE_H

/* Lengths of arrays and tables. */
enum gp_length {
#if defined(__TARGET_ARCH_arm64)
	GP_REGISTERS = 8,
#else
	GP_REGISTERS = 6,
#endif
	GP_OUTS = 4,
	GP_STACK_WORDS = 12,
	GP_POINTEE = 160,
	/* copies of a batch that are told apart */
	GP_PARTS = 10,
	/* contexts that one thread has made current one over the other */
	GP_CONTEXTS = 8,
	GP_BUCKETS = 32,
	/* kernels and streams that a thread remembers; a power of two */
	GP_LAUNCH_CACHE = 128,
	/* calls open at once on one thread; a power of two */
	GP_DEPTH = 16,
	/* functions whose rows a thread remembers; a power of two */
	GP_COUNTED = 16,
	/* text of names that is sent, in three sizes of record: most are short, and few are longer than this
	 */
	GP_TEXT_SHORT = 256,
	GP_TEXT_MIDDLE = 1024,
	GP_TEXT_LONG = 4096,
	/* words of a kernel's handle that are looked at for its name */
	GP_HANDLE_WORDS = 16,
	/* GPUs that one call launches a kernel on */
	GP_MOST_LAUNCHED = 64,
	/* rows for functions: the catalogue and room for hooks of the user's own; a power of two */
	GP_FUNCTIONS = 8192,
	/* rows for the states of libraries, by the last bits of their numbers; a power of two */
	GP_LIBRARIES = 4096,
};

/* calls of the kernel in one call that are counted; it stands for so many or more */
#define GP_MOST_ENTERED 65535

/* A GPU, as a process counts them. */
enum gp_device : __u8 {
	/* it is not known */
	GP_NO_DEVICE = 255,
};

/* Kinds of memory; in the order of Space in gpuprobe-event. */
enum gp_space : __u8 {
	GP_SPACE_DEVICE,
	GP_SPACE_MANAGED,
	GP_SPACE_PINNED,
	GP_SPACE_POOL,
	GP_SPACE_VMM,
	GP_SPACE_ARRAY,
	GP_SPACES,
};

/* What is observed of the calls of a library. */
enum gp_library_state {
	GP_LIBRARY_ACTIVE,
	/* some of its probes are not in yet: nothing, so that no allocation is counted whose free would be
	   missed */
	GP_LIBRARY_ATTACHING,
	/* its probes are about to go: only what ends memory that was counted */
	GP_LIBRARY_DETACHING,
};

/* In the order of LossCause in gpuprobe-event. */
enum gp_loss {
	GP_LOSS_RING_FULL,
	GP_LOSS_NO_THREAD_STATE,
	GP_LOSS_TOO_DEEP,
	GP_LOSS_ABANDONED,
	GP_LOSS_UNMATCHED_RETURN,
	GP_LOSS_UNOBSERVED_RETURN,
	GP_LOSS_COUNTERS_FULL,
	GP_LOSS_LIVE_FULL,
	GP_LOSS_PROCESSES_FULL,
	GP_LOSS_UNREAD_ALLOCATION,
	GP_LOSS_IMPLAUSIBLE_SIZE,
	GP_LOSS_LOST_STACK,
	GP_LOSS_LOST_NAME,
	GP_LOSS_SITES_FULL,
	GP_LOSS_WORK_FULL,
	GP_LOSS_UNREAD_WORK,
	GP_LOSS_FAILURES_FULL,
	GP_LOSS_OWNER_UNKNOWN,
	GP_LOSS_CAUSES,
};

enum gp_place_kind : __u8 {
	GP_NOWHERE,
	GP_IN_REGISTER,
	GP_ON_STACK,
};

/* Where an argument lies at entry: a register, or a word counted from the first stack argument. */
struct gp_place {
	__u8 kind;
	__u8 index;
};

/* A word to read through a pointer argument when the call returns. */
struct gp_out {
	struct gp_place place;
	__u8 offset;
	__u8 bytes;
};

#include "wire/gpu_op.h"

enum gp_action : __u8 {
	GP_NOTHING,
	GP_ALLOC,
	GP_FREE,
	GP_MOVE,
};

/* What a function does to memory beside handing it out and taking it back. */
enum gp_memory_op : __u8 {
	GP_NO_OP,
	/* physical memory by handle, and its mappings */
	GP_VMM_CREATE,
	GP_VMM_IMPORT,
	GP_VMM_RETAIN,
	GP_VMM_RELEASE,
	GP_VMM_MAP,
	GP_VMM_UNMAP,
	/* contexts, whose end frees what was allocated in them */
	GP_CONTEXT_CREATE,
	GP_CONTEXT_DESTROY,
	GP_CONTEXT_SET,
	GP_CONTEXT_PUSH,
	GP_CONTEXT_POP,
	GP_PRIMARY_RETAIN,
	GP_PRIMARY_RELEASE,
	GP_PRIMARY_RESET,
	/* tells which GPU one of the process's is: 16 bytes of a UUID, or a place on the bus as text */
	GP_DEVICE_TOLD,
};

enum gp_size_rule : __u8 {
	GP_SIZE_UNKNOWN,
	/* a * scale */
	GP_SIZE_ARGUMENT,
	/* a * b * scale */
	GP_SIZE_PRODUCT,
	/* outs[1] * a, and * b where b has a place: the pitch is known when the call returns */
	GP_SIZE_PITCH,
	/* a driver's description of an array in the pointee, of two or three dimensions; times the levels in
	   a */
	GP_SIZE_ARRAY_2D,
	GP_SIZE_ARRAY_3D,
	/* bits of four channels in the pointee; elements a by b */
	GP_SIZE_CHANNELS,
	/* the same; elements by an extent from a on, in as many levels as b says */
	GP_SIZE_CHANNELS_EXTENT,
	/* an extent by value from a on */
	GP_SIZE_EXTENT,
	/* the extent in the struct that a points to, or in each of the b structs there */
	GP_SIZE_BOX,
	/* the sum of the b words that a points to */
	GP_SIZE_LIST,
};

/* Where a struct has its dimensions, one behind the other, and how far the next struct of a list is. */
struct gp_extent {
	__u8 offset;
	__u8 word;
	__u8 dimensions;
	__u8 stride;
};

enum gp_function_flags {
	/* keep calls, errors, bytes and latency in the kernel */
	GP_COUNT = 1,
	/* send one record a call */
	GP_STREAM = 2,
	/* the result register holds a status */
	GP_STATUS = 4,
	/* the address is an argument, not read from outs[0] (host memory that is registered) */
	GP_POINTER_IS_ARGUMENT = 8,
	/* the pointee is text, up to its end */
	GP_TEXT = 16,
	/* `kernel` is the handle that is launched */
	GP_LAUNCH = 32,
	/* a call that succeeds tells the name of a handle, or what it stands for */
	GP_NAMES = 64,
	/* the handle is outs[0], not an argument */
	GP_HANDLE_IS_OUT = 128,
	/* the name is where outs[0] points */
	GP_NAME_IS_OUT = 256,
	/* where it returns to is kept: allocations may be made inside */
	GP_KEEPS_RETURN = 512,
	/* the default stream is the thread's own */
	GP_PER_THREAD = 1024,
	/* it returns before what it asks for is done */
	GP_ASYNC = 2048,
	/* keep its failures, but for those that a call inside has been counted with */
	GP_FAILURES = 4096,
	/* the status is a whole word */
	GP_WIDE = 8192,
	/* what it gives, an address or a handle, is its result and not outs[0]: nothing at all is a failure
	 */
	GP_GIVES_RESULT = 16384,
	/* the status is the last of outs, not its result */
	GP_ERROR_IS_OUT = 32768,
	/* it has no return probe, which could end the program: it runs callbacks (see return_safety.bpf.h),
	 * or a C++ exception may leave it */
	GP_ENTRY_ONLY = 65536,
	/* its probes are about to be taken out: calls that begin are ignored, open ones still return */
	GP_PAUSED = 131072,
	/* it may run any code before it returns: a callback, or it is a function that the user named */
	GP_RUNS_CODE = 262144,
};

/* What the probes of one function do; the attach cookie is its index. */
struct gp_function {
	__u32 flags;
	__u16 record_bytes;
	__u8 action;
	__u8 space;
	__u8 size_rule;
	__u8 size_scale;
	struct gp_place size_a;
	struct gp_place size_b;
	struct gp_extent extent;
	struct gp_place pointer;
	struct gp_place pointee;
	__u8 pointee_bytes;
	/* of a tracepoint, all of its arguments that are told */
	__u8 stack_words;
	__u8 outs;
	/* gp_memory_op */
	__u8 op;
	/* the handle launched or named, its name, and the handle that it is another form of */
	struct gp_place kernel;
	struct gp_place name;
	struct gp_place alias;
	/* the GPU that a context is made on, or that is asked for */
	struct gp_place device;
	struct gp_task task;
	struct gp_out out[GP_OUTS];
	__u16 reserved;
};

enum gp_record_kind : __u16 {
	GP_RECORD_CALL = 1,
	GP_RECORD_PROCESS,
	GP_RECORD_HOLD,
	GP_RECORD_NAME,
	GP_RECORD_STACK,
	/* a stack whose way to an allocation is not known */
	GP_RECORD_SITE,
	GP_RECORD_XID,
};

enum gp_call_flags : __u16 {
	/* bits 0 to 3: out[i] could not be read */
	GP_UNREAD_OUT = 1,
	GP_UNREAD_STACK = 16,
	GP_UNREAD_POINTEE = 32,
	/* an enclosing call of the same kind carries the bytes */
	GP_NESTED_ACTION = 64,
	/* the thread ended inside the call */
	GP_UNFINISHED = 128,
	/* it has been entered; its return is told apart, or not at all */
	GP_BEGUN = 256,
	/* the text has an end that was not read */
	GP_CUT_TEXT = 512,
	/* an enclosing call is counted as the same work */
	GP_NESTED_WORK = 1024,
	/* the work became part of a graph and was not run */
	GP_CAPTURED = 2048,
	/* the bytes are those of the calls inside, which alone tell them */
	GP_BYTES_OF_INNER = 4096,
	/* with GP_BEGUN: its return is not probed, though those of others are */
	GP_UNOBSERVED = 8192,
	/* a copy or memset that called the CUDA driver's */
	GP_ASKED_DRIVER = 16384,
};

#include "wire/effect.h"

/*
 * One call: its state while it is open, and its record when it has returned. What a function does not use
 * lies at the end and is not sent.
 */
struct gp_call {
	__u16 kind;
	__u16 flags;
	__u32 function;
	__u64 id;
	__u64 parent;
	__u64 start_ns;
	__u64 duration_ns;
	__u64 instance;
	__u32 tgid;
	__u32 tid;
	__u64 result;
	/* allocated, freed or moved */
	__u64 bytes;
	/* the address that is allocated or freed; of physical memory, its handle */
	__u64 pointer;
	__u64 stack_pointer;
	/* bit per gp_action: this call and those around it */
	__u8 actions;
	/* the GPU of the memory, as the process counts them */
	__u8 device;
	/* it is told or counted: a probe that is there only for what other calls need is nobody's parent */
	__u8 is_told;
	/* a call inside it failed, and that is counted */
	__u8 inner_failed;
	/* gp_space, of memory that is allocated or freed */
	__u8 space;
	/* calls around this one that are told */
	__u8 depth;
	/* which attached file the function is in */
	__u16 library;
	union gp_detail detail;
	/* where it returns to */
	__u64 return_address;
	/* the call site of what is allocated or freed */
	__u32 site;
	/* system calls that it made on devices of the driver, up to GP_MOST_ENTERED; driver_ns is their time
	 */
	__u16 entered;
	/* gp_effect */
	__u8 effect;
	/* gp_space, of what stood at the address of an allocation */
	__u8 replaced_space;
	__u64 driver_ns;
	__u64 registers[GP_REGISTERS];
	__u64 out[GP_OUTS];
	union gp_stack_words stack;
	union gp_pointee pointee;
};

enum gp_name_kind : __u16 {
	/* the name of a handle or of a host function */
	GP_NAME_TOLD,
	/* the handle is another form of `other` */
	GP_NAME_ALIAS,
	/* what a handle that was never seen before holds where names have been found; `other` is what the
	 * call around it launches */
	GP_NAME_CANDIDATE,
};

/* What a kernel's handle is called. */
struct gp_name_record {
	__u16 kind;
	__u16 how;
	__u32 tgid;
	__u64 instance;
	__u64 handle;
	__u64 other;
	/* bit per word of what the handle points to: that word points to the same text */
	__u32 matches;
	/* of a candidate: which word it came from */
	__u16 word;
	__u16 library;
	/* of the text with its end; as long as the record has room where it was cut; 0 where it could not be
	 * read, for pages that nobody has touched yet are not there */
	__u32 length;
	__u32 reserved;
	/* where the text is; of a candidate 0 where its word could not be read */
	__u64 address;
};

#define GP_CGROUP_NAME 144

enum gp_process_change : __u16 {
	GP_START = 1,
	GP_EXEC,
	GP_EXIT,
};

struct gp_process_record {
	__u16 kind;
	__u16 change;
	__u32 tgid;
	__u32 tid;
	__u32 parent;
	__u64 id;
	__u64 at_ns;
	__u64 instance;
	__s32 exit_code;
	/* as the process sees itself, in its own pid namespace */
	__u32 ns_tgid;
	char comm[16];
	/* of a start: its cgroup and the one around it, which name its container; who asks later may find it
	 * gone */
	char cgroup[GP_CGROUP_NAME];
	char outer_cgroup[GP_CGROUP_NAME];
};

/* One run of one program in one process; see instance_of(). */
struct gp_process_key {
	__u64 instance;
	__u32 tgid;
	__u32 reserved;
};

/* A kernel, as one program launches it. */
struct gp_cuda_kernel_key {
	__u64 instance;
	__u64 handle;
	__u32 tgid;
	/* the file that launches it: the runtime and the driver may use the same handle */
	__u32 library;
};

struct gp_count_key {
	__u64 instance;
	__u32 tgid;
	__u32 function;
};

/* How often a function of a process failed in one way. */
struct gp_failure_key {
	__u64 instance;
	__u32 tgid;
	__u32 function;
	__u32 error;
	__u32 reserved;
};

/* Each call that was timed is in one bucket: how many there were is the sum. */
struct gp_count {
	__u64 errors;
	__u64 bytes;
	__u64 total_ns;
	/* calls that entered the driver, and their time there */
	__u64 entered;
	__u64 driver_ns;
	/* calls of which only the entry is probed: these are in no bucket */
	__u64 tallied;
	__u64 latency[GP_BUCKETS];
};

/* A file, as the kernel knows it. */
struct gp_file {
	__u64 inode;
	__u32 device;
	__u32 reserved;
};

#include "wire/kmod.h"
#include "wire/config.h"

#endif
