/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Sends one event when a call starts and one when it returns, like the simplest CUDA tracers. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "two_events.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

static __always_inline struct event *begin(struct pt_regs *ctx)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		return NULL;
	event->pid = bpf_get_current_pid_tgid() >> 32;
	event->function = bpf_get_attach_cookie(ctx);
	event->at_ns = bpf_ktime_get_ns();
	bpf_get_current_comm(event->program, sizeof(event->program));
	__builtin_memset(event->detail, 0, sizeof(event->detail));
	return event;
}

SEC("uprobe")
int entered(struct pt_regs *ctx)
{
	struct event *event = begin(ctx);

	if (!event)
		return 0;
	event->is_return = 0;
	event->result = 0;
	event->arguments[0] = PT_REGS_PARM1(ctx);
	event->arguments[1] = PT_REGS_PARM2(ctx);
	event->arguments[2] = PT_REGS_PARM3(ctx);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

SEC("uretprobe")
int returned(struct pt_regs *ctx)
{
	struct event *event = begin(ctx);

	if (!event)
		return 0;
	event->is_return = 1;
	event->result = PT_REGS_RC(ctx);
	__builtin_memset(event->arguments, 0, sizeof(event->arguments));
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Empty probes: the cost of the Linux kernel itself, at entry and return, and at the entry only. */
SEC("uprobe.session")
int nothing_at_both(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.multi")
int nothing_at_entry(struct pt_regs *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
