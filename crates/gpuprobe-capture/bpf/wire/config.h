/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The wire, continued: how processes are held, and what the programs were told when they were loaded. */
#ifndef GP_CONFIG_H
#define GP_CONFIG_H

/* How a process is held; gp_process_record.change. */
enum gp_held_flags : __u16 {
	GP_STOPPED = 1,
	/* probes may be attached meanwhile */
	GP_POLITELY = 2,
	/* nothing but the program and its loader is mapped yet */
	GP_AT_EXEC = 4,
};

/* How far user space is with a question of a process that is held. */
enum gp_held {
	GP_SEEN,
	/* stop, so that probes can be attached */
	GP_STOP,
	GP_ANSWERED,
};

/* higher for later questions, and as one goes on */
#define GP_HELD(ticket, state) (4 * (__u64)(ticket) + (state))

enum gp_hold : __u8 {
	GP_HOLD_NOT,
	GP_HOLD_BY_WAITING,
	GP_HOLD_BY_STOPPING,
};

struct gp_config {
	/* only processes in the targets map, and what they fork */
	__u8 only_targets;
	/* gp_hold: keep targets at exec and when their loader has mapped libraries, until they are probed */
	__u8 hold;
	/* what targets fork is a target too */
	__u8 follow_forks;
	/* calls that fail */
	__u8 errors_only;
	/* calls that are not made inside others */
	__u8 outermost_only;
	/* a record when a call begins, and one when it has returned */
	__u8 phases;
	/* there are no return probes */
	__u8 entry_only;
	/* the stack of every call that is sent */
	__u8 stacks;
	/* handles of kernels that were never seen are told of */
	__u8 names;
	/* where allocations come from */
	__u8 sites;
	/* launches, graphs and gaps are followed; copies are */
	__u8 launches;
	__u8 copies;
	/* the record of a call tells what became of its work */
	__u8 told;
	/* calls of the kernel on devices of the driver are looked at */
	__u8 driver;
	/* return addresses that the kernel replaced may be written back: see return_safety.bpf.h */
	__u8 may_write;
	/* launches, graphs, gaps and copies are counted in rows */
	__u8 rows;
	/* entries in the table of allocations up to which a process keeps those that it freed */
	__u32 most_kept;
	/* rows of launches up to which each stream of a kernel has one of its own */
	__u32 rows_by_stream;
	/* the first of the rows of the kernel's calls */
	__u32 driver_rows;
	/* ourselves, whose calls are nobody's concern */
	__u32 own_tgid;
	/* the first of the rows of tracepoints */
	__u32 tracepoint_rows;
	/* data waiting in the ring that is worth waking the reader for */
	__u32 wakeup_bytes;
	/* calls that take at least this long */
	__u64 min_duration_ns;
	/* processes that began later are known from their first call on; on the clock of process starts */
	__u64 watched_since_ns;
};

#endif
