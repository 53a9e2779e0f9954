/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: how processes are paused, and the configuration of the programs at load time. */
#ifndef GP_CONFIG_H
#define GP_CONFIG_H

/* How a process is paused; in gp_process_record.change. */
enum gp_pause_flags : __u16 {
	GP_STOPPED = 1,
	/* the wait sleeps, so probes can be attached while it lasts */
	GP_SLEEPING = 2,
	/* only the program and its loader are mapped so far */
	GP_AT_EXEC = 4,
};

/*
 * How far user space is with the question of a paused process. The process asks by a record with a question
 * number and waits for user space to write GP_PAUSE_STATE() with that number to the map `paused`. If user
 * space needs to attach probes, which a wait that does not sleep prevents, it answers GP_STOP: the process
 * then stops by SIGSTOP and asks again with GP_STOPPED, and user space lets it continue by SIGCONT.
 */
enum gp_pause_state {
	GP_SEEN,
	/* the process is to stop, so that probes can be attached */
	GP_STOP,
	GP_ANSWERED,
};

/* increases with every question, and with every state of a question */
#define GP_PAUSE_STATE(ticket, state) (4 * (__u64)(ticket) + (state))

/* Whether and how targets are paused. */
enum gp_pause : __u8 {
	GP_PAUSE_NOT,
	GP_PAUSE_BY_WAITING,
	GP_PAUSE_BY_STOPPING,
};

/* Set by user space before the programs are loaded, and constant afterwards. */
struct gp_config {
	/* only processes in the targets map, and their children */
	__u8 only_targets;
	/*
	 * gp_pause: whether and how targets are paused, at exec and when their loader has mapped libraries,
	 * until they are probed
	 */
	__u8 pause;
	/* children of targets are targets too */
	__u8 follow_forks;
	/* send only calls that fail */
	__u8 errors_only;
	/* send only calls that are not nested in others */
	__u8 outermost_only;
	/* send a record when a call begins, and another one when it has returned */
	__u8 phases;
	/* there are no return probes */
	__u8 entry_only;
	/* send the stack of every call that is sent */
	__u8 stacks;
	/* report handles of CUDA kernels that were never seen before */
	__u8 names;
	/* record the call sites of allocations */
	__u8 sites;
	/* record the call sites of calls that are sent: of functions with GP_TAKES_SITE, and of failures */
	__u8 call_sites;
	/* follow launches, graphs and gaps; follow copies */
	__u8 launches;
	__u8 copies;
	/* annotate the record of a call with its GPU operation */
	__u8 annotate_records;
	/* observe system calls on NVIDIA devices */
	__u8 device_syscalls;
	/* return addresses that the Linux kernel replaced may be written back: see return_safety.bpf.h */
	__u8 may_write;
	/* count launches, graphs, gaps and copies in rows */
	__u8 rows;
	__u8 reserved[3];
	/* up to this many entries in the table of allocations, a process keeps the entries that it freed */
	__u32 most_kept;
	/* up to this many rows of launches, every stream of a CUDA kernel has a row of its own */
	__u32 rows_by_stream;
	/* up to this many rows of copies, every lane has rows of its own */
	__u32 rows_by_lane;
	/* the first of the functions' rows that stand for system calls */
	__u32 syscall_rows;
	/* gpuprobe itself, whose calls are ignored */
	__u32 own_tgid;
	/* the first of the functions' rows that stand for tracepoints */
	__u32 tracepoint_rows;
	/* how much data in the ring wakes the reader */
	__u32 wakeup_bytes;
	/* send only calls that take at least this long */
	__u64 min_duration_ns;
	/*
	 * processes that started later have been observed since their first call; on the clock of process
	 * start times
	 */
	__u64 watched_since_ns;
};

#endif
