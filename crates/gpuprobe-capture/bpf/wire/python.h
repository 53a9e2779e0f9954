/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Part of the wire: Python frames. User space finds the interpreter of a process and writes where it keeps
 * its frames; BPF walks the frames of the calling thread and sends them with its stack.
 */
#ifndef GP_PYTHON_H
#define GP_PYTHON_H

enum gp_python_length {
	/* the most Python frames of a stack, counted from the innermost */
	GP_PYTHON_FRAMES = 64,
	/* how much of a frame and of a code object is read, a power of 2: everything that gp_python names is
	   there */
	GP_PYTHON_FRAME_BYTES = 128,
	/* how many words at the beginning of a line table, and of the name of a file, are part of the
	   fingerprint */
	GP_PYTHON_TABLE_WORDS = 3,
	GP_PYTHON_FILE_WORDS = 6,
	/* the most frames that are read: some have no Python code */
	GP_PYTHON_STEPS = 128,
	/* the most thread states and interpreters that are searched for the state in use */
	GP_PYTHON_STATES = 256,
};

/* an offset of a field that the version of Python does not have */
#define GP_NO_OFFSET 255

/* Where the interpreter of a process keeps its frames. The names are those of PythonOffsets in
 * gpuprobe-discover. */
struct gp_python {
	/* the address of the number of the thread-specific key whose value is the thread state */
	__u64 thread_key;
	/* the address of the pointer to the newest interpreter, which that to the main one follows; 0 if the
	   key also tells which of several interpreters a thread runs in */
	__u64 interpreters;
	/* in an interpreter: the next older one, and its newest thread state */
	__u16 next_interpreter;
	__u16 first_thread;
	/* in the thread state: its innermost C frame, which is on the stack of the thread; 0 if it has none
	 */
	__u16 c_frame;
	__u16 reserved_offset;
	/* bits of the pointer to the code object that are not part of the address */
	__u64 code_tag;
	/* in the thread state; in the C frame, if the thread state points to one */
	__u16 thread_frame;
	__u16 has_c_frame;
	__u32 frame_in_c_frame;
	/* in a frame */
	__u8 previous;
	__u8 code;
	__u8 instruction;
	/* 4 for a number of instructions, 8 for a pointer */
	__u8 instruction_bytes;
	__u8 owner;
	/* one bit for each owner of frames without Python code, and the owner that marks an entry */
	__u8 shim_owners;
	__u8 entry_owner;
	/* a byte that is not zero in an entry; GP_NO_OFFSET if an owner marks entries, or every frame is one
	 */
	__u8 entry_flag;
	__u8 every_is_entry;
	/* in a code object: where reading begins; the others are offsets from there */
	__u8 code_begin;
	__u8 first_line;
	__u8 file;
	__u8 name;
	__u8 line_table;
	/* a number that only one code object has; GP_NO_OFFSET up to 3.11 */
	__u8 version;
	__u8 reserved;
};

/* One frame: its code object, with bit 0 set if a call of the evaluation function began with it. */
struct gp_python_frame {
	__u64 code;
	__u64 instruction;
	/* tells the code object from a later one at its address; fingerprint.rs in gpuprobe-discover says how
	 */
	__u64 fingerprint;
};

/* What stands for the hash of the Python frames of a stack that has none. A hash is odd. */
enum gp_python_absence : __u32 {
	/* it runs no Python, or its frames could not be found */
	GP_NO_PYTHON,
	/* it runs none, and its name is that of the threads of PyTorch's backward pass */
	GP_AUTOGRAD_THREAD = 2,
};

/* Why there are no more frames. */
enum gp_python_end : __u16 {
	GP_PYTHON_COMPLETE,
	GP_PYTHON_TOO_DEEP,
	/* memory could not be read, because it is invalid or has never been touched */
	GP_PYTHON_LOST,
};

/* The Python frames of a stack, sent before the stack, with the same id. */
struct gp_python_record {
	__u16 kind;
	/* gp_python_end */
	__u16 end;
	__u32 tgid;
	__u64 instance;
	__u64 id;
	/* GP_RECORD_STACK or GP_RECORD_SITE */
	__u16 stack_kind;
	__u16 frames;
	__u32 reserved;
	struct gp_python_frame frame[GP_PYTHON_FRAMES];
};

#endif
