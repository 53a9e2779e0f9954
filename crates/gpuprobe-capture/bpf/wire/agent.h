/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: what the agent inside a process reports, and calls of CUPTI. */
#ifndef GP_AGENT_H
#define GP_AGENT_H

/* The longest batch of the agent. */
#define GP_AGENT_BATCH 32768

/* Attach cookies of the probes. */
enum gp_agent_probe : __u32 {
	/* the agent passes on a batch */
	GP_AGENT_EMIT,
	/* something begins to use CUPTI */
	GP_AGENT_CUPTI,
};

/* A batch of the agent, or a call of CUPTI. Ring buffers have records of a few sizes, so bytes follow that
   are not part of the batch. */
struct gp_agent_record {
	/* gp_agent_probe */
	__u32 probe;
	/* bytes of the batch */
	__u32 length;
	__u32 tgid;
	__u32 tid;
};

#endif
