/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Probes on the function by which the agent inside a process passes on batches, and on functions of CUPTI by
 * which another program begins to use it. What a batch contains is decoded in user space.
 */
#ifndef GP_AGENT_BATCHES_BPF_H
#define GP_AGENT_BATCHES_BPF_H

#include "../core/common.bpf.h"

/* Batches are not in the ring of calls: they are large, and come in bursts. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* set at load */
} agent_batches SEC(".maps");

/* Copies a batch into a record of a given size. Returns whether there was room. */
static __always_inline bool send_batch(const struct gp_agent_record *head, const void *batch, __u32 size)
{
	struct gp_agent_record *record;
	__u32 length = head->length;

	record = bpf_ringbuf_reserve(&agent_batches, sizeof(*record) + size, 0);
	if (!record)
		return false;
	*record = *head;
	/* the verifier must see the comparison, which the compiler knows to be needless */
	barrier_var(length);
	if (length > size)
		length = size;
	/* the batch is in memory of the agent, which has just written it */
	if (bpf_probe_read_user(record + 1, length, batch)) {
		bpf_ringbuf_discard(record, 0);
		return false;
	}
	bpf_ringbuf_submit(record, 0);
	return true;
}

static __always_inline int report_agent(struct pt_regs *ctx)
{
	const void *batch = (const void *)PT_REGS_PARM1(ctx);
	__u64 length = PT_REGS_PARM2(ctx), id = bpf_get_current_pid_tgid();
	struct gp_agent_record head = {
	    .probe = bpf_get_attach_cookie(ctx),
	    .tgid = id >> 32,
	    .tid = id,
	};
	bool is_sent;

	if (head.probe == GP_AGENT_EMIT)
		head.length = length < GP_AGENT_BATCH ? length : GP_AGENT_BATCH;
	/* a record has a constant size, so there are three */
	if (head.length <= 512)
		is_sent = send_batch(&head, batch, 512);
	else if (head.length <= 4096)
		is_sent = send_batch(&head, batch, 4096);
	else
		is_sent = send_batch(&head, batch, GP_AGENT_BATCH);
	if (!is_sent)
		count_loss(GP_LOSS_LOST_AGENT_BATCH);
	return 0;
}

SEC("uprobe.multi")
int agent_multi(struct pt_regs *ctx)
{
	return report_agent(ctx);
}

SEC("uprobe")
int agent_perf(struct pt_regs *ctx)
{
	return report_agent(ctx);
}

#endif
