/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: records of names and of processes. Every record begins with its gp_record_kind. */
#ifndef GP_RECORDS_H
#define GP_RECORDS_H

/* What a record of a name says. */
enum gp_name_kind : __u16 {
	/* the name of a handle or of a host function */
	GP_NAME_KNOWN,
	/* the handle is an alias of `other` */
	GP_NAME_ALIAS,
	/*
	 * for a handle that was never seen before, the text at the word where names were found; `other` is
	 * the handle that the enclosing call launches
	 */
	GP_NAME_CANDIDATE,
};

/* The name of a CUDA kernel handle. */
struct gp_name_record {
	__u16 kind;
	/* gp_name_kind */
	__u16 how;
	__u32 tgid;
	__u64 instance;
	__u64 handle;
	__u64 other;
	/*
	 * one bit per word of the object that the handle points to: set if that word points to the same
	 * text
	 */
	__u32 matches;
	/* for a candidate, the word that the text came from */
	__u16 word;
	__u16 library;
	/*
	 * length of the text with its NUL; the size of the record's text if it was truncated; 0 if the text
	 * could not be read, because its page has never been touched
	 */
	__u32 length;
	__u32 reserved;
	/* the address of the text; for a candidate, 0 if its word could not be read */
	__u64 address;
};

/* How the contents of a graph change. */
enum gp_graph_change : __u16 {
	/* `count` more of the CUDA kernel with the handle `member` */
	GP_GRAPH_ADD_KERNEL,
	/* `count` more of everything in the contents `member`, as they are now */
	GP_GRAPH_ADD_GRAPH,
	/* the same, once, and `member` belongs to these contents: it is forgotten with them */
	GP_GRAPH_ADD_CHILD,
	/* the CUDA kernel `member` is in one of its nodes now; which one it replaced is not known */
	GP_GRAPH_SET_KERNEL,
	/* nothing refers to the contents any more; what belonged to them belongs to `member` now, if that is
	   not 0 */
	GP_GRAPH_FORGET,
};

/* A change of the contents of a graph. */
struct gp_graph_record {
	__u16 kind;
	/* gp_graph_change */
	__u16 change;
	__u32 tgid;
	__u64 instance;
	__u64 contents;
	__u64 member;
	__s64 count;
};

/* The outermost open call of a thread. */
struct gp_pending_call {
	__u64 instance;
	__u32 tgid;
	/* its row in `functions` */
	__u32 function;
	__u64 start_ns;
	__u32 tid;
	__u32 reserved;
	/* where the address that it returns to was, and that address; both 0 if its return is probed */
	__u64 return_slot;
	__u64 return_address;
};

#define GP_CGROUP_NAME 144

enum gp_process_change : __u16 {
	GP_START = 1,
	GP_EXEC,
	GP_EXIT,
};

/* A change of a process, or with GP_RECORD_PAUSE the question of a paused one. */
struct gp_process_record {
	__u16 kind;
	/* gp_process_change; for a question, gp_pause_flags */
	__u16 change;
	__u32 tgid;
	__u32 tid;
	__u32 parent;
	/* for a question, its number */
	__u64 id;
	__u64 at_ns;
	__u64 instance;
	__s32 exit_code;
	/* the pid in the process's own pid namespace */
	__u32 ns_tgid;
	char comm[16];
	/*
	 * at a start: its cgroup and the parent cgroup, which name its container. They are in the record
	 * because the process may have exited before user space could read them.
	 */
	char cgroup[GP_CGROUP_NAME];
	char outer_cgroup[GP_CGROUP_NAME];
};

#endif
