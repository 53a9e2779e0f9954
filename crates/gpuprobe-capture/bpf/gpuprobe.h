/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The wire: every struct and number that crosses between the BPF programs and user space. The headers in
 * wire/ are parts of it. Rust's types and constants are generated from the object's type information (BTF),
 * so this is the only definition: `GP_ALLOC` of `enum gp_action` is `number::ACTION_ALLOC` in Rust
 * (build/wire_constants.rs).
 *
 * An enum with an explicit type has the type of the fields that hold it; all others have 32 bits. Types
 * that no map uses must be listed in core/btf_types.bpf.h to get into the type information. Structs that
 * Rust reads have no padding, so that it may read them from any bytes.
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
	/* groups of equal copies in a batch: see gp_part */
	GP_PARTS = 10,
	/* depth of a thread's stack of current contexts */
	GP_CONTEXTS = 8,
	GP_BUCKETS = 32,
	/* entries of a thread's launch cache; a power of two */
	GP_LAUNCH_CACHE = 128,
	/* cached rows of copies per thread: 8 kinds, 8 kinds of host memory, and whether the call waits */
	GP_COPY_CACHE = 128,
	/* how many threads of a process have counters of copies to themselves; a power of two */
	GP_LANES = 16,
	/* open calls per thread; a power of two */
	GP_DEPTH = 16,
	/* a launch of the CUDA runtime, and that of the CUDA driver inside it */
	GP_DEFERRED = 2,
	/* cached rows of functions per thread; a power of two */
	GP_COUNTED = 16,
	/*
	 * the sizes of text in records of names: most names are short, and few are longer than the last
	 * size
	 */
	GP_TEXT_SHORT = 256,
	GP_TEXT_MIDDLE = 1024,
	GP_TEXT_LONG = 4096,
	/* words of a CUDA kernel's handle that are searched for its name */
	GP_HANDLE_WORDS = 16,
	/* the most GPUs that one call launches a CUDA kernel on */
	GP_MOST_LAUNCHED = 64,
	/* rows for functions: the catalogue and the user's hooks; a power of two */
	GP_FUNCTIONS = 8192,
	/* rows for the states of libraries, indexed by the low bits of their numbers; a power of two */
	GP_LIBRARIES = 4096,
	/* the bits of an attach cookie from here on are the number of a turn: see gp_turn */
	GP_COOKIE_TURN = 48,
};

/* the maximum of gp_call.entered: it stands for this many or more */
#define GP_MOST_ENTERED 65535

/* A GPU, by the number that the process has for it. */
enum gp_device : __u8 {
	/* not known */
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

/* Which calls of a library are observed. */
enum gp_library_state {
	GP_LIBRARY_ACTIVE,
	/*
	 * some of its probes are not attached yet: nothing is observed, so that no allocation is counted
	 * whose free would not be seen
	 */
	GP_LIBRARY_ATTACHING,
	/* its probes are about to be detached: only calls that free memory which was counted */
	GP_LIBRARY_DETACHING,
};

/* A probed library. */
struct gp_library {
	/*
	 * since when all its calls are observed, on the clock of process start times; the maximum if that is
	 * not known yet
	 */
	__u64 observed_since_ns;
	/* gp_library_state */
	__u32 state;
	/* the size of its file; the maximum if that is larger */
	__u32 file_bytes;
};

#include "wire/turn.h"

/* Reasons why something was lost; in the order of LossCause in gpuprobe-event. */
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
	GP_LOSS_GPU_OPS_FULL,
	GP_LOSS_UNREAD_GPU_OP,
	GP_LOSS_FAILURES_FULL,
	GP_LOSS_OWNER_UNKNOWN,
	GP_LOSS_UNREAD_PYTHON,
	GP_LOSS_UNASSIGNED_PYTHON,
	GP_LOSS_LOST_AGENT_BATCH,
	GP_LOSS_CAUSES,
};

enum gp_arg_loc_kind : __u8 {
	GP_NOWHERE,
	GP_IN_REGISTER,
	GP_ON_STACK,
};

/* The location of an argument at entry: a register, or a word counted from the first stack argument. */
struct gp_arg_loc {
	__u8 kind;
	__u8 index;
};

/* A word to read through a pointer argument when the call returns. */
struct gp_out {
	struct gp_arg_loc loc;
	__u8 offset;
	__u8 bytes;
};

#include "wire/copied_struct.h"
#include "wire/gpu_op.h"

/*
 * The effect of a function that the outermost call with the same action accounts for: cudaMalloc and the
 * cuMemAlloc_v2 inside it are one allocation. GP_MOVE is a copy or a memset.
 */
enum gp_action : __u8 {
	GP_NOTHING,
	GP_ALLOC,
	GP_FREE,
	GP_MOVE,
};

/* What a function does to memory other than allocate and free it. */
enum gp_memory_op : __u8 {
	GP_NO_OP,
	/* physical memory by handle, and its mappings */
	GP_VMM_CREATE,
	GP_VMM_IMPORT,
	GP_VMM_RETAIN,
	GP_VMM_RELEASE,
	GP_VMM_MAP,
	GP_VMM_UNMAP,
	/* contexts: when one ends, everything allocated in it is freed */
	GP_CONTEXT_CREATE,
	GP_CONTEXT_DESTROY,
	GP_CONTEXT_SET,
	GP_CONTEXT_PUSH,
	GP_CONTEXT_POP,
	GP_PRIMARY_RETAIN,
	GP_PRIMARY_RELEASE,
	GP_PRIMARY_RESET,
	/* HIP: chooses the GPU of the thread, or ends everything on it */
	GP_DEVICE_SET,
	GP_DEVICE_RESET,
	/* identifies one of the process's GPUs: 16 bytes of a UUID, or its PCI address as text */
	GP_DEVICE_IDENTITY,
	/* what the allocator of a framework reports: see wire/tensor.h */
	GP_TENSOR_CHANGE,
	GP_TENSOR_OUT_OF_MEMORY,
	/* objects with a count of references: one more, or another object that shares its memory */
	GP_RETAIN_OBJECT,
	GP_SHARE_OBJECT,
};

#include "wire/size_rule.h"

/* Bits of gp_function.flags. */
enum gp_function_flags {
	/* count calls, errors, bytes and latency in BPF maps */
	GP_COUNT = 1,
	/* send one record per call */
	GP_STREAM = 2,
	/* the result register contains a status */
	GP_STATUS = 4,
	/* the address is an argument, not read from outs[0] (registered host memory) */
	GP_POINTER_IS_ARGUMENT = 8,
	/* the pointee is text up to a NUL */
	GP_TEXT = 16,
	/* `cuda_kernel` is the location of the CUDA kernel handle that is launched */
	GP_LAUNCH = 32,
	/* a successful call gives a handle its name, or makes it an alias of another handle */
	GP_NAMES = 64,
	/* the handle is outs[0], not an argument */
	GP_HANDLE_IS_OUT = 128,
	/* outs[0] points to the name */
	GP_NAME_IS_OUT = 256,
	/* its return address is kept, because it may allocate or contain calls that do */
	GP_KEEPS_RETURN = 512,
	/* its default stream is the per-thread one */
	GP_PER_THREAD = 1024,
	/* it returns before the operation has completed */
	GP_ASYNC = 2048,
	/* count its failures, except those caused by a call inside it that was counted */
	GP_FAILURES = 4096,
	/* the status is a whole word */
	GP_WIDE = 8192,
	/* the address or handle that it produces is its result, not outs[0]; a result of 0 is a failure */
	GP_OUTPUT_IS_RESULT = 16384,
	/* the status is the last of outs, not the result */
	GP_ERROR_IS_OUT = 32768,
	/*
	 * it gets no return probe, because that could kill the program: it runs callbacks (see
	 * return_safety.bpf.h), or a C++ exception may leave it
	 */
	GP_ENTRY_ONLY = 65536,
	/* only its calls that begin in a turn are observed: see gp_turn */
	GP_SAMPLED = 131072,
	/* it may run any code before it returns: it takes a callback, or the user named it */
	GP_RUNS_CODE = 262144,
	/* its calls get a call site, except those inside other calls that get one; see gp_config.call_sites
	 */
	GP_TAKES_SITE = 524288,
	/* a launch of which not every return is probed: see launch_entries.bpf.h, deferred_launches.bpf.h */
	GP_SAMPLES_RETURNS = 1048576,
	/* with GP_SAMPLED: it has probes only in turns */
	GP_IN_TURNS = 2097152,
	/* memory of threads that have chosen no GPU is on the first one */
	GP_FIRST_DEVICE = 33554432,
	/*
	 * the address that it allocates, frees or uses is an object with a count of references; its kernels
	 * are such objects too, whose handles are reused
	 */
	GP_OBJECT = 4194304,
	/* a launch whose sizes are in lists: `size_a` dimensions, global ones in the pointee, local in
	   `size_b` */
	GP_SIZES = 8388608,
	/* a loader calls the function of the same name in the library of a vendor: that is no other call */
	GP_MAY_REPEAT = 16777216,
};

/* What the probes of one function do. The low bits of the attach cookie are its index. */
struct gp_function {
	/* gp_function_flags */
	__u32 flags;
	/* how much of a gp_call is sent: up to the last field that the function uses */
	__u16 record_bytes;
	/* gp_action, and the gp_space of the memory that it allocates or frees */
	__u8 action;
	__u8 space;
	/* gp_size_rule, with its operands a and b: how many bytes are allocated or moved */
	__u8 size_rule;
	__u8 size_scale;
	struct gp_arg_loc size_a;
	struct gp_arg_loc size_b;
	struct gp_extent extent;
	/* the address that is freed, registered, mapped or unmapped; a context; or where an answer is written
	 */
	struct gp_arg_loc pointer;
	/* the argument whose target is copied into gp_call.pointee at the entry, and how many bytes */
	struct gp_arg_loc pointee;
	__u8 pointee_bytes;
	/* how many argument words on the stack are read; for a tracepoint, how many arguments it has in all
	 */
	__u8 stack_words;
	/* how many of `out` are used */
	__u8 outs;
	/* gp_memory_op */
	__u8 memory_op;
	/*
	 * the CUDA kernel handle that is launched or named (for a mapping, the handle of the physical
	 * memory), its name, and the handle that it is an alias of
	 */
	struct gp_arg_loc cuda_kernel;
	struct gp_arg_loc name;
	struct gp_arg_loc alias;
	/* the GPU that a context is created on, that is queried, or that a framework reports about */
	struct gp_arg_loc device;
	/* what a framework reports: bytes of tensors, and bytes that it has reserved */
	struct gp_arg_loc in_use;
	struct gp_arg_loc reserved_bytes;
	struct gp_op_desc op_desc;
	struct gp_out out[GP_OUTS];
	/* if not 0: the call gives a name only if the argument `device` has this value */
	__u16 named_if;
	/* if not 0: `name` is a struct, and this is where it points to the name */
	__u16 name_at;
	/* a status besides 0 that is an answer, not a failure: "not ready yet" */
	__u16 answer;
#if defined(__TARGET_ARCH_arm64)
	struct gp_copied_struct copied[GP_COPIED_STRUCTS];
#endif
};

/* The kind of a record, in its first two bytes. */
enum gp_record_kind : __u16 {
	GP_RECORD_CALL = 1,
	GP_RECORD_PROCESS,
	GP_RECORD_PAUSE,
	GP_RECORD_NAME,
	GP_RECORD_STACK,
	/* the stack of a call whose call site is not known yet */
	GP_RECORD_SITE,
	GP_RECORD_XID,
	/* a change of the contents of a graph */
	GP_RECORD_GRAPH,
	GP_RECORD_PYTHON,
	GP_RECORD_OUT_OF_MEMORY,
};

#include "wire/call_flags.h"
#include "wire/effect.h"
#include "wire/failure_point.h"

/*
 * One call: its state while it is open, and its record when it has returned. The fields that only some
 * functions use are at the end, and are not sent for the others (gp_function.record_bytes).
 */
struct gp_call {
	/* GP_RECORD_CALL */
	__u16 kind;
	/* gp_call_flags */
	__u16 flags;
	/* its row in `functions` */
	__u16 function;
	/* how many calls it stands for: 1, or the weight of the turn that it began in */
	__u16 weight;
	__u64 id;
	/* the id of the innermost enclosing call that is sent or counted; 0 if none */
	__u64 parent;
	__u64 start_ns;
	__u64 duration_ns;
	/* with tgid, one run of a program: see instance_of() */
	__u64 instance;
	__u32 tgid;
	__u32 tid;
	__u64 result;
	/* bytes allocated, freed or moved */
	__u64 bytes;
	/* the address that is allocated or freed; for physical memory, its handle */
	__u64 pointer;
	/* at the entry; identifies the call when it returns */
	__u64 stack_pointer;
	/* of this call and of the enclosing ones: one bit per gp_action, and gp_open */
	__u8 actions;
	/* the GPU of the memory, by the process's number */
	__u8 device;
	/*
	 * it is sent or counted. A call of a state-only probe is neither, and is not the parent of other
	 * calls.
	 */
	__u8 reported;
	/* a call inside it failed, and that failure was counted */
	__u8 inner_failed;
	/* gp_space of the memory that is allocated or freed */
	__u8 space;
	/* how many enclosing calls are sent or counted */
	__u8 depth;
	/* the number of the attached file that the function is in */
	__u16 library;
	/* the three unions are described in wire/effect.h */
	union gp_detail detail;
	/* the address that it returns to */
	__u64 return_address;
	/* the call site of the memory that is allocated or freed; otherwise that of the call */
	__u32 site;
	/* system calls that it made on NVIDIA devices, at most GP_MOST_ENTERED; device_ns is their time */
	__u16 entered;
	/* gp_effect */
	__u8 effect;
	/* gp_space of the memory that an allocation replaced */
	__u8 replaced_space;
	__u64 device_ns;
	__u64 registers[GP_REGISTERS];
	__u64 out[GP_OUTS];
	union gp_stack_words stack;
	union gp_pointee pointee;
};

#include "wire/records.h"

/* One run of one program in one process; see instance_of(). */
struct gp_process_key {
	__u64 instance;
	__u32 tgid;
	__u32 reserved;
};

/* A CUDA kernel that a program launches. */
struct gp_cuda_kernel_key {
	__u64 instance;
	__u64 handle;
	__u32 tgid;
	/* the file that launches it: the CUDA runtime and the CUDA driver may use the same handle value */
	__u32 library;
};

/* Key: the counters of a function in a process. */
struct gp_count_key {
	__u64 instance;
	__u32 tgid;
	__u32 function;
};

/* How often a function of a process failed with one error. */
struct gp_failure_key {
	__u64 instance;
	__u32 tgid;
	__u32 function;
	__u32 error;
	__u32 reserved;
};

/*
 * The counters of a function. Every timed call is in one bucket, so the number of timed calls is the sum of
 * the buckets.
 */
struct gp_count {
	__u64 errors;
	__u64 bytes;
	__u64 total_ns;
	/* calls that made system calls on NVIDIA devices, and their time in these */
	__u64 entered;
	__u64 device_ns;
	/* calls of which only the entry is probed: these are in no bucket */
	__u64 entry_count;
	__u64 latency[GP_BUCKETS];
};

/* A file, identified as the Linux kernel does. */
struct gp_file {
	__u64 inode;
	__u32 device;
	__u32 reserved;
};

#include "wire/kmod.h"
#include "wire/python.h"
#include "wire/agent.h"
#include "wire/config.h"

#endif
