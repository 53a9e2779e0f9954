/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Programs that do nothing. They measure what the Linux kernel itself costs for each kind of probe. */
#ifndef GP_BARE_PROGRAMS_BPF_H
#define GP_BARE_PROGRAMS_BPF_H

#include "../core/vmlinux.h"
#include <bpf/bpf_helpers.h>

SEC("uprobe.session")
int bare_session(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.multi")
int bare_multi_entry(struct pt_regs *ctx)
{
	return 0;
}

SEC("uretprobe.multi")
int bare_multi_return(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe")
int bare_perf_entry(struct pt_regs *ctx)
{
	return 0;
}

SEC("uretprobe")
int bare_perf_return(struct pt_regs *ctx)
{
	return 0;
}

#endif
