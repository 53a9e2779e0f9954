/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Errors of GPUs (XIDs), by the tracepoint that the driver has for them. It is called where the driver finds
 * out, in an interrupt or a thread of its own: whoever runs then need not have to do with it.
 */
#ifndef GP_XID_BPF_H
#define GP_XID_BPF_H

#include "common.bpf.h"

SEC("raw_tp/nvidia_dev_xid")
int on_xid(struct bpf_raw_tracepoint_args *ctx)
{
	struct gp_xid_record *record = bpf_ringbuf_reserve(&control, sizeof(*record), 0);
	struct pci_dev *gpu = (struct pci_dev *)ctx->args[0];

	if (!record) {
		count_loss(GP_LOSS_RING_FULL);
		return 0;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->kind = GP_RECORD_XID;
	record->number = ctx->args[1];
	record->id = __sync_fetch_and_add(&gp_next_id, 1);
	record->at_ns = bpf_ktime_get_ns();
	bpf_probe_read_kernel_str(record->gpu, sizeof(record->gpu), BPF_CORE_READ(gpu, dev.kobj.name));
	bpf_probe_read_kernel_str(record->message, sizeof(record->message), (void *)ctx->args[2]);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

#endif
